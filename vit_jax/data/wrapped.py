"""Splits that are made from another one."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features as features_lib
from vit_jax.data import target_kinds


class WrappedSource(base.Source):
  """A split made from another: with some of its examples, or other values.

  Attributes:
    source: The other split.
  """

  def __init__(
    self,
    source: base.Source,
    facts: Iterable[str],
    *,
    features: features_lib.Features | None = None,
    rows: np.ndarray | None = None,
    values: Callable[[base.Example], Mapping[str, Any]] | None = None,
  ):
    """Wraps a split, which `facts` tell from the other in the fingerprint.

    `features` replace those of the other; `rows`, int [N], are positions in it;
    and `values` returns values that an example has in place of its own.
    """
    self.source, self._facts, self._values = source, tuple(facts), values
    self.features = source.features if features is None else features
    self._rows = rows

  def __len__(self) -> int:
    return len(self.source if self._rows is None else self._rows)

  def row(self, position: int) -> int:
    """Returns the position of an example in the other split."""
    return position if self._rows is None else int(self._rows[position])

  def read(self, position: int) -> base.Example:
    """Returns an example, as it is stored, but for values that replace its."""
    example = self.source.read(self.row(position))
    if self._values is None:
      return example
    values = {**example.values, **self._values(example)}
    return dataclasses.replace(example, values=values)

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
    if self._values is not None:
      return super().captions(position)
    return self.source.captions(self.row(position))

  def check_targets(self, positions: Iterable[int]) -> None:
    """Checks the targets of examples."""
    self.source.check_targets(map(self.row, positions))

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    if self.features[name] == self.source.features.get(name):
      try:
        column = self.source.column(name)
        return column if self._rows is None else column[self._rows]
      except UserError:  # perhaps of an example that is left out
        if self._rows is None:
          raise
    return super().column(name)

  def fingerprint(self) -> str:
    """Returns a digest of the other split's fingerprint and of the facts."""
    return base.digest([self.source.fingerprint(), *self._facts])


def relabel(
  source: base.Source, name: str, classes: Sequence[str]
) -> WrappedSource:
  """Returns a split whose MultiLabel of a name has the classes of a model."""
  source_classes = source.features[name].names
  if missing := [x for x in source_classes if x not in classes]:
    raise UserError(
      f'the model has not all classes of the data: of the data alone are'
      f' {join_first(missing)}; of the model are {join_first(classes)}. Leave'
      ' examples of other classes out'
    )
  positions = [list(classes).index(x) for x in source_classes]
  feature = target_kinds.MultiLabel(tuple(classes))
  return WrappedSource(
    source,
    classes,
    features={**source.features, name: feature},
    values=functools.partial(_relabelled, name, positions),
  )


def _relabelled(
  name: str, positions: Sequence[int], example: base.Example
) -> dict[str, list[int]]:
  return {name: [positions[i] for i in example.values[name]]}
