"""What every source of images has in common."""

import abc
from collections.abc import Iterable
import dataclasses
import hashlib

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
  """One stored example.

  Attributes:
    image: An encoded file, or uint8 or uint16 [H, W, C].
    label: Position in the classes.
    index: Position in the unsliced split.
    where: The file or the record, for error messages.
  """

  image: bytes | np.ndarray
  label: int
  index: int
  where: str


class Source(abc.ABC):
  """Random access to the labelled images of a split.

  Attributes:
    classes: Their names; a label is a position in them.
    image_shape: (height, width) where all stored images have one size: then
      they are cropped on the device; else None.
  """

  classes: tuple[str, ...]
  image_shape: tuple[int, int] | None

  @abc.abstractmethod
  def __len__(self) -> int:
    """Number of examples."""

  @abc.abstractmethod
  def read(self, position: int) -> Example:
    """Returns an example, as it is stored.

    Raises:
      UserError: It cannot be read, or has no label.
    """

  def file(self, position: int) -> str | None:
    """Returns the path of an example's file, None where it has none."""
    del position
    return None

  def id(self, position: int) -> str:
    """Returns a name that an example keeps, whatever the slice is."""
    return str(self.read(position).index)

  def bits(self) -> int:
    """Returns the bits of a stored value, 8 or 16."""
    return 8

  def read_labels(self) -> np.ndarray:
    """Returns the labels of all examples, int32 [N]; decodes no image."""
    labels = [self.read(i).label for i in range(len(self))]
    return np.asarray(labels, np.int32)

  @abc.abstractmethod
  def fingerprint(self) -> str:
    """Returns a short digest of which examples and classes these are."""


class ArraySource(Source):
  """Images of one size, decoded and in memory.

  Attributes:
    images: uint8 or uint16 [N, H, W, C].
    labels: int32 [N].
    indices: int32 [N], positions in the unsliced split.
  """

  def __init__(
    self,
    images: np.ndarray,
    labels: np.ndarray,
    indices: np.ndarray,
    classes: tuple[str, ...],
  ):
    self.images = images
    self.labels = labels.astype(np.int32)
    self.indices = indices.astype(np.int32)
    self.classes = classes
    self.image_shape = images.shape[1], images.shape[2]

  def __len__(self) -> int:
    return len(self.images)

  def read(self, position: int) -> Example:
    """Returns an example; its image is a view, not a copy."""
    return Example(
      self.images[position],
      int(self.labels[position]),
      int(self.indices[position]),
      f'example {self.indices[position]}',
    )

  def bits(self) -> int:
    """Returns the bits of a stored value, 8 or 16."""
    return 8 * self.images.dtype.itemsize

  def read_labels(self) -> np.ndarray:
    """Returns the labels, int32 [N]."""
    return self.labels

  def fingerprint(self) -> str:
    """Returns a digest of the images, labels and classes."""
    arrays = (self.images, self.labels, self.indices)
    return digest([*self.classes, *(a.tobytes() for a in arrays)])


def digest(items: Iterable[str | bytes]) -> str:
  """Returns 16 hexadecimal digits that stand for a sequence."""
  result = hashlib.blake2b(digest_size=8)
  for item in items:
    data = item if isinstance(item, bytes) else encode_name(item)
    result.update(len(data).to_bytes(8, 'little'))
    result.update(data)
  return result.hexdigest()


def encode_name(name: str) -> bytes:
  """Returns a file's name as bytes, also where it is not proper UTF-8."""
  return name.encode('utf-8', 'surrogateescape')
