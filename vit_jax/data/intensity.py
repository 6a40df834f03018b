"""What the data say of their intensities: bits, percentiles, unused range."""

from collections.abc import Sequence
import concurrent.futures
import dataclasses

from absl import logging
import ml_collections
import numpy as np

from vit_jax.config import UserError
from vit_jax.data.base import Source
from vit_jax.data.host import batches
from vit_jax.data.host import decode
from vit_jax.data.host import levels as levels_lib

SUGGESTED = (0.5, 99.5)  # percentiles
_SAMPLE = 256  # images that percentiles are of, at most
_FEW = 64  # that tell whether the range is used


def fill(
  config: ml_collections.ConfigDict, source: Source, resumes: bool = False
) -> None:
  """Sets `data.bits` and `data.intensity_window` where they are open.

  Percentiles are those of the values of at most 256 images of the training
  split, drawn with a seed of their own: the split alone decides.

  Args:
    config: The full config; is changed.
    source: The training split.
    resumes: Whether a run goes on, whose config was filled when it began. One
      of a version that kept 8 bits goes on with these.

  Raises:
    UserError: An image of the sample cannot be read, or its values are all the
      same.
  """
  data = config.data
  if data.bits is None:
    data.bits = 8 if resumes else source.bits()
  part = levels_lib.percentiles(data.intensity)
  _check_window(config)
  if part is not None and not data.intensity_window:
    found = of_split(source, data.bits, data.channels, _SAMPLE, strict=True)
    low, high = (found.percentile(x) for x in part)
    if low >= high:
      raise UserError(
        f'config.data.intensity={data.intensity}: both percentiles of'
        f' {data.split} are {low}; give (low, high) in stored units'
      )
    data.intensity_window = (low, high)
    logging.info(
      'config.data.intensity=%s: of %d images of %s these are %d and %d',
      *(data.intensity, found.images, data.split, low, high),
    )
  if data.bits == 16 and data.intensity == 'type' and not resumes:
    found = of_split(source, 16, data.channels, _FEW)
    if problem := found.unused():
      logging.warning('warning: %s: %s', data.split, problem)


def _check_window(config: ml_collections.ConfigDict) -> None:
  """Checks that (low, high) lies in the range of the images.

  Raises:
    UserError: It is that of another type.
  """
  data, most = config.data, 2**config.data.bits - 1
  if isinstance(data.intensity, str) or data.intensity[1] <= most:
    return
  raise UserError(
    f'config.data.intensity is {tuple(data.intensity)}, but the images of'
    f' {data.split} have {data.bits} bits, 0 to {most}: set'
    ' --config.data.intensity=type, or bring images of 16 bits'
  )


@dataclasses.dataclass(frozen=True)
class Histogram:
  """How often each value occurs.

  Attributes:
    counts: int64 [256 or 65536], by value.
    images: That were counted.
  """

  counts: np.ndarray
  images: int

  def percentile(self, part: float) -> int:
    """Returns the least value that `part` percent are not above."""
    wanted = part / 100 * self.counts.sum()
    return int(np.searchsorted(np.cumsum(self.counts), max(wanted, 1)))

  def unused(self) -> str:
    """Says that a quarter of the range is not used; '' where it is."""
    low, high = (self.percentile(x) for x in SUGGESTED)
    range_ = len(self.counts)
    if high - low >= range_ / 4:
      return ''
    return (
      f'99% of the values of {self.images} images of 16 bits are from {low} to'
      f' {high}, of 0 to {range_ - 1}, so that the model sees little contrast:'
      " try --config.data.intensity='percentiles(0.5,99.5)', or the range of"
      f" the camera, as --config.data.intensity='(0, {_bits_for(high)})'"
    )


def _bits_for(value: int) -> int:
  """Returns the greatest number of as many bits as a value needs."""
  return 2 ** max(int(value).bit_length(), 1) - 1


def of_split(
  source: Source, bits: int, channels: int, most: int, strict: bool = False
) -> Histogram:
  """Counts the values of some images of a split, alpha left out.

  Args:
    source: The split.
    bits: That are kept of each value.
    channels: That are kept of each image.
    most: Images, which are drawn.
    strict: Whether an image of other bits is refused, whose values would be
      in other units.

  Raises:
    UserError: One cannot be read, or has other bits.
  """
  positions: Sequence[int] = range(len(source))
  if len(positions) > most:
    rng = np.random.default_rng(0)  # not the run's: all runs see one window
    positions = rng.choice(len(source), most, replace=False).tolist()
  levels = levels_lib.Levels(bits, (0, 2**bits - 1) if strict else None)

  def count(position: int) -> np.ndarray:
    example = source.read(position)
    if isinstance(example.image, bytes):
      pixels = decode.decode(
        example.image, channels, where=example.where, levels=levels
      )
    else:
      pixels = levels.keep(example.image, example.where)
    return histogram(pixels[..., :3], bits)

  total = np.zeros(2**bits, np.int64)
  with concurrent.futures.ThreadPoolExecutor(batches.num_cores()) as pool:
    for counts in pool.map(count, positions):
      total += counts
  return Histogram(total, len(positions))


def histogram(pixels: np.ndarray, bits: int) -> np.ndarray:
  """Returns how often each value occurs, int64 [2**bits]."""
  return np.bincount(pixels.ravel(), minlength=2**bits)
