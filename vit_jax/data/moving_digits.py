"""Videos of a moving digit, labelled by its direction.

One of scikit-learn's digits moves on noise in one of eight directions, and
comes back at the other side, so that all places are equally likely in each
frame: a single frame does not tell the direction. No digit of test is in train.
In comments: T frames, H, W sides of a frame.
"""

from typing import Any
from typing import ClassVar

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data import input_kinds
from vit_jax.data import made

Size = tuple[int, ...]

# Directions with their steps (down, right).
_STEPS = {
  'right': (0, 1),
  'down_right': (1, 1),
  'down': (1, 0),
  'down_left': (1, -1),
  'left': (0, -1),
  'up_left': (-1, -1),
  'up': (-1, 0),
  'up_right': (-1, 1),
}
CLASSES = tuple(_STEPS)
SIZE: Size = (10, 24, 24)  # unless the config has data.source_size
_SPEEDS = (1, 2)  # least and most pixels from one frame to the next
_NOISE = 12.0  # standard deviation of a pixel's noise, in grey levels
_GROUND = 40.0  # grey level of the background


class MovingDigitsSource(made.MadeSource):
  """The videos of a split."""

  kind = 'video'
  sizes: ClassVar = {'train': 8_000, 'test': 1_000}

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    size, video = SIZE, config.data.video
    if config.data.source_size is not None:
      size = config_lib.sides(config.data.source_size, 'data.source_size')
    if len(size) != 3 or min(size[1:]) < 8:
      raise UserError(
        f'config.data.source_size is {size}, but moving digits are videos of'
        ' at least 8 x 8 pixels: write (frames, height, width)'
      )
    self._size = (size[0], size[1], size[2])
    super().__init__(split, 'moving_digits', self._size)
    self.features = {
      'image': input_kinds.Video(self._size, 1, video.stride, video.short),
      'label': features.Label(CLASSES),
    }
    self._digits = made.digits_in_two()

  def values(
    self, split: str, row: int, rng: np.random.Generator
  ) -> dict[str, Any]:
    """Returns a video and the number of its direction."""
    label, (images, _) = row % len(CLASSES), self._digits[split]
    video = make(images, CLASSES[label], self._size, rng)
    return {'image': video, 'label': label}


def make(
  images: np.ndarray, direction: str, size: Size, rng: np.random.Generator
) -> np.ndarray:
  """Returns a video, uint8 [T, H, W, 1], of a digit of `images`, [N, 8, 8]."""
  frames, height, width = size
  digit = images[rng.integers(len(images))].astype(np.float64)
  speed = rng.integers(*_SPEEDS, endpoint=True)
  top, left = rng.integers(height), rng.integers(width)
  down, right = _STEPS[direction]
  canvas = _GROUND + rng.normal(0, _NOISE, size)
  for t in range(frames):
    rows = (top + t * speed * down + np.arange(8)) % height
    columns = (left + t * speed * right + np.arange(8)) % width
    ink = digit / 255 * (255 - _GROUND)
    canvas[t][np.ix_(rows, columns)] += ink
  return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)[..., None]
