"""Maps stored values to [0, 1], before mean and std are applied.

    bits     bits of each value that are kept until then, 8 or 16
    window   (low, high): the stored values that become 0 and 1

8-bit images are uint8 and 16-bit images uint16 until the device normalises
them. Nothing here needs JAX.
"""

import dataclasses
import functools
import re
from typing import Any

from absl import logging
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import base

# Rounded division by 257: 65,535 becomes 255.
_TO_8_BITS = ((np.arange(2**16) + 128) // 257).astype(np.uint8)

_NUMBER = r'\s*(\d{1,3}(?:\.\d*)?|\.\d+)\s*'
_PERCENTILES = re.compile(rf'percentiles\({_NUMBER},{_NUMBER}\)')


@dataclasses.dataclass(frozen=True)
class Levels:
  """Bits of stored values that are kept, and their scaling to [0, 1]."""

  bits: int = 8  # bits of a value in the batches sent to the device, 8 or 16
  # Stored values that become 0 and 1; values outside are clipped. None: the
  # range of the type, 0 to 255 or 0 to 65,535, which alpha always has.
  window: tuple[float, float] | None = None
  # Whether a fourth channel is alpha; that of a volume is not.
  has_alpha: bool = True

  @property
  def dtype(self) -> np.dtype:
    """Type of images in a batch: uint8 or uint16."""
    return np.dtype(np.uint16 if self.bits == 16 else np.uint8)

  @property
  def is_plain(self) -> bool:
    """Whether scaled values are multiples of 1 / 255."""
    return self.bits == 8 and self.window is None

  def keep(self, pixels: np.ndarray, origin: str) -> np.ndarray:
    """Returns uint8 or uint16 pixels with `bits` bits; others as they are.

    A window must be for as many bits as the pixels have.
    """
    if pixels.dtype == self.dtype:
      return pixels
    if self.window is not None:
      low, high = self.window
      raise UserError(
        f'{origin} has {8 * pixels.dtype.itemsize} bits, and the window of'
        f' intensities from {low:g} to {high:g} is for images of {self.bits}:'
        ' bring such images, or train with config.data.intensity=type'
      )
    if pixels.dtype == np.uint8:
      return pixels.astype(np.uint16) * np.uint16(257)
    if pixels.dtype != np.uint16:  # of an own source
      return pixels
    _say_reduced()
    return _TO_8_BITS[pixels]

  def scale(self, images: Any) -> Any:
    """Returns images [..., C] of NumPy or JAX as float32, in [0, 1]."""
    images = images.astype(np.float32)
    most = np.float32(2**self.bits - 1)
    if self.window is None:
      return images / most
    low, high = (np.full(images.shape[-1], x, np.float32) for x in self.window)
    if len(low) == 4 and self.has_alpha:
      low[3], high[3] = 0, most
    return ((images - low) / (high - low)).clip(0, 1)


EIGHT_BITS = Levels()


def from_config(config: ml_collections.ConfigDict) -> Levels:
  """Returns the levels of a config that `fill` completed."""
  data = config.data
  window = data.intensity
  if percentiles(window):
    window = tuple(data.intensity_window) or 'type'
  return Levels(
    data.bits or 8,
    None if window == 'type' else tuple(window),
    has_alpha=len(config_lib.sides(data.image_size)) == 2,
  )


def fill(
  config: ml_collections.ConfigDict, source: base.Source, resumes: bool = False
) -> None:
  """Sets `data.bits` and `data.intensity_window` where they are open.

  The config of a run that is resumed was filled when it began; one without bits
  is from an older version, which kept 8, and stays at 8.
  """
  data = config.data
  if data.bits is None:
    data.bits = 8 if resumes else source.bits()
  if data.bits == 16 or data.intensity != 'type':
    config_lib.wing('vit_jax.data.intensity:fill')(config, source, resumes)


def percentiles(intensity: Any) -> tuple[float, float] | None:
  """Returns the numbers in 'percentiles(0.5,99.5)', None for anything else."""
  if not isinstance(intensity, str):
    return None
  match = _PERCENTILES.fullmatch(intensity)
  return (float(match[1]), float(match[2])) if match else None


def is_window(value: Any, least: float, most: float) -> bool:
  """Whether this is 'type', percentiles, or (low, high) within limits."""
  if isinstance(value, str):
    low, high = percentiles(value) or (0, 0)
    return value == 'type' or 0 <= low < high <= 100
  is_pair = isinstance(value, tuple | list) and len(value) == 2
  if not is_pair or any(type(x) not in (int, float) for x in value):
    return False
  return least <= value[0] < value[1] <= most  # of NaN, nothing is true


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.data.intensity` and what goes with it."""
  data = config.data
  if data.bits not in (None, 8, 16):
    raise UserError(f'config.data.bits is {data.bits}: choose 8 or 16')
  if data.intensity_window and percentiles(data.intensity) is None:
    raise UserError(
      'config.data.intensity_window is what percentiles come to: set'
      ' config.data.intensity alone'
    )
  windows = {'intensity': data.intensity}
  if data.intensity_window:
    windows['intensity_window'] = tuple(data.intensity_window)  # no text
  for key, window in windows.items():
    if not is_window(window, 0, 65535):
      raise UserError(
        f"config.data.{key} is {data[key]!r}: write 'type' (the range of the"
        " stored type), 'percentiles(0.5,99.5)' of the training split, or (low,"
        ' high) in stored units, from 0 to 65535'
      )


@functools.cache  # once
def _say_reduced() -> None:
  logging.warning(
    'warning: some images have 16 bits: only the upper 8 are kept, since the'
    ' model was trained with config.data.bits=8; to use all 16, train with'
    ' --config.data.bits=16'
  )
