"""Volumes of noisy tubes and spheres, with the class of each place.

In comments: D, H, W sides of a volume.
"""

from typing import Any
from typing import ClassVar

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import input_kinds
from vit_jax.data import made
from vit_jax.data import target_kinds

CLASSES = ('background', 'tube', 'sphere')
SIZE = (32, 32, 32)  # unless the config has data.source_size
_COUNTS = (1, 2)  # least and most tubes, and as many spheres
_TUBE = (0.05, 0.07)  # radii, as fractions of the volume's shortest side
_SPHERE = (0.17, 0.25)
_BRIGHTER = (50.0, 90.0)  # than the background, in grey levels
_NOISE = 15.0  # standard deviation, in grey levels

Size = tuple[int, ...]


class VolumesSource(made.MadeSource):
  """The volumes of a split."""

  kind = 'volume'
  sizes: ClassVar = {'train': 400, 'test': 40}

  def __init__(self, split: str, size: Size = SIZE):
    if len(size) != 3:
      raise UserError(
        f'config.data.source_size is {size}, but volumes have three sides:'
        ' write (depth, height, width)'
      )
    self._size = (size[0], size[1], size[2])
    super().__init__(split, 'volumes', self._size)
    self.features = {
      'image': input_kinds.Volume(self._size),
      'map': target_kinds.SegmentationMap(CLASSES),
    }

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, split: str
  ) -> base.Source:
    """Returns the volumes of a split with the sides `data.source_size`."""
    size = config.data.source_size or SIZE
    return cls(split, config_lib.sides(size, 'data.source_size'))

  def values(
    self, split: str, row: int, rng: np.random.Generator
  ) -> dict[str, Any]:
    """Returns a volume and its map."""
    del split, row
    volume, labels = make(self._size, rng)
    return {'image': volume, 'map': labels}


def make(size: Size, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  """Returns a volume, uint8 [D, H, W, 1], and its labels, uint8 [D, H, W].

  Tubes and spheres are equally bright, so that their shapes tell them apart.
  """
  places = np.moveaxis(np.indices(size), 0, -1) + 0.5  # [D, H, W, 3]
  labels, canvas = np.zeros(size, np.uint8), np.full(size, 80.0)
  for label, radii in ((1, _TUBE), (2, _SPHERE)):
    for _ in range(rng.integers(*_COUNTS, endpoint=True)):
      radius = rng.uniform(*radii) * min(size)
      from_center = places - rng.uniform(0.2, 0.8, 3) * size
      squared = (from_center**2).sum(axis=-1)
      if label == 1:  # the distance from a line
        along = rng.normal(size=3)
        squared -= (from_center @ (along / np.linalg.norm(along))) ** 2
      shape_mask = squared <= radius**2
      labels[shape_mask] = label
      canvas[shape_mask] = 80.0 + rng.uniform(*_BRIGHTER)
  canvas += rng.normal(0, _NOISE, size)
  volume = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
  return volume[..., None], labels
