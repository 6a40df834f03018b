"""Checks the stored sizes of images and the sizes after resizing."""

from typing import Any

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data.host import geometry

_MOST_RESIZE = 100  # limit, in multiples of the model's input size


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the stored sizes of images and the sizes after resizing."""
  data = config.data
  if data.source_size is not None:
    config_lib.sides(data.source_size, 'data.source_size')
  for key in ('resize', 'eval_resize'):
    if isinstance(data[key], float):
      if not 0 < data[key] <= _MOST_RESIZE:
        raise UserError(
          f'config.data.{key} is {data[key]}: as a multiple of image_size it'
          f' must be more than 0, and {_MOST_RESIZE} at most'
        )
    elif data[key] is not None and not isinstance(data[key], str):
      config_lib.pair(data[key], f'data.{key}')
  _check_resize('data.resize', geometry.train_crop(config), data)
  _check_resize('data.eval_resize', geometry.eval_crop(config), data)


def _check_resize(
  key: str, crop: geometry.Crop, data: ml_collections.ConfigDict
) -> None:
  """Checks that the crop fits into the image, resized as the key says."""
  value, bits = data[key.removeprefix('data.')], data.bits or 8
  fits_channels = np.size(crop.fill) in (1, data.channels)
  if crop.border and not (fits_channels and geometry.is_fill(crop.fill, bits)):
    raise UserError(
      f'config.{key} is {value!r}: its border takes one value, or one for each'
      f' of config.data.channels={data.channels}, from 0 to {2**bits - 1}'
    )
  if crop.resize is None or crop.kind in ('random_resized', 'scaled'):
    return
  size = geometry.frame_crop(crop).size
  height, width = config_lib.pair(crop.resize, key)
  if isinstance(crop.resize, int):  # the short side alone
    height = width = crop.resize + max(size) - min(size)
  pad = 2 * crop.pad
  if height + pad < size[0] or width + pad < size[1]:
    least: Any = tuple(side - pad for side in size)
    if isinstance(crop.resize, int):
      least = min(least)
    remedy = f'{least} or more, or config.data.image_size to less'
    if isinstance(value, float):  # a multiple of image_size
      remedy = '1.0 or more'
    raise UserError(
      f'config.{key} is {value}: too small to cut'
      f' config.data.image_size={crop.size} from it: set config.{key} to'
      f' {remedy}'
    )
