"""Maps stored values to [0, 1], before mean and std are applied.

    bits     bits of each value that are kept until then, 8 or 16
    window   (low, high): the stored values that become 0 and 1

8-bit images are uint8 and 16-bit images uint16 until the device normalises
them. Nothing here needs JAX.
"""

import dataclasses
from typing import Any

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import base


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
    convert = config_lib.wing('vit_jax.data.host.bits:converted')
    converted: np.ndarray = convert(self, pixels, origin)
    return converted

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
  if isinstance(window, str):  # of percentiles `fill` measured it
    window = data.intensity_window
  return Levels(
    data.bits or 8,
    tuple(window) or None,
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


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.data.bits`, and `intensity` where it is set."""
  data = config.data
  if data.bits not in (None, 8, 16):
    raise UserError(f'config.data.bits is {data.bits}: choose 8 or 16')
  if data.intensity != 'type' or data.intensity_window:
    config_lib.wing('vit_jax.data.intensity:check')(config)
