"""Images of 8 bits for a model of 16, and the other way round."""

import functools

from absl import logging
import numpy as np

from vit_jax.config import UserError
from vit_jax.data.host.levels import Levels

# Rounded division by 257: 65,535 becomes 255.
_TO_8_BITS = ((np.arange(2**16) + 128) // 257).astype(np.uint8)


def converted(levels: Levels, pixels: np.ndarray, origin: str) -> np.ndarray:
  """Returns pixels of other bits than `levels` keep, as `Levels.keep`."""
  if levels.window is not None:
    low, high = levels.window
    raise UserError(
      f'{origin} has {8 * pixels.dtype.itemsize} bits, and the window of'
      f' intensities from {low:g} to {high:g} is for images of {levels.bits}:'
      ' bring such images, or train with config.data.intensity=type'
    )
  if pixels.dtype == np.uint8:
    return pixels.astype(np.uint16) * np.uint16(257)
  if pixels.dtype != np.uint16:  # of an own source
    return pixels
  say_reduced()
  return _TO_8_BITS[pixels]


@functools.cache  # once
def say_reduced() -> None:
  """Warns that the lower bits of images are dropped."""
  logging.warning(
    'warning: some images have 16 bits: only the upper 8 are kept, since the'
    ' model was trained with config.data.bits=8; to use all 16, train with'
    ' --config.data.bits=16'
  )
