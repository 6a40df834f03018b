"""A split whose examples have some of several classes that a model knows."""

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses

import numpy as np

from vit_jax.config import some
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import target_kinds


class RelabelledSource(base.Source):
  """A split with the classes of a model in place of its own, by their names."""

  def __init__(self, source: base.Source, name: str, classes: Sequence[str]):
    """Wraps a split.

    Args:
      source: The split.
      name: Name of a `target_kinds.MultiLabel`.
      classes: The classes of the model.

    Raises:
      UserError: They lack a class of the split.
    """
    there = source.features[name].names
    if missing := [x for x in there if x not in classes]:
      raise UserError(
        f'the model has not all classes of the data: of the data alone are'
        f' {some(missing)}; of the model are {some(classes)}. Leave examples of'
        ' other classes out'
      )
    self._source, self._name = source, name
    self._positions = [list(classes).index(x) for x in there]
    feature = target_kinds.MultiLabel(tuple(classes))
    self.features = {**source.features, name: feature}

  def __len__(self) -> int:
    return len(self._source)

  def read(self, position: int) -> base.Example:
    """Returns an example, as it is stored, with the model's classes."""
    example = self._source.read(position)
    values = dict(example.values)
    values[self._name] = [self._positions[i] for i in values[self._name]]
    return dataclasses.replace(example, values=values)

  def file(self, position: int) -> str | None:
    """Returns the path of an example's file, None where it has none."""
    return self._source.file(position)

  def id(self, position: int) -> str:
    """Returns a name of an example that does not depend on the slice."""
    return self._source.id(position)

  def bits(self) -> int:
    """Returns the bits of a stored value, 8 or 16."""
    return self._source.bits()

  def captions(self, position: int) -> Sequence[str]:
    """Returns the captions of an example."""
    return self._source.captions(position)

  def check_targets(self, positions: Iterable[int]) -> None:
    """Checks the targets of examples."""
    self._source.check_targets(positions)

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    values = self._source.column(name)
    if name != self._name:
      return values
    shape = len(values), len(self.features[name].names)
    result = np.zeros(shape, values.dtype)
    result[:, self._positions] = values
    return result

  def fingerprint(self) -> str:
    """Returns a digest of the split and of the classes."""
    return base.digest([self._source.fingerprint(), *self.classes])
