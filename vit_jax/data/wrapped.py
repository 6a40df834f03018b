"""Splits that are made from another one."""

from collections.abc import Iterable
from collections.abc import Sequence

import numpy as np

from vit_jax.data import base


class WrappedSource(base.Source):
  """A split made from another, which it resembles; a subclass changes it.

  Attributes:
    source: The other split.
  """

  def __init__(self, source: base.Source):
    """Wraps a split."""
    self.source = source
    self.features = source.features

  def row(self, position: int) -> int:
    """Returns the position of an example in the other split."""
    return position

  def __len__(self) -> int:
    return len(self.source)

  def read(self, position: int) -> base.Example:
    """Returns an example, as it is stored."""
    return self.source.read(self.row(position))

  def file(self, position: int) -> str | None:
    """Returns the path of an example's file, None where it has none."""
    return self.source.file(self.row(position))

  def id(self, position: int) -> str:
    """Returns a name of an example that does not depend on the slice."""
    return self.source.id(self.row(position))

  def bits(self) -> int:
    """Returns the bits of a stored value, 8 or 16."""
    return self.source.bits()

  def captions(self, position: int) -> Sequence[str]:
    """Returns the captions of an example."""
    return self.source.captions(self.row(position))

  def check_targets(self, positions: Iterable[int]) -> None:
    """Checks the targets of examples."""
    self.source.check_targets(map(self.row, positions))

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    return self.source.column(name)
