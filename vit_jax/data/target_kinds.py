"""Kinds of targets other than a label: classes, numbers, classes of pixels."""

from collections.abc import Iterable
import dataclasses
from typing import ClassVar

import numpy as np

from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data.features import Map
from vit_jax.data.features import OfClasses
from vit_jax.data.features import Target


@dataclasses.dataclass(frozen=True)
class MultiLabel(OfClasses, Target):
  """Several classes at once: 1 where a class is present, uint8 [K]."""

  dtype: ClassVar[np.dtype] = np.dtype(np.uint8)

  def encode(self, value: Iterable[int], origin: str) -> np.ndarray:
    """Returns 0 or 1 for each class, from the positions of those present."""
    present = np.zeros(self.shape, self.dtype)
    for position in value:
      if not 0 <= position < len(self.classes):
        raise UserError(
          f'{origin}: there is no class {position} among {len(self.classes)}'
        )
      present[position] = 1
    return present

  def show(self, value: np.ndarray) -> list[str]:
    """Returns the names of the first classes that are present."""
    present = np.flatnonzero(value).tolist()
    return [join_first([self.names[i] for i in present], 3) or 'none']


@dataclasses.dataclass(frozen=True)
class Number(Target):
  """Quantities in their own units, float32 [K], by name."""

  quantities: tuple[str, ...]
  dtype: ClassVar[np.dtype] = np.dtype(np.float32)

  @property
  def names(self) -> tuple[str, ...]:
    """The quantities."""
    return self.quantities

  def encode(self, value: Iterable[float], origin: str) -> np.ndarray:
    """Returns the numbers, which must be finite."""
    numbers = np.asarray(value, np.float32)
    if numbers.shape != self.shape or not np.isfinite(numbers).all():
      raise UserError(
        f'{origin}: {value!r} are not {len(self.quantities)} finite numbers,'
        f' one for each of {join_first(self.quantities)}'
      )
    return numbers


@dataclasses.dataclass(frozen=True)
class SegmentationMap(OfClasses, Map):
  """The class of each pixel of the image: an encoded file, or integers [H, W].

  That of a volume is integers [D, H, W].

  Attributes:
    ignore: Label of pixels that do not count, and of those that padding adds.
  """

  ignore: int = 255

  @property
  def dtype(self) -> np.dtype:
    """Type of a label on the host; on the device it becomes int32."""
    most = max(self.ignore, len(self.classes) - 1)
    return np.dtype(np.uint8 if most < 2**8 else np.uint16)

  def encode(self, values: np.ndarray, origin: str) -> np.ndarray:
    """Returns labels [..., H, W] with the type of a batch."""
    wrong = (values >= len(self.classes)) & (values != self.ignore)
    if wrong.any():
      place = np.argwhere(wrong)[0]
      names = ('slice', 'row', 'column')[-values.ndim :]
      at = [f'{name} {i}' for name, i in zip(names, place, strict=True)]
      raise UserError(
        f'{origin} has label {values[tuple(place)]} in {", ".join(at)}, but'
        f' labels are from 0 to {len(self.classes) - 1}, or {self.ignore} where'
        ' they do not count: mend the map, or name all classes'
      )
    return values.astype(self.dtype)
