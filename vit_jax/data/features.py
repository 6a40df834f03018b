"""Kinds of features that examples have: images and targets.

A source declares the features of its examples by name (`Source.features`).
Batches, crops, objectives, evaluations and predictions dispatch on the kind of
a feature, so no layer assumes that there is a label. The usual names are

    image     Image, the model's input
    label     Label, one class
    labels    MultiLabel, several classes at once
    numbers   Number, quantities in their own units
    map       SegmentationMap, the class of each pixel

A batch is a dict of arrays [B, ...] by these names, with `index` and `valid`.
"""

import abc
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import ClassVar

import numpy as np

from vit_jax.config import some
from vit_jax.config import UserError


@dataclasses.dataclass(frozen=True)
class Feature(abc.ABC):
  """A kind of value that each example of a source has."""

  @property
  @abc.abstractmethod
  def names(self) -> tuple[str, ...]:
    """Names of the values: classes, or quantities."""

  def to_dict(self) -> dict[str, Any]:
    """Returns JSON that `from_dict` reads: the kind, and its fields."""
    fields = {
      key: list(value) if isinstance(value, tuple) else value
      for key, value in dataclasses.asdict(self).items()
    }
    return {'kind': type(self).__name__, **fields}


@dataclasses.dataclass(frozen=True)
class Image(Feature):
  """A still image: an encoded file, or uint8 or uint16 [H, W, C].

  Attributes:
    size: (height, width) if all stored images have one size, in which case the
      device crops them; else None.
  """

  size: tuple[int, int] | None = None

  @property
  def names(self) -> tuple[str, ...]:
    """An image has no names."""
    return ()


class Target(Feature):
  """A kind of value that a model learns to predict, of a fixed shape.

  Attributes:
    dtype: Type of a value in a batch.
  """

  dtype: ClassVar[np.dtype]

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of one example's value; by default one number for each name."""
    return (len(self.names),)

  @abc.abstractmethod
  def encode(self, value: Any, where: str) -> np.ndarray:
    """Returns a value as an array of `shape` and `dtype`.

    Args:
      value: Value as a source stores it.
      where: File or record, for error messages.

    Raises:
      UserError: The value does not fit the feature.
    """


@dataclasses.dataclass(frozen=True)
class Label(Target):
  """One class, as its position in `classes`, int32.

  Attributes:
    classes: Their names.
  """

  classes: tuple[str, ...]
  dtype: ClassVar[np.dtype] = np.dtype(np.int32)

  @property
  def names(self) -> tuple[str, ...]:
    """The classes."""
    return self.classes

  @property
  def shape(self) -> tuple[int, ...]:
    """A scalar."""
    return ()

  def encode(self, value: Any, where: str) -> np.ndarray:
    """Returns the position of a class as an array."""
    del where
    return np.asarray(value, np.int32)


@dataclasses.dataclass(frozen=True)
class MultiLabel(Target):
  """Several classes at once: 1 where a class is present, uint8 [K].

  Attributes:
    classes: Their names.
  """

  classes: tuple[str, ...]
  dtype: ClassVar[np.dtype] = np.dtype(np.uint8)

  @property
  def names(self) -> tuple[str, ...]:
    """The classes."""
    return self.classes

  def encode(self, value: Iterable[int], where: str) -> np.ndarray:
    """Returns 0 or 1 for each class, from the positions of those present."""
    present = np.zeros(self.shape, self.dtype)
    for position in value:
      if not 0 <= position < len(self.classes):
        raise UserError(
          f'{where}: there is no class {position} among {len(self.classes)}'
        )
      present[position] = 1
    return present


@dataclasses.dataclass(frozen=True)
class Number(Target):
  """Quantities in their own units, float32 [K].

  Attributes:
    quantities: Their names.
  """

  quantities: tuple[str, ...]
  dtype: ClassVar[np.dtype] = np.dtype(np.float32)

  @property
  def names(self) -> tuple[str, ...]:
    """The quantities."""
    return self.quantities

  def encode(self, value: Iterable[float], where: str) -> np.ndarray:
    """Returns the numbers, which must be finite."""
    found = np.asarray(value, np.float32)
    if found.shape != self.shape or not np.isfinite(found).all():
      raise UserError(
        f'{where}: {value!r} are not {len(self.quantities)} finite numbers,'
        f' one for each of {some(self.quantities)}'
      )
    return found


@dataclasses.dataclass(frozen=True)
class SegmentationMap(Feature):
  """The class of each pixel of the image: an encoded file, or integers [H, W].

  A map is cropped, resized and mirrored as its image is, so its shape in a
  batch is that of the image. It is no `Target`, whose shape is fixed.

  Attributes:
    classes: Their names; a label is a position among them.
    ignore: Label of pixels that do not count, and of those that padding adds.
  """

  classes: tuple[str, ...]
  ignore: int = 255

  @property
  def names(self) -> tuple[str, ...]:
    """The classes."""
    return self.classes

  @property
  def dtype(self) -> np.dtype:
    """Type of a label on the host; on the device it becomes int32."""
    most = max(self.ignore, len(self.classes) - 1)
    return np.dtype(np.uint8 if most < 2**8 else np.uint16)

  def encode(self, labels: np.ndarray, where: str) -> np.ndarray:
    """Returns a decoded map [H, W] with the type of a batch.

    Args:
      labels: Integers [H, W], at least 0.
      where: File or record, for error messages.

    Raises:
      UserError: A label is not that of a class.
    """
    wrong = (labels >= len(self.classes)) & (labels != self.ignore)
    if wrong.any():
      row, column = np.argwhere(wrong)[0]
      raise UserError(
        f'{where} has label {labels[row, column]} in row {row}, column'
        f' {column}, but labels are from 0 to {len(self.classes) - 1}, or'
        f' {self.ignore} where they do not count: mend the map, or name all'
        ' classes'
      )
    return labels.astype(self.dtype)


Features = Mapping[str, Feature]

_KINDS: dict[str, Callable[..., Feature]] = {
  kind.__name__: kind
  for kind in (Image, Label, MultiLabel, Number, SegmentationMap)
}


def from_dict(stored: Mapping[str, Any]) -> Feature:
  """Returns the inverse of `Feature.to_dict`.

  Raises:
    UserError: `stored` describes no feature.
  """
  fields = {
    key: tuple(value) if isinstance(value, list) else value
    for key, value in stored.items()
    if key != 'kind'
  }
  try:
    return _KINDS[stored['kind']](**fields)
  except (KeyError, TypeError):
    raise UserError(
      f'{stored!r} describes no feature: its kind must be one of'
      f' {", ".join(_KINDS)}'
    ) from None


def targets(features: Features) -> dict[str, Target]:
  """Returns the features that a model can learn to predict, by name."""
  return {k: x for k, x in features.items() if isinstance(x, Target)}


def maps(features: Features) -> dict[str, SegmentationMap]:
  """Returns the features that have a class for each pixel, by name."""
  return {k: x for k, x in features.items() if isinstance(x, SegmentationMap)}


def empty(features: Features, size: int) -> dict[str, np.ndarray]:
  """Returns zeros for the targets of a batch, arrays [size, ...] by name."""
  return {
    name: np.zeros((size, *x.shape), x.dtype)
    for name, x in targets(features).items()
  }
