"""Names of UNETR in the checkpoints of MONAI."""

import numpy as np

from vit_jax.weights.formats import tables
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense
from vit_jax.weights.formats.tables import torch_norm

# Torch's convolutions are [out, in, ...], transposed ones [in, out, ...].
_CONV = tables.Layout(
  lambda a, _: np.moveaxis(a[0], (0, 1), (-1, -2)),
  lambda a: [np.moveaxis(a, (-1, -2), (0, 1))],
)
_TRANSPOSED = tables.Layout(
  lambda a, _: np.moveaxis(a[0], (0, 1), (-2, -1)),
  lambda a: [np.moveaxis(a, (-2, -1), (0, 1))],
)
# A dense layer as a convolution of size 1; the file says of how many axes.
_POINTS = tables.Layout(
  lambda a, shape: a[0].reshape(shape[::-1]).T,
  lambda a: [a.T[:, :, None, None, None]],
)
# MONAI's blocks have a norm for cross-attention that UNETR does not use.
IGNORED = r'(vit\.)?blocks\.\d+\.(norm_cross_attn|cross_attn)\..*'

# Of a trunk, `models.flat.Trunk`, behind the prefix `vit.`.
TRUNK = [
  rule(
    'patch_embedding/kernel', 'patch_embedding.patch_embeddings.weight', _CONV
  ),
  rule('patch_embedding/bias', 'patch_embedding.patch_embeddings.bias'),
  rule('position_embedding', 'patch_embedding.position_embeddings'),
  *torch_norm('blocks_{}/norm1', 'blocks.{}.norm1'),
  *torch_dense('blocks_{}/attention/qkv', 'blocks.{}.attn.qkv'),
  *torch_dense('blocks_{}/attention/out', 'blocks.{}.attn.out_proj', inputs=2),
  *torch_norm('blocks_{}/norm2', 'blocks.{}.norm2'),
  *torch_dense('blocks_{}/mlp/up', 'blocks.{}.mlp.linear1'),
  *torch_dense('blocks_{}/mlp/down', 'blocks.{}.mlp.linear2'),
  *torch_norm('norm', 'norm'),
]


# Of a patch embedding that is a dense layer: its columns are ordered by the
# patch's axes, and then by channel.
PERCEPTRON = [
  *torch_dense('patch_embedding', 'patch_embeddings.1', inputs=4),
  rule('position_embedding', 'position_embeddings'),
]


def _unit(ours: str, theirs: str) -> list[tables.Rule]:
  return [
    rule(f'{ours}/{name}/kernel', f'{theirs}.{other}.conv.weight', _CONV)
    for name, other in (
      ('conv1', 'conv1'),
      ('conv2', 'conv2'),
      ('conv_shortcut', 'conv3'),
    )
  ]


# Of the decoder, `models.unetr.UNETR`.
DECODER = [
  *_unit('encoder1', 'encoder1.layer'),
  rule(
    'encoder{}/first/kernel',
    'encoder{}.transp_conv_init.conv.weight',
    _TRANSPOSED,
  ),
  rule(
    'encoder{}/doubled_{}/kernel',
    'encoder{}.blocks.{}.0.conv.weight',
    _TRANSPOSED,
  ),
  *_unit('encoder{}/unit_{}', 'encoder{}.blocks.{}.1'),
  rule(
    'decoder{}/doubled/kernel', 'decoder{}.transp_conv.conv.weight', _TRANSPOSED
  ),
  *_unit('decoder{}/unit', 'decoder{}.conv_block'),
  rule('classifier/dense/kernel', 'out.conv.conv.weight', _POINTS),
  rule('classifier/dense/bias', 'out.conv.conv.bias'),
]
