"""Scenes of digits on textured backgrounds, with the class of each pixel.

scikit-learn's digits are enlarged, coloured and pasted beside each other over
dark waves and noise. No digit of test is in train.
"""

from typing import Any
from typing import ClassVar

import cv2
import ml_collections
import numpy as np

from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import made
from vit_jax.data import stored as stored_lib
from vit_jax.data import target_kinds
from vit_jax.data.host.geometry import Size

CLASSES = ('background', *map(str, range(10)))
SIZE: Size = (64, 64)  # unless the config has data.source_size
_PASTED = (1, 3)  # least and most digits in a scene
_SIDES = (0.4, 0.6)  # of a digit, as fractions of the scene's short side
_TRIES = 10  # to find a place beside the other digits
_DARK = (0, 100)  # mean grey levels of a background's channels
_BRIGHT = (170, 255)  # of a digit's
_WAVES = 3  # of a background, each with its direction and length
_NOISE = 10.0  # standard deviation of a pixel's noise, in grey levels
_INK = 0.4  # least share of ink where a pixel belongs to a digit


class ScenesSource(made.MadeSource):
  """The scenes of a split."""

  kind = 'scene'
  sizes: ClassVar = {'train': 4_000, 'test': 500}

  def __init__(self, split: str, size: Size = SIZE):
    self.features = {
      'image': features.Image(size),
      'map': target_kinds.SegmentationMap(CLASSES),
    }
    super().__init__(split, 'scenes', size)
    self._size, self._digits = size, made.digits_in_two()

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, split: str
  ) -> base.Source:
    """Returns the scenes of a split with the size `data.source_size`."""
    return cls(split, stored_lib.source_size(config) or SIZE)

  def values(
    self, split: str, row: int, rng: np.random.Generator
  ) -> dict[str, Any]:
    """Returns a scene and its map."""
    del row
    image, labels = make(*self._digits[split], self._size, rng)
    return {'image': image, 'map': labels}


def make(
  images: np.ndarray,
  labels: np.ndarray,
  size: Size,
  rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a scene, uint8 [H, W, 3], and the positions of its classes, [H, W].

  It shows some of the digits, uint8 [N, 8, 8] with labels [N]. `size` is
  (H, W).
  """
  canvas = _background(rng.uniform(*_DARK, 3), size, rng)
  classes = np.zeros(size, np.uint8)
  free = np.ones(size, bool)
  for _ in range(rng.integers(*_PASTED, endpoint=True)):
    chosen = rng.integers(len(images))
    side = min(max(8, round(rng.uniform(*_SIDES) * min(size))), *size)
    place = _place(free, side, rng)
    if place is None:
      continue
    free[place] = False
    digit = images[chosen].astype(np.float32) / 255
    ink = cv2.resize(digit, (side, side), interpolation=cv2.INTER_LINEAR)
    color = rng.uniform(*_BRIGHT, 3)
    canvas[place] += ink[..., None] * (color - canvas[place])
    classes[place][ink > _INK] = 1 + labels[chosen]
  canvas += rng.normal(0, _NOISE, canvas.shape)
  return np.clip(np.rint(canvas), 0, 255).astype(np.uint8), classes


def _background(
  color: np.ndarray, size: Size, rng: np.random.Generator
) -> np.ndarray:
  """Returns waves of a colour, float64 [H, W, 3]."""
  y, x = np.mgrid[: size[0], : size[1]]
  canvas = np.tile(color, (*size, 1))
  for _ in range(_WAVES):
    angle, phase = rng.uniform(0, 2 * np.pi, 2)
    length = rng.uniform(0.1, 1.0) * min(size)  # pixels
    along = np.cos(angle) * x + np.sin(angle) * y
    wave = np.sin(2 * np.pi * along / length + phase)
    canvas += wave[..., None] * rng.uniform(-15, 15, 3)
  return canvas


def _place(
  free: np.ndarray, side: int, rng: np.random.Generator
) -> tuple[slice, slice] | None:
  """Returns a random square of `free`, bool [H, W], in which all is free."""
  for _ in range(_TRIES):
    top, left = (int(rng.integers(n - side + 1)) for n in free.shape)
    place = slice(top, top + side), slice(left, left + side)
    if free[place].all():
      return place
  return None
