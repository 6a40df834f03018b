"""Names of Trans2Seg's transformer and head in its authors' checkpoints."""

from vit_jax.weights.formats import mmseg
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense
from vit_jax.weights.formats.tables import torch_norm

_VIT = 'transformer.vit.'
_ENCODER, _DECODER = f'{_VIT}blocks_encoder.{{}}', f'{_VIT}blocks_decoder.{{}}'


def _separable(ours: int, theirs: str) -> list[tables.Rule]:
  return [
    line
    for part, norm in (('depthwise', 'bn_depth'), ('pointwise', 'bn_point'))
    for line in (
      rule(
        f'{part}_{ours}/conv/kernel',
        f'{theirs}.block.{part}.weight',
        tables.CONV,
      ),
      *mmseg.batch_norm(f'{part}_{ours}/norm', f'{theirs}.block.{norm}'),
    )
  ]


# Of `models.trans2seg.Trans2Seg`.
RULES = [
  *torch_dense('embedding', f'{_VIT}hybrid_embed.proj'),
  rule('class_token', f'{_VIT}cls_token'),
  rule('position_embedding', f'{_VIT}pos_embed'),
  rule('class_prototypes', f'{_VIT}cls_embed'),
  *torch_norm('blocks_{}/norm1', f'{_ENCODER}.norm1'),
  *torch_dense('blocks_{}/attention/qkv', f'{_ENCODER}.attn.qkv'),
  *torch_dense('blocks_{}/attention/out', f'{_ENCODER}.attn.proj', inputs=2),
  *torch_norm('blocks_{}/norm2', f'{_ENCODER}.norm2'),
  *torch_dense('blocks_{}/mlp/up', f'{_ENCODER}.mlp.fc1'),
  *torch_dense('blocks_{}/mlp/down', f'{_ENCODER}.mlp.fc2'),
  *torch_norm('norm', f'{_VIT}norm'),
  *torch_norm('decoder_{}/norm_classes', f'{_DECODER}.norm1_clsembed'),
  *torch_norm('decoder_{}/norm_places', f'{_DECODER}.norm1'),
  *torch_dense('decoder_{}/attention/query', f'{_DECODER}.attn.fc_q'),
  *torch_dense('decoder_{}/attention/key_value', f'{_DECODER}.attn.fc_kv'),
  *torch_dense('decoder_{}/attention/out', f'{_DECODER}.attn.proj'),
  *(
    line
    for name, norm, mlp in (
      ('query', 'norm2', 'mlp'),
      ('features', 'norm3', 'mlp2'),
      ('masks', 'norm4', 'mlp3'),
    )
    for line in (
      *torch_norm(f'decoder_{{}}/norm_{name}', f'{_DECODER}.{norm}'),
      *torch_dense(f'decoder_{{}}/mlp_{name}/up', f'{_DECODER}.{mlp}.fc1'),
      *torch_dense(f'decoder_{{}}/mlp_{name}/down', f'{_DECODER}.{mlp}.fc2'),
    )
  ),
  *mmseg.convolution('fine', 'conv_c1'),
  *_separable(0, 'lay1'),
  *_separable(1, 'lay2'),
  *_separable(2, 'lay3'),
  *mmseg.classifier('classifier', 'pred'),
]
