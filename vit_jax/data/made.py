"""Sources whose examples are made when they are read.

An example is a pure function of (seed, split, position), so nothing is stored.
"""

import abc
from collections.abc import Mapping
from typing import Any
from typing import ClassVar

import numpy as np

from vit_jax.data import base
from vit_jax.data import splits


class MadeSource(base.Source):
  """The examples of a split, 'train' or 'test'.

  Attributes:
    kind: What an example is called, in errors.
    sizes: Number of examples in each split.
  """

  kind: ClassVar[str]
  sizes: ClassVar[Mapping[str, int]]

  def __init__(self, split: str, name: str, how: object, seed: int):
    """Selects examples of the data `name`; `how` and `seed` define them.

    Raises:
      UserError: There is no such split, or it is empty.
    """
    self._seed, self._facts = seed, [name, str(how), str(seed)]
    aliases = {'val': 'test'}
    self._selection = splits.Selection(split, self.sizes, name, aliases)

  @abc.abstractmethod
  def values(
    self, split: str, row: int, rng: np.random.Generator
  ) -> dict[str, Any]:
    """Makes the values of the example in a row of a whole split."""

  def __len__(self) -> int:
    return len(self._selection)

  def read(self, position: int) -> base.Example:
    """Returns an example, made here."""
    split, row, index = self._selection.locate(position)
    key = self._seed, [*self.sizes].index(split), row
    values = self.values(split, row, np.random.default_rng(key))
    return base.Example(values, index, f'{self.kind} {row} of {split}')

  def id(self, position: int) -> str:
    """Returns the name of an example, as 'test/7'."""
    split, row, _ = self._selection.locate(position)
    return f'{split}/{row}'

  def fingerprint(self) -> str:
    """Returns a digest of all that the examples depend on."""
    ranges = [str(term) for term in self._selection.ranges]
    return base.digest([*self._facts, *ranges])
