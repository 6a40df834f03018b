"""Intensities of a dataset: bits, percentiles and unused range."""

import dataclasses
from typing import Any

from absl import logging
import ml_collections
import numpy as np

from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import input_kinds
from vit_jax.data import stored as stored_lib
from vit_jax.data import value_window
from vit_jax.data.host import clips
from vit_jax.data.host import decode
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host import threads

SUGGESTED = (0.5, 99.5)  # percentiles
_SAMPLE = 256  # maximum number of images to compute percentiles from
_FEW = 64  # maximum number of images to check the used range on


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.data.intensity` and its measured window."""
  intensity, window = config.data.intensity, config.data.intensity_window
  value_window.INTENSITY.check(intensity)
  if not window:
    return
  if value_window.INTENSITY.percentiles(intensity) is None:
    raise UserError(
      'config.data.intensity_window is what percentiles come to: set'
      ' config.data.intensity alone'
    )
  value_window.MEASURED.check_pair(window)


def fill(
  config: ml_collections.ConfigDict, source: base.Source, resumes: bool = False
) -> None:
  """Sets `data.intensity_window` where it is open, and checks the range.

  Percentiles come from at most 256 images of the training split, drawn with a
  fixed seed, so that they depend on the split alone.
  """
  data, most = config.data, 2**config.data.bits - 1
  if not isinstance(data.intensity, str) and data.intensity[1] > most:
    raise UserError(
      f'config.data.intensity is {tuple(data.intensity)}, but the images of'
      f' {data.split} have {data.bits} bits, 0 to {most}: set'
      ' --config.data.intensity=type, or bring images of 16 bits'
    )
  part = value_window.INTENSITY.percentiles(data.intensity)
  if part is not None and not data.intensity_window:
    value_counts = count_values(
      source, data.bits, data.channels, _SAMPLE, strict=True
    )
    low, high = (value_counts.percentile(x) for x in part)
    if low >= high:
      raise UserError(
        f'config.data.intensity={data.intensity}: both percentiles of'
        f' {data.split} are {low}; give (low, high) in stored units'
      )
    logging.info(
      'config.data.intensity=%s: of %d images of %s these are %d and %d',
      *(data.intensity, value_counts.images, data.split, low, high),
    )
    data.intensity_window = low, high
  if data.bits == 16 and data.intensity == 'type' and not resumes:
    value_counts = count_values(source, 16, data.channels, _FEW)
    if problem := value_counts.unused():
      logging.warning('warning: %s: %s', data.split, problem)


@dataclasses.dataclass(frozen=True)
class Histogram:
  """Number of times that each value occurs."""

  counts: np.ndarray  # int64 [256 or 65536], by value
  images: int  # number of images that were counted

  def percentile(self, part: float) -> int:
    """Returns the least value with `part` percent of the values at or below."""
    rank = part / 100 * self.counts.sum()
    return int(np.searchsorted(np.cumsum(self.counts), max(rank, 1)))

  def unused(self) -> str:
    """Returns a warning if less than a quarter of the range is used, or ''."""
    low, high = (self.percentile(x) for x in SUGGESTED)
    range_ = len(self.counts)
    if high - low >= range_ / 4:
      return ''
    same_bits = 2 ** max(high.bit_length(), 1) - 1  # as many as of `high`
    return (
      f'99% of the values of {self.images} images of 16 bits are from {low} to'
      f' {high}, of 0 to {range_ - 1}, so that the model sees little contrast:'
      " try --config.data.intensity='percentiles(0.5, 99.5)', or the range of"
      f" the camera, as --config.data.intensity='(0, {same_bits})'"
    )


def count_values(
  source: base.Source, bits: int, channels: int, most: int, strict: bool = False
) -> Histogram:
  """Counts values of images but for alpha; strict: all must have these bits."""
  levels = levels_lib.Levels(bits, (0, 2**bits - 1) if strict else None)
  is_volume = isinstance(source.features['image'], input_kinds.Volume)

  def count(position: int) -> np.ndarray:
    example = source.read(position)
    image: Any = example.image
    if isinstance(image, bytes):
      image = decode.decode(
        image, channels, origin=example.origin, levels=levels
      )
    elif isinstance(image, clips.Frames):
      image = image.read_all(example.origin)
    pixels = levels.keep(image, example.origin)
    return histogram(pixels if is_volume else pixels[..., :3], bits)

  total = np.zeros(2**bits, np.int64)
  positions = stored_lib.sample(source, most)
  for counts in threads.in_threads(count, positions):
    total += counts
  return Histogram(total, len(positions))


def histogram(pixels: np.ndarray, bits: int) -> np.ndarray:
  """Returns the number of times that each value occurs, int64 [2**bits]."""
  return np.bincount(pixels.ravel(), minlength=2**bits)
