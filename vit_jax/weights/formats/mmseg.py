"""Names of SETR's heads in the checkpoints of mmsegmentation."""

from vit_jax.weights.formats import tables
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_norm


def batch_norm(ours: str, theirs: str) -> list[tables.Rule]:
  """Returns the rules of a BatchNorm with its running statistics."""
  return [
    *torch_norm(ours, theirs),
    rule(f'{ours}/mean', f'{theirs}.running_mean'),
    rule(f'{ours}/var', f'{theirs}.running_var'),
  ]


def convolution(ours: str, theirs: str) -> list[tables.Rule]:
  """Returns the rules of a convolution with its BatchNorm (ConvModule)."""
  return [
    rule(f'{ours}/conv/kernel', f'{theirs}.conv.weight', tables.CONV),
    *batch_norm(f'{ours}/norm', f'{theirs}.bn'),
  ]


def classifier(ours: str, theirs: str) -> list[tables.Rule]:
  """Returns the rules of a 1 x 1 convolution that classifies."""
  return [
    rule(f'{ours}/dense/kernel', f'{theirs}.weight', tables.CONV_1X1),
    rule(f'{ours}/dense/bias', f'{theirs}.bias'),
  ]


def _up_head(ours: str, theirs: str) -> list[tables.Rule]:
  return [
    *torch_norm(f'{ours}/norm', f'{theirs}.norm'),
    *convolution(f'{ours}/convolutions_{{}}', f'{theirs}.up_convs.{{}}.0'),
    *classifier(f'{ours}/classifier', f'{theirs}.conv_seg'),
  ]


# Of `models.setr.SETR`; the kinds of heads have parts of different names.
SETR = [
  *_up_head('decode', 'decode_head'),
  *_up_head('auxiliary_{}', 'auxiliary_head.{}'),
  *torch_norm('neck/norms_{}', 'neck.norm.{}'),
  *convolution('neck/inputs_{}', 'neck.mla.channel_proj.{}'),
  *convolution('neck/outputs_{}', 'neck.mla.feat_extract.{}'),
  *convolution('decode/levels_{}_{}', 'decode_head.up_convs.{}.{}'),
  *classifier('auxiliary_{}', 'auxiliary_head.{}.conv_seg'),
]
