"""Fills batches with images that files hold, and with their maps."""

from collections.abc import Callable
import itertools

import numpy as np

from vit_jax import config as config_lib
from vit_jax.data import features
from vit_jax.data.base import Example
from vit_jax.data.host import batches
from vit_jax.data.host import geometry
from vit_jax.data.host import transforms

_READ_MAP = 'vit_jax.data.host.maps:read'  # few data have maps


class ImageFiller:
  """Decodes examples into rows of a batch, with a new crop for each row."""

  def __init__(
    self, maker: batches.BatchMaker, draws: np.ndarray, batch: batches.Batch
  ):
    self.maker, self.batch, self._draws = maker, batch, draws
    self.maps = features.maps(maker.source.features)  # kinds, by name

  def key(self, row: int) -> tuple[int, ...]:
    """Returns the key of the random numbers of a row's crop."""
    return self.maker.crop_key(int(self._draws[row]))

  def __call__(self, example: Example, rows: list[int]) -> None:
    """Fills rows with the image of an example and its maps."""
    maker = self.maker
    if maker.stored is None:
      self.fill_crops(example, rows)
      return
    check_array(example, len(maker.stored) + 1)
    self.batch['image'][rows] = transforms.decode_whole(  # the device crops
      example.image, maker.stored, maker.channels, example.origin, maker.levels
    )
    for name in maker.map_sizes:
      self.batch[name][rows] = self.labels(example, name, maker.stored)

  def fill_crops(self, example: Example, rows: list[int]) -> None:
    """Crops an image, of a size of its own, and its maps."""
    maker = self.maker
    check_array(example, 3)
    image = transforms.StoredImage(
      example.image, maker.channels, example.origin, maker.levels
    )
    crops = [
      crop
      for view in maker.views.values()
      for crop in [view.crop] * (view.count or 1)
    ]
    for row in rows:
      key = self.key(row)
      rngs = [  # the first crop's key is the same with and without other crops
        np.random.default_rng((*key, i) if i else key)
        for i in range(len(crops))
      ]
      cut = iter(image.crops(list(zip(crops, rngs, strict=True))))
      for name, view in maker.views.items():
        several = list(itertools.islice(cut, view.count or 1))
        self.batch[name][row] = several if view.count else several[0]
    for name in maker.map_sizes:
      labels = self.labels(example, name, image.size)[..., None]
      crop = geometry.for_map(crops[0], self.maps[name].ignore)
      for row in rows:
        rng = np.random.default_rng(self.key(row))
        self.batch[name][row] = transforms.transform(labels, 1, crop, rng)[
          ..., 0
        ]

  def labels(
    self, example: Example, name: str, size: tuple[int, ...]
  ) -> np.ndarray:
    """Returns a map of classes [h, w], of the size of its image."""
    read: Callable[..., np.ndarray] = config_lib.wing(_READ_MAP)
    return read(example, name, self.maps[name], size)


def check_array(example: Example, axes: int) -> None:
  """Raises a UserError if an own source returns an array that is no image."""
  image = example.image
  if isinstance(image, bytes):
    return
  if image.ndim not in (2, axes) or image.dtype.kind not in 'biu':
    raise config_lib.UserError(
      f'{example.origin}: the image is {image.dtype} of the shape'
      f' {image.shape}: it must be uint8 or uint16 [H, W, C], black at 0 and'
      ' white at 255 or 65535'
    )
