"""Cuts scans of different sizes, and their maps, on the host.

In comments: [D, H, W] places of a scan.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import input_kinds
from vit_jax.data.base import Example
from vit_jax.data.host import images


class VolumeFiller(images.ImageFiller):
  """Cuts volumes and their maps into rows of a batch."""

  def __call__(self, example: Example, rows: list[int]) -> None:
    """Cuts a scan, of a size of its own, and its maps; or pads them."""
    maker = self.maker
    if cast(input_kinds.Volume, maker.image).fixed:
      super().__call__(example, rows)
      return
    scan = maker.levels.keep(example.values['image'], example.origin)
    scan_size, size = scan.shape[:-1], self.batch['image'].shape[1:-1]
    maps = {
      name: self.labels(example, name, scan_size) for name in maker.map_sizes
    }
    places = None
    if maps and maker.foreground and not maker.in_order:
      name, labels = next(iter(maps.items()))
      is_foreground = (labels != 0) & (labels != self.maps[name].ignore)
      places = np.argwhere(is_foreground)  # [places, 3]
      if not len(places):
        raise UserError(
          f'{example.feature_origin(name)} has no place of a class other than'
          ' the first, around which config.augment.volume.foreground cuts'
          ' crops: mend it, leave it out, or set that to 0'
        )
    # A side that is longer than that of the scan begins at 0.
    free = np.maximum(np.subtract(scan_size, size), 0)
    for i in rows:
      at = np.zeros(3, np.int64)
      if not maker.in_order:
        rng = np.random.default_rng(self.key(i))
        at = rng.integers(0, free, endpoint=True)
        if places is not None and rng.uniform() < maker.foreground:
          # In the middle, or as near to it as the border allows.
          place = places[rng.integers(len(places))]
          at = np.clip(place - np.floor_divide(size, 2), 0, free)
      first = at.tolist()
      self.batch['image'][i] = _cut(scan, first, size, 0)
      for name, labels in maps.items():
        ignore = self.maps[name].ignore
        self.batch[name][i] = _cut(labels, first, size, ignore)


def _cut(
  values: np.ndarray, first: Sequence[int], size: Sequence[int], fill: int
) -> np.ndarray:
  """Returns a crop [*size, ...] of [D, H, W, ...], filled behind its end."""
  ends = zip(first, size, strict=True)
  part = values[tuple(slice(i, i + n) for i, n in ends)]
  missing = [(0, n - m) for n, m in zip(size, part.shape, strict=False)]
  missing += [(0, 0)] * (values.ndim - len(missing))
  return np.pad(part, missing, constant_values=fill)
