"""Splits that are made from another one."""

from collections.abc import Callable
from collections.abc import Iterable
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


@dataclasses.dataclass(frozen=True)
class Derived:
  """A value that is made of another one of the same example."""

  name: str  # its feature
  origin: str  # feature of the other one: a Label or a MultiLabel
  value: Callable[[Any], Any]  # makes it of the other one, as that is stored


class WrappedSource(base.Source):
  """A split made from another: with some of its examples, or other values.

  Captions and columns of it read no image, where the other's read none.

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
    derived: Derived | None = None,
  ):
    """Wraps a split, which `facts` tell from the other in the fingerprint.

    `features` replace the other's. `rows`, int [N], are positions in it.
    `derived` is a value that an example has in place of its own.
    """
    self.source, self._facts, self._derived = source, tuple(facts), derived
    self.features = source.features if features is None else features
    self._rows = rows

  def __len__(self) -> int:
    return len(self.source if self._rows is None else self._rows)

  def row(self, position: int) -> int:
    """Returns the position of an example in the other split."""
    return position if self._rows is None else int(self._rows[position])

  def read(self, position: int) -> base.Example:
    """Returns an example, as it is stored, but for a value that is derived."""
    example = self.source.read(self.row(position))
    if (derived := self._derived) is None:
      return example
    value = derived.value(example.values[derived.origin])
    values = {**example.values, derived.name: value}
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
    if self._derived is None or self._derived.name != 'text':
      return self.source.captions(self.row(position))
    captions = self._derived_captions
    return (
      super().captions(position) if captions is None else captions[position]
    )

  @functools.cached_property
  def _derived_captions(self) -> list[Sequence[str]] | None:
    """The derived captions of all examples; None: each is read alone.

    A column that a source does not hold would be read whole for one caption,
    and a wrong label concerns its example alone.
    """
    stored: base.Source = self
    while isinstance(stored, WrappedSource):
      stored = stored.source
    if type(stored).column is base.Source.column:
      return None
    try:
      return self._derived_values
    except UserError:
      return None

  @functools.cached_property
  def _derived_values(self) -> list[Any]:
    """The derived value of all examples, in order."""
    assert self._derived is not None
    column = self._stored_column(self._derived.origin)
    # Of classes that are present the positions, as a source has them.
    values = (
      column.tolist() if column.ndim == 1 else map(np.flatnonzero, column)
    )
    return [self._derived.value(x) for x in values]

  def check_targets(self, positions: Iterable[int]) -> None:
    """Checks the targets of examples."""
    self.source.check_targets(map(self.row, positions))

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    target = features_lib.targets(self.features)[name]
    if self._derived is not None and self._derived.name == name:
      return np.stack([target.encode(x, name) for x in self._derived_values])
    if target != self.source.features.get(name):
      return super().column(name)
    return self._stored_column(name)

  def _stored_column(self, name: str) -> np.ndarray:
    """Returns a target of the other split, of the examples that are here."""
    try:
      column = self.source.column(name)
    except UserError:  # perhaps of an example that is left out
      if self._rows is None:
        raise
      return super().column(name)
    return column if self._rows is None else column[self._rows]

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
    derived=Derived(name, name, functools.partial(_model_positions, positions)),
  )


def _model_positions(
  positions: Sequence[int], present: Iterable[int]
) -> list[int]:
  return [positions[i] for i in present]
