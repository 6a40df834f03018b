"""The digits that come with scikit-learn: 1,797 grey images of 8x8 pixels."""

import importlib.util
import pathlib

import ml_collections
import numpy as np

from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import splits

_LEVELS = 16  # highest value of a stored pixel


class DigitsSource(base.ArraySource):
  """The digits of a split, all in memory.

  The only split is 'train', in an order that mixes the classes. Evaluate on a
  slice of it.
  """

  def __init__(self, split: str, channels: int):
    """Reads the digits; 3 channels repeat the grey, 4 have an opaque alpha."""
    images, labels = _read()
    grey = np.round(images * (255 / _LEVELS)).astype(np.uint8)
    # A fixed order by hash, like that of a folder's files.
    numbers = range(len(grey))
    order = np.array(sorted(numbers, key=lambda i: base.hash_order(str(i))))
    selection = splits.Selection(split, {'train': len(grey)}, 'digits')
    chosen = [selection.locate(i) for i in range(len(selection))]
    rows = order[[row for _, row, _ in chosen]]
    images = np.repeat(grey[rows][..., None], min(channels, 3), axis=-1)
    if channels == 4:
      opaque = np.full_like(images[..., :1], 255)
      images = np.concatenate([images, opaque], axis=-1)
    super().__init__(
      {'image': images, 'label': labels[rows]},
      np.array([index for _, _, index in chosen]),
      {'label': features.Label(tuple('0123456789'))},
    )

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, split: str
  ) -> 'DigitsSource':
    """Returns the digits of a split with `data.channels` channels."""
    return cls(split, config.data.channels)


def _read() -> tuple[np.ndarray, np.ndarray]:
  """Returns the pixels [1797, 8, 8], 0 to 16, and the digits [1797].

  This reads the file of `sklearn.datasets.load_digits` itself: the import would
  take a second, a fifth of the time to the first step.
  """
  package = importlib.util.find_spec('sklearn')
  assert package is not None and package.submodule_search_locations
  root = pathlib.Path(package.submodule_search_locations[0])
  table = np.loadtxt(root / 'datasets/data/digits.csv.gz', delimiter=',')
  return table[:, :-1].reshape(-1, 8, 8), table[:, -1]
