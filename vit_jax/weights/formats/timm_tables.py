"""Tables of timm's classes: ViT, hybrids, Mixer and BiT."""

from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_clip
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense as _dense
from vit_jax.weights.formats.tables import torch_norm as _norm


def _patch(theirs: str) -> list[tables.Rule]:
  return [
    rule('patch_embedding/kernel', f'{theirs}.weight', tables.CONV),
    rule('patch_embedding/bias', f'{theirs}.bias'),
  ]


def _units(ours: str, theirs: str, norm_proj: bool) -> list[tables.Rule]:
  """Returns rules of bottleneck units; timm counts from 0, we from 1."""
  ours, theirs = f'{ours}stage{{}}/unit{{}}', f'{theirs}stages.{{}}.blocks.{{}}'
  table = [
    rule(f'{ours}/conv{n}/kernel', f'{theirs}.{name}.weight', tables.CONV, -1)
    for n, name in (
      ('1', 'conv1'),
      ('2', 'conv2'),
      ('3', 'conv3'),
      ('_proj', 'downsample.conv'),
    )
  ]
  for n in ('1', '2', '3'):
    table += _norm(f'{ours}/norm{n}', f'{theirs}.norm{n}', -1)
  if norm_proj:
    table += _norm(f'{ours}/norm_proj', f'{theirs}.downsample.norm', -1)
  return table


# Of differential attention.
LAMBDA = 'blocks.{}.attn.lambda_'
VIT = [
  *_patch('patch_embed.proj'),
  rule('class_token', 'cls_token'),
  rule('distillation_token', 'dist_token'),
  rule('register_tokens', 'reg_token'),
  rule('mask_token', 'mask_token'),
  rule('position_embedding', 'pos_embed'),
  *timm_clip.RULES,
  *_norm('patch_norm', 'patch_embed.norm'),
  *_norm('blocks_{}/norm1', 'blocks.{}.norm1'),
  *_dense('blocks_{}/attention/qkv', 'blocks.{}.attn.qkv'),
  *_norm('blocks_{}/attention/query_norm', 'blocks.{}.attn.q_norm'),
  *_norm('blocks_{}/attention/key_norm', 'blocks.{}.attn.k_norm'),
  *_norm('blocks_{}/attention/norm', 'blocks.{}.attn.norm'),
  *_norm('blocks_{}/attention/difference/norm', 'blocks.{}.attn.sub_norm'),
  *(
    rule(f'blocks_{{}}/attention/difference/{ours}', f'{LAMBDA}{theirs}')
    for ours, theirs in (
      ('query1', 'q1'),
      ('key1', 'k1'),
      ('query2', 'q2'),
      ('key2', 'k2'),
    )
  ),
  *_dense('blocks_{}/attention/out', 'blocks.{}.attn.proj', inputs=2),
  rule('blocks_{}/layer_scale1', 'blocks.{}.ls1.gamma'),
  *_norm('blocks_{}/norm2', 'blocks.{}.norm2'),
  *_dense('blocks_{}/mlp/up', 'blocks.{}.mlp.fc1'),
  *_norm('blocks_{}/mlp/norm', 'blocks.{}.mlp.norm'),
  *_dense('blocks_{}/mlp/down', 'blocks.{}.mlp.fc2'),
  rule('blocks_{}/layer_scale2', 'blocks.{}.ls2.gamma'),
  rule('map_head/probe', 'attn_pool.latent'),
  *_dense('map_head/query', 'attn_pool.q'),
  *_dense('map_head/key_value', 'attn_pool.kv'),
  *_dense('map_head/out', 'attn_pool.proj', inputs=2),
  *_norm('map_head/norm', 'attn_pool.norm'),
  *_dense('map_head/mlp/up', 'attn_pool.mlp.fc1'),
  *_dense('map_head/mlp/down', 'attn_pool.mlp.fc2'),
  *_dense('pre_logits', 'pre_logits.fc'),
  *_dense('head', 'head'),
  *_dense('head_distillation', 'head_dist'),
]
# timm's gated MLP with a norm, and that of AIMv2, have their halves apart.
HALVES = tables.torch_halves(
  'blocks_{}/mlp/up', ['blocks.{}.mlp.fc1_g', 'blocks.{}.mlp.fc1_x']
)
BACKBONE = 'patch_embed.backbone.'
# The linear probes of MAE's code: a BatchNorm before the layer.
HEAD_OF_PROBE = [
  rule('head_norm/mean', 'head.0.running_mean'),
  rule('head_norm/var', 'head.0.running_var'),
  *_dense('head', 'head.1'),
]
HYBRID = [
  rule('stem/conv/kernel', f'{BACKBONE}stem.conv.weight', tables.CONV),
  *_norm('stem/norm', f'{BACKBONE}stem.norm'),
  *_units('stem/', BACKBONE, norm_proj=True),
]
STEM_ALONE = [
  rule('stem/conv/kernel', f'{BACKBONE}conv.weight', tables.CONV),
  *_norm('stem/norm', f'{BACKBONE}norm'),
]
MIXER = [
  *_patch('stem.proj'),
  *_norm('blocks_{}/norm1', 'blocks.{}.norm1'),
  *_dense('blocks_{}/token_mlp/up', 'blocks.{}.mlp_tokens.fc1'),
  *_dense('blocks_{}/token_mlp/down', 'blocks.{}.mlp_tokens.fc2'),
  *_norm('blocks_{}/norm2', 'blocks.{}.norm2'),
  *_dense('blocks_{}/channel_mlp/up', 'blocks.{}.mlp_channels.fc1'),
  *_dense('blocks_{}/channel_mlp/down', 'blocks.{}.mlp_channels.fc2'),
  *_norm('norm', 'norm'),
  *_dense('head', 'head'),
]
BIT = [
  rule('stem/conv/kernel', 'stem.conv.weight', tables.CONV),
  *_units('', '', norm_proj=False),
  *_norm('norm', 'norm'),
  rule('head/kernel', 'head.fc.weight', tables.CONV_1X1),
  rule('head/bias', 'head.fc.bias'),
]
