"""A split whose examples have some of several classes that a model knows."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import target_kinds
from vit_jax.data import wrapped


class RelabelledSource(wrapped.WrappedSource):
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
    source_classes = source.features[name].names
    if missing := [x for x in source_classes if x not in classes]:
      raise UserError(
        f'the model has not all classes of the data: of the data alone are'
        f' {join_first(missing)}; of the model are {join_first(classes)}. Leave'
        ' examples of other classes out'
      )
    super().__init__(source)
    self._name = name
    self._positions = [list(classes).index(x) for x in source_classes]
    feature = target_kinds.MultiLabel(tuple(classes))
    self.features = {**source.features, name: feature}

  def read(self, position: int) -> base.Example:
    """Returns an example, as it is stored, with the model's classes."""
    example = self.source.read(position)
    values = dict(example.values)
    values[self._name] = [self._positions[i] for i in values[self._name]]
    return dataclasses.replace(example, values=values)

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    values = self.source.column(name)
    if name != self._name:
      return values
    shape = len(values), len(self.features[name].names)
    result = np.zeros(shape, values.dtype)
    result[:, self._positions] = values
    return result

  def fingerprint(self) -> str:
    """Returns a digest of the split and of the classes."""
    return base.digest([self.source.fingerprint(), *self.classes])
