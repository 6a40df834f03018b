"""timm's class NaFlexViT: images of their own shapes, in patches that are cut.

Its names differ from those of timm's ViT before the layers; the projection of
patches is a dense layer, and positions are a grid, or rows and columns.
"""

import math
import re
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.models import flat
from vit_jax.models.parts import positions
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats.tables import rule

_SIGN = 'embeds.proj.weight'
_POSITIONS = 'embeds.pos_embed'
_ROWS, _COLUMNS = f'{_POSITIONS}_y', f'{_POSITIONS}_x'
_COMMON = [
  rule('patch_embedding/kernel', _SIGN, tables.linear(3)),
  rule('patch_embedding/bias', 'embeds.proj.bias'),
  rule('class_token', 'embeds.cls_token'),
  rule('register_tokens', 'embeds.reg_token'),
  rule(positions.ROWS, _ROWS),
  rule(positions.COLUMNS, _COLUMNS),
]
# Those of `uncommon.parts` that this class has.
HOLDS = (uncommon.FLEXIBLE, uncommon.NO_LAST_NORM, uncommon.MAP_PREFIX)
# Architectures whose positions keep their aspect.
_ASPECT = r'naflexvit_\w+_(par|parfac|radio)_'
# Names of C-RADIO v3 and v4: how they resize positions.
_RESIZE_BY_NAME = {r'.*_radio_v3': 'corner', r'.*_radio_v4': 'plain'}
# position_resize -> pos_embed_interp_mode, whether with antialias, whether the
# corners are kept in place; and the method of `weights.resize`.
_RESIZES = {
  'bicubic': ('bicubic', True, False, 'bicubic_antialias'),
  'linear': ('bilinear', True, False, 'linear_antialias'),
  'plain': ('bilinear', False, False, 'half_pixel'),
  'corner': ('bilinear', False, True, 'corner'),
}


def has_signs(shapes: Any) -> bool:
  """Whether names, or `base.Shapes`, are of this class."""
  return _SIGN in shapes


def is_kind(model: flat.ViT) -> bool:
  """Whether only this class can hold a model."""
  return uncommon.is_flexible(model)


def rules(model: flat.ViT) -> list[tables.Rule]:
  """Returns the rules that come before those of timm's ViT."""
  given = model.position_grid

  def grid(a: np.ndarray) -> np.ndarray:
    side = math.isqrt(a.shape[1])
    return a.reshape(1, *(given or (side, side)), a.shape[-1])

  layout = tables.reshaped(grid)
  return [*_COMMON, rule('position_embedding', _POSITIONS, layout)]


def seen(arrays: base.Renamed, config: typed.Json) -> base.Shapes:
  """Returns the shapes as a ViT of timm has them, beside those of the file.

  Raises:
    UserError: The size of a patch is not known.
  """
  shapes = dict(arrays.shapes)
  wide, inputs = _axes(shapes[_SIGN])
  channels = config.get('model_args.in_chans', typed.COUNT, 3)
  side = math.isqrt(inputs // channels)
  asked = config.get('model_args.patch_size', typed.SIZE, side)
  patch = preprocessing.pair(asked)
  if math.prod(patch) * channels != inputs:
    raise UserError(
      f'its architecture cannot be read: {_SIGN} has {inputs} inputs, which are'
      f' no patch of {patch[0]} x {patch[1]} pixels with {channels} channels'
    )
  shapes['patch_embed.proj.weight'] = (wide, channels, *patch)
  for name in ('cls_token', 'reg_token'):
    if f'embeds.{name}' in shapes:
      shapes[name] = shapes[f'embeds.{name}']
  both = containers.Arrays(shapes, arrays.read)
  return base.Shapes(base.Renamed(both, show=arrays.stored))


def _axes(shape: tuple[int, ...]) -> tuple[int, int]:
  if len(shape) != 2:
    raise UserError(
      f'its architecture cannot be read: {_SIGN} has the shape {shape}, as in'
      " timm with embed_proj_type='conv': that is not computed here"
    )
  return shape[0], shape[1]


def fields(
  shapes: base.Shapes, patch: tuple[int, ...], hints: base.Hints
) -> tuple[dict[str, Any], tuple[int, int]]:
  """Returns the fields of the positions, and the image size of these.

  `shapes` are from `seen`, and `patch` is (height, width) in pixels.
  """
  name = hints.config.get('architecture', typed.TEXT, '')
  found: dict[str, Any] = {
    'position_resize': _resize(hints.config),
    'position_tokens': 'patches',
    'position_aspect': hints.config.get(
      'model_args.pos_embed_ar_preserving',
      typed.TRUTH,
      re.match(_ASPECT, name) is not None,
    ),
  }
  if _ROWS in shapes:
    h, w = (shapes.get(x, 3)[1] for x in (_ROWS, _COLUMNS))
    found |= {'position_embedding': 'factorized', 'position_grid': (h, w)}
  elif _POSITIONS in shapes:
    _, h, w, _ = shapes.get(_POSITIONS, 4)
    found['position_grid'] = None if h == w else (h, w)
  else:
    size = base.image_size(None, patch, hints)
    return found | {'position_embedding': 'none'}, size
  return found, (h * patch[0], w * patch[1])


def _resize(config: typed.Json) -> str:
  """Returns how a model resizes its positions.

  Raises:
    UserError: That combination is not computed.
  """
  name, key = config.get('architecture', typed.TEXT, ''), 'model_args.pos_embed'
  named = (x for part, x in _RESIZE_BY_NAME.items() if re.match(part, name))
  usual = _RESIZES[next(named, 'bicubic')]
  mode = config.get(f'{key}_interp_mode', typed.TEXT, usual[0])
  asked = (
    mode,
    config.get(f'{key}_antialias', typed.TRUTH, usual[1]),
    config.get(f'{key}_align_corners', typed.TRUTH, usual[2]),
  )
  for found, (*how, _) in _RESIZES.items():
    if tuple(how) == asked:
      return found
  known = '; '.join(f'{x[0]}, {x[1]}, {x[2]}' for x in _RESIZES.values())
  wrong = f'with antialias and align_corners, those computed are {known}'
  raise config.error(f'{key}_interp_mode', mode, wrong)


def resize(model: flat.ViT) -> str:
  """Returns the method by which positions are resized to another grid."""
  return _RESIZES[model.position_resize][3]


def arguments(model: flat.ViT) -> dict[str, Any]:
  """Returns `model_args` that timm's ViT does not have."""
  mode, antialias, corners, _ = _RESIZES[model.position_resize]
  changed = {
    'pos_embed_interp_mode': mode,
    'pos_embed_antialias': antialias,
    'pos_embed_align_corners': corners,
  }
  return {
    **({} if model.position_resize == 'bicubic' else changed),
    'pos_embed': model.position_embedding,
    'pos_embed_ar_preserving': model.position_aspect,
  }


def unsupported(model: flat.ViT) -> dict[str, Any]:
  """Returns what this class has no place for, and whether a model has it."""
  return {
    'a distillation token beside flexible positions': model.distillation_token,
    'a ResNet stem beside flexible positions': model.resnet_stages is not None,
    'a layer before the head beside flexible positions': model.pre_logits,
    'a gated MLP beside flexible positions': model.gated_mlp,
    'flexible positions of tokens before the patches': (
      model.positioned_prefix > 0
    ),
  }
