"""BEiT's own names, which timm keeps: relative positions, keys without bias."""

from typing import Any

from vit_jax.models import flat
from vit_jax.models.parts import relative
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense as _dense

_TABLE = 'relative_position_bias_table'
_SHARED = f'rel_pos_bias.{_TABLE}'
_OF_LAYERS = f'blocks.{{}}.attn.{_TABLE}'
RULES = [
  rule('mask_token', 'mask_token'),
  rule('relative_position_bias', _SHARED),
  rule('blocks_{}/attention/relative_position_bias', _OF_LAYERS),
  rule(
    'blocks_{}/attention/qkv/bias',
    ['blocks.{}.attn.q_bias', 'blocks.{}.attn.v_bias'],
    tables.split(2, 0, tables.FLAT),
  ),
  rule('blocks_{}/layer_scale1', 'blocks.{}.gamma_1'),
  rule('blocks_{}/layer_scale2', 'blocks.{}.gamma_2'),
]
# What an objective that predicts tokens has beside the trunk, as 'head'.
HEAD = _dense('head', 'lm_head')
# Those of `uncommon.parts` that this class has.
HOLDS = uncommon.BEITS
# Arrays outside the model.
IGNORED = r'lm_head\..*|.*relative_position_index'


def is_kind(model: flat.ViT) -> bool:
  """Whether a model has parts that only BEiT's names have a place for."""
  return model.relative_positions in relative.TABLES


def table(shapes: base.Shapes) -> tuple[int, int] | None:
  """Returns the shape of a table of relative positions, [rows, H], or None."""
  for name in (_SHARED, _OF_LAYERS):
    if name in shapes or shapes.count(name):
      rows, heads = shapes.get(name, 2)
      return rows, heads
  return None


def fields(shapes: base.Shapes) -> dict[str, Any]:
  """Returns the fields in which a model differs from timm's ViT."""
  no_key_bias = shapes.count('blocks.{}.attn.q_bias') > 0
  has_bias = shapes.count('blocks.{}.attn.qkv.bias') > 0
  return {
    'relative_positions': 'shared' if _SHARED in shapes else 'layers',
    'mask_token': 'mask_token' in shapes,
    'qkv_bias': has_bias or no_key_bias,
    'key_bias': not no_key_bias,
    'layer_scale': 1e-5 if shapes.count('blocks.{}.gamma_1') else None,
  }


def unsupported(model: flat.ViT) -> dict[str, Any]:
  """Returns what these names have no place for, and whether a model has it."""
  return {
    'keys with biases beside relative positions': model.qkv_bias
    and model.key_bias,
    'tokens other than a class token beside relative positions': (
      model.prefix != ('class_token',)
    ),
    'positions of patches alone beside relative ones': (
      model.position_embedding == 'learned' and model.positioned_prefix != 1
    ),
    'normalised queries and keys beside relative positions': model.qk_norm,
    'a ResNet stem beside relative positions': model.resnet_stages is not None,
    'a gated MLP beside relative positions': model.gated_mlp,
    'approximations of the GELU beside relative positions': (
      model.gelu != 'exact'
    ),
  }
