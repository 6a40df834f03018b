"""Sources whose examples are made when they are read.

An example is a pure function of (split, position), so nothing is stored.
"""

import abc
from collections.abc import Mapping
from typing import Any
from typing import ClassVar

import numpy as np

from vit_jax.data import base
from vit_jax.data import splits

_SEED = 0  # of all examples


class MadeSource(base.SelectedSource):
  """The examples of a split, 'train' or 'test'."""

  kind: ClassVar[str]  # what an example is called, in errors
  sizes: ClassVar[Mapping[str, int]]  # number of examples in each split

  def __init__(self, split: str, name: str, facts: object):
    """Selects examples of the data `name`, which `facts` defines."""
    self._facts = [name, str(facts), str(_SEED)]
    aliases = {'val': 'test'}
    self._selection = splits.Selection(split, self.sizes, name, aliases)

  @abc.abstractmethod
  def values(
    self, split: str, row: int, rng: np.random.Generator
  ) -> dict[str, Any]:
    """Makes the values of the example in a row of a whole split."""

  def read(self, position: int) -> base.Example:
    """Returns an example, made here."""
    split, row, index = self._selection.locate(position)
    key = _SEED, [*self.sizes].index(split), row
    values = self.values(split, row, np.random.default_rng(key))
    return base.Example(values, index, f'{self.kind} {row} of {split}')

  def fingerprint(self) -> str:
    """Returns a digest of all that the examples depend on."""
    ranges = [str(term) for term in self._selection.ranges]
    return base.digest([*self._facts, *ranges])
