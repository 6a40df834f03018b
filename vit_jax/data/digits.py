"""The digits that come with scikit-learn: 1,797 grey images of 8x8 pixels."""

import hashlib

import numpy as np

from vit_jax.data import base
from vit_jax.data import splits

_LEVELS = 16  # of a stored pixel, besides 0


def open_digits(split: str, channels: int) -> base.ArraySource:
  """Returns the digits of a split, all in memory.

  There is one split, 'train', in an order that mixes the classes: test on a
  slice of it.

  Args:
    split: A split specification.
    channels: Grey is repeated for 3; 4 adds an opaque alpha.

  Raises:
    UserError: There is no such split, or it is empty.
  """
  # Slow to import, and needed for nothing else here.
  from sklearn import datasets

  stored = datasets.load_digits()
  grey = np.round(stored.images * (255 / _LEVELS)).astype(np.uint8)
  order = _order(len(grey))
  selection = splits.Selection(split, {'train': len(grey)}, 'digits')
  chosen = [selection.locate(i) for i in range(len(selection))]
  rows = order[[row for _, row, _ in chosen]]
  images = np.repeat(grey[rows][..., None], min(channels, 3), axis=-1)
  if channels == 4:
    opaque = np.full_like(images[..., :1], 255)
    images = np.concatenate([images, opaque], axis=-1)
  return base.ArraySource(
    images,
    stored.target[rows],
    np.array([index for _, _, index in chosen]),
    tuple(str(name) for name in stored.target_names),
  )


def _order(size: int) -> np.ndarray:
  """Returns a fixed permutation: a hash of the numbers, as folders have."""

  def key(i: int) -> bytes:
    return hashlib.blake2b(str(i).encode(), digest_size=8).digest()

  return np.array(sorted(range(size), key=key))
