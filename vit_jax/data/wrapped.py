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


class WrappedSource(base.Source):
  """A split made from another, with its examples but other features.

  Captions and columns of it read no image, where the other's read none.

  Attributes:
    source: The other split.
  """

  def __init__(
    self,
    source: base.Source,
    facts: Iterable[str],
    features: features_lib.Features | None = None,
  ):
    """Wraps a split, which `facts` tell from the other in the fingerprint.

    Without `features` it has the other's.
    """
    self.source, self._facts = source, tuple(facts)
    self.features = source.features if features is None else features

  def __len__(self) -> int:
    return len(self.source)

  def row(self, position: int) -> int:
    """Returns the position of an example in the other split."""
    return position

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

  @property
  def holds_columns(self) -> bool:
    """Whether the other split holds columns."""
    return self.source.holds_columns

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    if self.features[name] != self.source.features.get(name):
      return super().column(name)
    return self.source.column(name)

  def fingerprint(self) -> str:
    """Returns a digest of the other split's fingerprint and of the facts."""
    return base.digest([self.source.fingerprint(), *self._facts])


class SelectedSource(WrappedSource):
  """Some of the examples of another split."""

  def __init__(
    self, source: base.Source, facts: Iterable[str], rows: np.ndarray
  ):
    """Selects positions in the other split, int [N]."""
    super().__init__(source, facts)
    self._rows = rows

  def __len__(self) -> int:
    return len(self._rows)

  def row(self, position: int) -> int:
    """Returns the position of an example in the other split."""
    return int(self._rows[position])

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    try:
      return self.source.column(name)[self._rows]
    except UserError:  # perhaps of an example that is left out
      return base.Source.column(self, name)


class DerivedSource(WrappedSource):
  """Examples of another split with a value that is made of another value."""

  def __init__(
    self,
    source: base.Source,
    facts: Iterable[str],
    features: features_lib.Features,
    name: str,
    origin: str,
    derive: Callable[[Any], Any],
  ):
    """Gives examples a value of the feature `name` in place of their own.

    `derive` makes it of the value of `origin`, a Label or a MultiLabel, as that
    is stored.
    """
    super().__init__(source, facts, features)
    self._name, self._origin, self._derive = name, origin, derive

  def read(self, position: int) -> base.Example:
    """Returns an example, as it is stored, but for the value."""
    example = self.source.read(position)
    value = self._derive(example.values[self._origin])
    values = {**example.values, self._name: value}
    return dataclasses.replace(example, values=values)

  def captions(self, position: int) -> Sequence[str]:
    """Returns the captions of an example."""
    if self._name != 'text':
      return self.source.captions(position)
    if self._all_captions is None:
      return base.Source.captions(self, position)
    return self._all_captions[position]

  @functools.cached_property
  def _all_captions(self) -> list[Any] | None:
    """The captions of all examples; None if each is read alone.

    A column that a source does not hold would be read whole for one caption,
    and a wrong label concerns its example alone.
    """
    if not self.holds_columns:
      return None
    try:
      return self._values
    except UserError:
      return None

  @functools.cached_property
  def _values(self) -> list[Any]:
    """The derived value of all examples, in order."""
    column = self.source.column(self._origin)
    # Of classes that are present the positions, as a source has them.
    stored = (
      column.tolist() if column.ndim == 1 else map(np.flatnonzero, column)
    )
    return [self._derive(x) for x in stored]

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    if name != self._name:
      return super().column(name)
    target = features_lib.targets(self.features)[name]
    return np.stack([target.encode(x, name) for x in self._values])


def relabel(
  source: base.Source, name: str, classes: Sequence[str]
) -> DerivedSource:
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
  features = {**source.features, name: feature}
  derive = functools.partial(_model_positions, positions)
  return DerivedSource(source, classes, features, name, name, derive)


def _model_positions(
  positions: Sequence[int], present: Iterable[int]
) -> list[int]:
  return [positions[i] for i in present]
