"""Sources whose examples are made when they are read.

An example is a pure function of (split, position), so nothing is stored.
"""

import abc
from collections.abc import Mapping
from typing import Any
from typing import ClassVar

import numpy as np

from vit_jax.data import base
from vit_jax.data import digits
from vit_jax.data import stored as stored_lib

_SEED = 0  # of all examples


class MadeSource(stored_lib.Table):
  """The examples of a split, 'train' or 'test'."""

  kind: ClassVar[str]  # what an example is called, in errors
  sizes: ClassVar[Mapping[str, int]]  # number of examples in each split

  def __init__(self, split: str, name: str, facts: object):
    """Selects examples of the data `name`, which `facts` defines."""
    self._facts = [name, str(facts), str(_SEED)]
    rows = {name: range(size) for name, size in self.sizes.items()}
    super().__init__(split, rows, name, {'val': 'test'})

  @abc.abstractmethod
  def values(
    self, split: str, row: int, rng: np.random.Generator
  ) -> dict[str, Any]:
    """Makes the values of the example in a row of a whole split."""

  def example(self, split: str, row: int, index: int) -> base.Example:
    """Returns an example, made here."""
    key = _SEED, [*self.sizes].index(split), row
    values = self.values(split, row, np.random.default_rng(key))
    return base.Example(values, index, f'{self.kind} {row} of {split}')

  def fingerprint(self) -> str:
    """Returns a digest of all that the examples depend on."""
    return base.digest([*self._facts, *map(str, self.selection.ranges)])


def digits_in_two() -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns images [N, 8, 8] and labels [N] in two parts.

  The first 80% are 'train', the others 'test', for data that are made of
  digits. The order is by hash, so that both parts have all classes.
  """
  arrays = digits.DigitsSource('train', channels=1).arrays
  images, labels = arrays['image'][..., 0], arrays['label']
  cut = round(0.8 * len(labels))
  return {
    'train': (images[:cut], labels[:cut]),
    'test': (images[cut:], labels[cut:]),
  }
