"""timm's class NaFlexViT: images of their own shapes, in patches that are cut.

Its names differ from those of timm's ViT before the layers; the projection of
patches is a dense layer, and positions are a grid, or rows and columns.
"""

from collections.abc import Callable
import math
import re
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.models import vit
from vit_jax.models.parts import positions
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.fields import always
from vit_jax.weights.formats.fields import changed
from vit_jax.weights.formats.fields import Entry
from vit_jax.weights.formats.fields import has
from vit_jax.weights.formats.fields import said
from vit_jax.weights.formats.fields import Seen
from vit_jax.weights.formats.fields import seen
from vit_jax.weights.formats.fields import shape
from vit_jax.weights.formats.fields import told
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import Size
from vit_jax.weights.formats.format import Values

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
_ASPECT = r'naflexvit_\w+_(par|parfac|radio)_'
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
_KEYS = ('interp_mode', 'antialias', 'align_corners')


def patch_size(file: Seen) -> Size:
  """Returns (height, width) of a patch.

  Raises:
    UserError: It is not known.
  """
  axes = file.shape(_SIGN)
  if len(axes) != 2:
    raise UserError(
      f'its architecture cannot be read: {_SIGN} has the shape {axes}, as in'
      " timm with embed_proj_type='conv': that is not computed here"
    )
  channels, inputs = _channels(file), axes[1]
  side = math.isqrt(inputs // channels)
  stated = file.config.get(A + 'patch_size', typed.SIZE, side)
  patch = preprocessing.pair(stated)
  if math.prod(patch) * channels != inputs:
    raise UserError(
      f'its architecture cannot be read: {_SIGN} has {inputs} inputs, which are'
      f' no patch of {patch[0]} x {patch[1]} pixels with {channels} channels'
    )
  return patch


def _channels(file: Seen) -> int:
  return file.config.get(A + 'in_chans', typed.COUNT, 3)


def resize(file: Seen) -> str:
  """Returns how a model resizes its positions.

  Raises:
    UserError: That combination is not computed.
  """
  if asked := file.hints.values.get('positions.learned.resize'):
    return str(asked)
  name, key = timm_names.architecture(file.config), A + 'pos_embed'
  named = (x for part, x in _RESIZE_BY_NAME.items() if re.match(part, name))
  usual = _RESIZES[next(named, 'bicubic')]
  mode = file.config.get(f'{key}_interp_mode', typed.TEXT, usual[0])
  stated = (
    mode,
    file.config.get(f'{key}_antialias', typed.TRUTH, usual[1]),
    file.config.get(f'{key}_align_corners', typed.TRUTH, usual[2]),
  )
  for name, (*words, _) in _RESIZES.items():
    if tuple(words) == stated:
      return name
  known = '; '.join(f'{x[0]}, {x[1]}, {x[2]}' for x in _RESIZES.values())
  reason = f'with antialias and align_corners, those computed are {known}'
  raise file.config.error(f'{key}_interp_mode', mode, reason)


def grid(file: Seen) -> Size | None:
  """Returns the grid (h, w) of the positions; None: there are none."""
  if file.has(_ROWS):
    return file.size(_ROWS, 1), file.size(_COLUMNS, 1)
  axes = file.shape(_POSITIONS)
  return (axes[1], axes[2]) if len(axes) == 4 else None


def learned_grid(file: Seen) -> Size | None:
  """Returns the grid of learned positions; None: it is a square."""
  h, w = grid(file) or (0, 0)
  return None if h == w else (h, w)


def keeps_aspect(file: Seen) -> bool:
  """Returns whether a name stands for positions that keep their aspect."""
  name = timm_names.architecture(file.config)
  return re.match(_ASPECT, name) is not None


def image_size(file: Seen) -> Size:
  """Returns (height, width) that the positions are for."""
  patch, sides = file.values['patch_size'], grid(file)
  if sides is None:
    return base.image_size(None, patch, file.hints)
  return sides[0] * patch[0], sides[1] * patch[1]


def _kind(values: Values) -> str:
  """Returns timm's `pos_embed`."""
  kinds = ('learned', 'factorized')
  there = (x for x in kinds if values.get(f'positions.{x}'))
  return next(there, 'none')


def _resizing(index: int) -> Callable[[Values], Any]:
  """Returns a function that writes a word of how positions are resized."""

  def write(values: Values) -> Any:
    name = values.get('positions.learned.resize', 'bicubic')
    return None if name == 'bicubic' else _RESIZES[name][index]

  return write


def _aspect(ours: str) -> Entry:
  """Returns the entry of whether positions keep their aspect."""
  return said(
    f'{ours}.keep_aspect',
    A + 'pos_embed_ar_preserving',
    keeps_aspect,
    kind=typed.TRUTH,
    write=lambda values: values.get(f'{ours}.keep_aspect'),
  )


FIELDS = (
  *changed(
    timm_vit.PLAIN,
    shape('hidden_size', _SIGN, 0, A + 'embed_dim'),
    seen('patch_size', patch_size, A + 'patch_size', write=timm_vit.patch_size),
    has('class_token', 'embeds.cls_token', A + 'class_token'),
    shape('registers', 'embeds.reg_token', 1, A + 'reg_tokens'),
    seen('positions.learned', lambda file: bool(file.shape(_POSITIONS))),
    always('positions.learned.tokens', 'patches'),
    seen('positions.learned.resize', resize),
    _aspect('positions.learned'),
    seen('positions.learned.grid', learned_grid),
    has('positions.factorized', _ROWS),
    _aspect('positions.factorized'),
    seen('positions.factorized.grid', grid),
    told(A + 'pos_embed', _kind),
    *(told(f'{A}pos_embed_{key}', _resizing(i)) for i, key in enumerate(_KEYS)),
    told(
      A + 'pos_embed_grid_size',
      lambda values: [
        n // p
        for n, p in zip(values['image_size'], values['patch_size'], strict=True)
      ],
    ),
  ),
  *timm_vit.POOL,
  shape('num_classes', 'head.weight', 0),
)


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


def header(values: Values) -> dict[str, Any]:
  """Returns what timm's config.json says of the architecture."""
  pool = 'map' if values['pool'] == 'map' else 'gap'
  name = f'naflexvit_base_patch16_{pool}'
  return timm_vit.named(values, name, first='embeds.proj')


NAFLEX = NaFlex(
  title="timm's NaFlexViT",
  family=vit.ViT,
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: file.has(_SIGN),
  image_size=image_size,
  channels=_channels,
  preprocess=timm_vit.preprocess,
  resize=lambda file: _RESIZES[resize(file)][3],
  scope='model_args',
  known={
    **timm_names.IGNORED,
    'embed_proj_type': typed.one_of('linear'),
    'enable_patch_interpolator': None,
    'norm_layer': timm_names.LAYER_NORM,
    'patchify_channels_last': typed.one_of(True),
    'pos_embed': typed.one_of('learned', 'factorized', 'none'),
    'pos_embed_use_grid_sample': typed.one_of(False),
  },
  header=header,
)
