"""Volumes of noisy tubes and spheres, with the class of each place.

A volume is a pure function of (seed, split, position), so nothing is stored.
In comments: D, H, W sides of a volume.
"""

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import splits

CLASSES = ('background', 'tube', 'sphere')
SIZE = (32, 32, 32)  # unless the config has data.source_size
_VOLUMES = {'train': 400, 'test': 40}
_EACH = (1, 2)  # least and most tubes, and as many spheres
_TUBE = (0.05, 0.07)  # radii, as fractions of the volume's shortest side
_SPHERE = (0.17, 0.25)
_BRIGHTER = (50.0, 90.0)  # than the background, in grey levels
_NOISE = 15.0  # standard deviation, in grey levels

Size = tuple[int, ...]


class VolumesSource(base.Source):
  """The volumes of a split, made when they are read."""

  def __init__(self, split: str, size: Size = SIZE, seed: int = 0):
    """Selects volumes.

    Args:
      split: A split specification, of 'train' and 'test'.
      size: (depth, height, width) of a volume.
      seed: Other seeds give other volumes.

    Raises:
      UserError: There is no such split, or it is empty; or the size is not that
        of a volume.
    """
    if len(size) != 3:
      raise UserError(
        f'config.data.source_size is {size}, but volumes have three sides:'
        ' write (depth, height, width)'
      )
    self._size, self._seed = (size[0], size[1], size[2]), seed
    self.features = {
      'image': features.Volume(self._size),
      'map': features.SegmentationMap(CLASSES),
    }
    self._selection = splits.Selection(
      split, _VOLUMES, 'volumes', {'val': 'test'}
    )

  def __len__(self) -> int:
    return len(self._selection)

  def read(self, position: int) -> base.Example:
    """Returns a volume and its map, made here."""
    split, row, index = self._selection.locate(position)
    key = self._seed, [*_VOLUMES].index(split), row
    volume, labels = make(self._size, np.random.default_rng(key))
    values = {'image': volume, 'map': labels}
    return base.Example(values, index, f'volume {row} of {split}')

  def id(self, position: int) -> str:
    """Returns the name of a volume, as 'test/7'."""
    split, row, _ = self._selection.locate(position)
    return f'{split}/{row}'

  def fingerprint(self) -> str:
    """Returns a digest of all that volumes depend on."""
    ranges = [str(term) for term in self._selection.ranges]
    return base.digest(['volumes', str(self._size), str(self._seed), *ranges])


def make(size: Size, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  """Returns a volume, uint8 [D, H, W, 1], and its labels, uint8 [D, H, W].

  Tubes and spheres are equally bright, so that their shapes tell them apart.

  Args:
    size: (D, H, W).
    rng: Random numbers.
  """
  places = np.moveaxis(np.indices(size), 0, -1) + 0.5  # [D, H, W, 3]
  labels, canvas = np.zeros(size, np.uint8), np.full(size, 80.0)
  for label, radii in ((1, _TUBE), (2, _SPHERE)):
    for _ in range(rng.integers(*_EACH, endpoint=True)):
      radius = rng.uniform(*radii) * min(size)
      from_center = places - rng.uniform(0.2, 0.8, 3) * size
      squared = (from_center**2).sum(axis=-1)
      if label == 1:  # the distance from a line
        along = rng.normal(size=3)
        squared -= (from_center @ (along / np.linalg.norm(along))) ** 2
      inside = squared <= radius**2
      labels[inside] = label
      canvas[inside] = 80.0 + rng.uniform(*_BRIGHTER)
  canvas += rng.normal(0, _NOISE, size)
  volume = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
  return volume[..., None], labels
