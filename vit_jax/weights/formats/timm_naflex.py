"""timm's class NaFlexViT: images of their own shapes, in patches that are cut.

Before the layers its names differ from timm's ViT. The projection of patches is
a dense layer, and positions are a grid, or rows and columns.
"""

from collections.abc import Callable
import math
import re
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.models.parts import positions
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Size
from vit_jax.weights.formats.base import Values
from vit_jax.weights.formats.format import Format

_SIGN = 'embeds.proj.weight'
_POSITIONS = 'embeds.pos_embed'
_ROWS, _COLUMNS = f'{_POSITIONS}_y', f'{_POSITIONS}_x'
ARRAYS = tables.arrays(
  f"""
patch_embedding/kernel  {_SIGN}             patch
patch_embedding/bias    embeds.proj.bias
class_token             embeds.cls_token
register_tokens         embeds.reg_token
{positions.ROWS}        {_ROWS}
{positions.COLUMNS}     {_COLUMNS}
{timm_vit.LAYERS}
""",
  patch=tables.linear(3),
)
A = timm_vit.A
# Architectures whose positions keep their aspect.
_ASPECT = r'~naflexvit_\w+_(par|parfac|radio)_?'
# Names of C-RADIO v3 and v4: how they resize positions.
_RESIZE_BY_NAME = {r'.*_radio_v3': 'corner', r'.*_radio_v4': 'plain'}
# How positions are resized -> pos_embed_interp_mode, whether with antialias,
# whether the corners are kept in place; and the method of `weights.resize`.
_RESIZES = {
  'bicubic': ('bicubic', True, False, 'bicubic_antialias'),
  'linear': ('bilinear', True, False, 'linear_antialias'),
  'plain': ('bilinear', False, False, 'half_pixel'),
  'corner': ('bilinear', False, True, 'corner'),
}


def patch_size(file: FileFacts) -> Size:
  """Returns (height, width) of a patch."""
  axes = file.shape(_SIGN)
  if len(axes) != 2:
    raise UserError(
      f'its architecture cannot be read: {_SIGN} has the shape {axes}, as in'
      " timm with embed_proj_type='conv': that is not computed here"
    )
  channels, inputs = _channels(file), axes[1]
  side = math.isqrt(inputs // channels)
  patch = preprocessing.pair(
    file.config.get(A + 'patch_size', typed.SIZE, side)
  )
  if math.prod(patch) * channels != inputs:
    raise UserError(
      f'its architecture cannot be read: {_SIGN} has {inputs} inputs, which are'
      f' no patch of {patch[0]} x {patch[1]} pixels with {channels} channels'
    )
  return patch


def _channels(file: FileFacts) -> int:
  return file.config.get(A + 'in_chans', typed.COUNT, 3)


def resize(file: FileFacts) -> str:
  """Returns how a model resizes its positions."""
  if hinted_method := file.caller_values.get('positions.learned.resize'):
    return str(hinted_method)
  name, key = timm_names.architecture(file.config), A + 'pos_embed'
  named = (x for part, x in _RESIZE_BY_NAME.items() if re.match(part, name))
  defaults = _RESIZES[next(named, 'bicubic')]
  mode = file.config.get(f'{key}_interp_mode', typed.TEXT, defaults[0])
  method = (
    mode,
    file.config.get(f'{key}_antialias', typed.TRUTH, defaults[1]),
    file.config.get(f'{key}_align_corners', typed.TRUTH, defaults[2]),
  )
  for name, words in _RESIZES.items():
    if words[:3] == method:
      return name
  method_list = '; '.join(f'{x[0]}, {x[1]}, {x[2]}' for x in _RESIZES.values())
  reason = f'with antialias and align_corners, those computed are {method_list}'
  raise file.config.error(f'{key}_interp_mode', mode, reason)


def grid(file: FileFacts) -> Size | None:
  """Returns the grid (h, w) of the positions; None: there are none."""
  if file.has(_ROWS):
    return file.size(_ROWS, 1), file.size(_COLUMNS, 1)
  axes = file.shape(_POSITIONS)
  return (axes[1], axes[2]) if len(axes) == 4 else None


def learned_grid(file: FileFacts) -> Size | None:
  """Returns the grid of learned positions; None: it is a square."""
  h, w = grid(file) or (0, 0)
  return None if h == w else (h, w)


def image_size(file: FileFacts) -> Size:
  """Returns (height, width) that the positions are for."""
  patch, sides = file.values['patch_size'], grid(file)
  if sides is None:
    return base.image_size(None, patch, file)
  return sides[0] * patch[0], sides[1] * patch[1]


def word(index: int) -> Callable[[Values], Any]:
  """Returns what writes a word of how positions are resized."""

  def write(values: Values) -> Any:
    name = values.get('positions.learned.resize', 'bicubic')
    return None if name == 'bicubic' else _RESIZES[name][index]

  return write


class NaFlex(Format):
  """The format, whose positions have a grid that is a model's own."""

  def rules(self, values: Values) -> list[tables.Rule]:
    """Returns the rules of the arrays of a model with these values."""
    sides = values.get('positions.learned.grid')

    def gridded(a: np.ndarray) -> np.ndarray:
      h, w = sides or (math.isqrt(a.shape[1]),) * 2
      is_grid = h * w == a.shape[1]  # else other tokens have positions, too
      return a.reshape(1, h, w, a.shape[2]) if is_grid else a

    positions = tables.arrays(
      f'position_embedding {_POSITIONS} grid', grid=tables.reshaped(gridded)
    )
    return [*positions, *super().rules(values)]


NAFLEX = NaFlex(
  **{
    **vars(timm_vit.PLAIN),
    'title': "timm's NaFlexViT",
    'arrays': ARRAYS,
    'fields': fields.table(
      f"""
hidden_size         {_SIGN}[0]        .embed_dim
patch_size          patch_size()      .patch_size  square
class_token         embeds.cls_token? .class_token
registers           embeds.reg_token[1]  .reg_tokens
positions.learned   has_grid()
positions.learned.tokens  =patches
positions.learned.resize  resize()
positions.learned.keep_aspect  -      .pos_embed_ar_preserving  TRUTH
                    default={_ASPECT}
positions.learned.grid  learned_grid()
positions.factorized  {_ROWS}?
positions.factorized.keep_aspect  -   .pos_embed_ar_preserving  TRUTH
                    default={_ASPECT}
positions.factorized.grid  grid()
>                   .pos_embed        kind()
>                   .pos_embed_interp_mode     interp_mode()
>                   .pos_embed_antialias       antialias()
>                   .pos_embed_align_corners   align_corners()
>                   .pos_embed_grid_size       grid_word()
-  !block=post_norm
""",
      *(patch_size, resize, learned_grid, grid),
      changes=timm_vit.PLAIN_FIELDS,
      below='model_args',
      has_grid=lambda file: bool(file.shape(_POSITIONS)),
      kind=tables.chosen("""
positions.learned     learned
positions.factorized  factorized
-                     none
"""),
      interp_mode=word(0),
      antialias=word(1),
      align_corners=word(2),
      grid_word=lambda values: [
        n // p
        for n, p in zip(values['image_size'], values['patch_size'], strict=True)
      ],
    ),
    'matches': lambda file: file.has(_SIGN),
    'image_size': image_size,
    'channels': _channels,
    'resize': lambda file: _RESIZES[resize(file)][3],
    'unread_keys': {
      **timm_vit.PLAIN.unread_keys,
      **fields.unread_keys(
        'embed_proj_type=linear enable_patch_interpolator'
        ' patchify_channels_last=True pos_embed=learned|factorized|none'
      ),
    },
    'names': timm_vit.named("""
pool=map  naflexvit_base_patch16_map
-         naflexvit_base_patch16_gap
"""),
  }
)
