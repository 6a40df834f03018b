"""Sizes as in other libraries: `config.data.resize_like`, timm's crop modes."""

from collections.abc import Callable
import contextlib
import math
from typing import Any

from vit_jax.config import parts
from vit_jax.config import UserError
from vit_jax.data.host.geometry import Crop
from vit_jax.data.host.geometry import is_fill
from vit_jax.data.host.geometry import Size

CROP_MODES = ('center', 'squash', 'border')


def resizing(value: str, size: Size, key: str) -> dict[str, Any]:
  """Returns the fields of a `Crop` of a text such as 'center(0.875)'."""
  part = parts.Part('')
  with contextlib.suppress(UserError):  # the error below says more
    part = parts.parse(value, key)
  mode, (crop_pct, *values) = part.name, part.args or (None,)
  fill = tuple(values)
  good = mode in CROP_MODES and not part.options and is_crop_pct(crop_pct)
  if not good or (mode != 'border' and fill) or not is_fill(fill):
    raise UserError(
      f'config.{key} is {value!r}: write one positive number, (height, width),'
      " or timm's crop_mode and crop_pct, such as 'center(0.875)',"
      " 'squash(1.0)' or 'border(1.0, 0, 0, 0)' with the values of its channels"
    )
  height, width = before_crop(size, crop_pct)
  fields: dict[str, Any] = {'resize': (height, width), 'crop_pct': crop_pct}
  if mode == 'center':
    fields['resize'] = min(height, width)
  if mode == 'border':
    fields |= {'border': True, 'fill': fill or (0,)}
  return fields


def is_crop_pct(value: Any) -> bool:
  """Whether it is a share of the sides of a resized image, as a number."""
  return type(value) in (int, float) and 1e-3 <= value <= 1


def resized(crop: Crop, size: Size) -> Size | None:
  """Returns `Crop.resized` as a library has it; None: the crop does not fit."""
  if isinstance(crop.resize, tuple):
    return _fitted(size, crop.resize, max) if crop.border else crop.resize
  if crop.resize is None:
    return None
  # torchvision's Resize: the short side is exact, the other rounded down.
  height, width = (crop.resize * n // min(size) for n in size)
  if crop.resize_like == 'timm' and crop.size[0] != crop.size[1]:
    height, width = (crop.resize * n // min(crop.size) for n in crop.size)
    if crop.crop_pct is not None:
      height, width = before_crop(crop.size, crop.crop_pct)
    height, width = _fitted(size, (height, width), min)
  least = crop.least_size
  fits = height >= least[0] and width >= least[1]
  return (height, width) if fits else None


def before_crop(size: Size, crop_pct: float) -> Size:
  """Returns timm's `scale_size`, of which a crop of `size` is cut."""
  return math.floor(size[0] / crop_pct), math.floor(size[1] / crop_pct)


def _fitted(size: Size, filled: Size, longest: Callable[..., float]) -> Size:
  """Returns the size within (`max`) or around (`min`) one, as timm does."""
  ratio = longest(x / n for x, n in zip(size, filled, strict=True))
  return max(round(size[0] / ratio), 1), max(round(size[1] / ratio), 1)
