"""Sources of examples: the interface, and a source in memory."""

import abc
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import hashlib
from typing import Any
from typing import ClassVar

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.data import features as features_lib


class DamagedError(config_lib.UserError):
  """A file of an image that cannot be decoded: training can leave it out."""

  def __init__(self, message: str):
    """Keeps one line: the name of a file may have several."""
    super().__init__(r'\n'.join(message.splitlines()))


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
  """One stored example.

  Attributes:
    values: Values of its features, by name. An image is an encoded file, or an
      array, uint8 or uint16 [H, W, C]; a map of classes is an encoded file, or
      labels [H, W]; a target is what `Target.encode` takes.
    index: Position in the unsliced split.
    origin: File or record that it comes from, for error messages.
    files: Files of features that do not come from `origin`, by name.
  """

  values: Mapping[str, Any]
  index: int
  origin: str
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def image(self) -> bytes | np.ndarray:
    """The image, as it is stored."""
    return self.values['image']

  def feature_origin(self, name: str) -> str:
    """Returns the file of a feature, for error messages."""
    return self.files.get(name, f'the {name} of {self.origin}')


class Source(abc.ABC):
  """Random access to the examples of a split.

  Attributes:
    features: Features of its examples, by name; `image` among them.
    has_columns: Whether `config.data.columns` names its columns.
  """

  features: features_lib.Features
  has_columns: ClassVar[bool] = False

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, split: str
  ) -> 'Source':
    """Opens a split of a config's data; by default the class is called so."""
    make: Any = cls
    return make(config, split)

  @classmethod
  def check_config(cls, config: ml_collections.ConfigDict) -> None:
    """Checks `config.data.name` before anything slow; reads no data."""

  @classmethod
  def split_names(cls, name: str) -> list[str]:
    """Returns the splits of a name; []: only opening the data tells."""
    del name
    return []

  @property
  def classes(self) -> tuple[str, ...]:
    """Names of the classes; () where the examples have none."""
    names = [
      x.names
      for x in self.features.values()
      if isinstance(x, features_lib.OfClasses)
    ]
    return names[0] if names else ()

  @property
  def image_shape(self) -> tuple[int, int] | None:
    """(height, width) where all stored images have one size; else None."""
    return features_lib.image(self.features).whole_size(training=True)

  @abc.abstractmethod
  def __len__(self) -> int:
    """Number of examples."""

  @abc.abstractmethod
  def read(self, position: int) -> Example:
    """Returns an example, as it is stored."""

  def file(self, position: int) -> str | None:
    """Returns the path of an example's file, None where it has none."""
    del position
    return None

  def id(self, position: int) -> str:
    """Returns a name of an example that does not depend on the slice."""
    return str(self.read(position).index)

  def bits(self) -> int:
    """Returns the bits of a stored value, 8 or 16."""
    return features_lib.image(self.features).bits or 8

  def captions(self, position: int) -> Sequence[str]:
    """Returns the captions of an example; decodes no image."""
    return self.read(position).values['text']

  def check_targets(self, positions: Iterable[int]) -> None:
    """Checks the targets of examples, if that takes no reading of files."""

  @property
  def holds_columns(self) -> bool:
    """Whether `column` reads no examples; by default if a class defines it."""
    return type(self).column is not Source.column

  def column(self, name: str) -> np.ndarray:
    """Returns a `features.Target` of all examples, [N, ...]."""
    target = features_lib.targets(self.features)[name]
    result = np.empty((len(self), *target.shape), target.dtype)
    for i in range(len(self)):
      example = self.read(i)
      result[i] = target.encode(example.values[name], example.origin)
    return result

  @abc.abstractmethod
  def fingerprint(self) -> str:
    """Returns a short digest that identifies the examples and features."""


class ArraySource(Source):
  """Decoded examples in memory, with images of one size.

  Attributes:
    arrays: Arrays by feature name: `image`, uint8 or uint16 [N, H, W, C], with
      one axis more of volumes and videos; maps of classes, [N, H, W]; and the
      encoded targets, [N, ...].
    indices: int32 [N], positions in the unsliced split.
  """

  def __init__(
    self,
    arrays: Mapping[str, np.ndarray],
    indices: np.ndarray,
    targets: Mapping[str, features_lib.Target | features_lib.Map],
    image: features_lib.Feature | None = None,
  ):
    """Holds arrays of targets and of an `image`, by default of kind Image."""
    images = arrays['image']
    if image is None:
      image = features_lib.Image((images.shape[1], images.shape[2]))
    self.features = {'image': image, **targets}
    self.arrays = {'image': images} | {
      name: arrays[name].astype(x.dtype) for name, x in targets.items()
    }
    self.indices = indices.astype(np.int32)

  def __len__(self) -> int:
    return len(self.indices)

  def read(self, position: int) -> Example:
    """Returns an example; its arrays are views, not copies."""
    index = int(self.indices[position])
    values = {name: x[position] for name, x in self.arrays.items()}
    return Example(values, index, f'example {index}')

  def bits(self) -> int:
    """Returns the bits of a stored value, 8 or 16."""
    return 8 * self.arrays['image'].dtype.itemsize

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]."""
    return self.arrays[name]

  def fingerprint(self) -> str:
    """Returns a digest of the arrays and of the names in the features."""
    names = [x for kind in self.features.values() for x in kind.names]
    arrays = (*self.arrays.values(), self.indices)
    return digest([*names, *(a.tobytes() for a in arrays)])


def digest(items: Iterable[str | bytes]) -> str:
  """Returns a digest of a sequence, 16 hexadecimal digits."""
  result = hashlib.blake2b(digest_size=8)
  for item in items:
    data = item if isinstance(item, bytes) else encode_name(item)
    result.update(len(data).to_bytes(8, 'little'))
    result.update(data)
  return result.hexdigest()


def encode_name(name: str) -> bytes:
  """Returns a file's name as bytes, even if it is not valid UTF-8."""
  return name.encode('utf-8', 'surrogateescape')


def hash_order(name: str) -> tuple[bytes, str]:
  """Returns a sort key that puts names into a fixed pseudo-random order."""
  data = encode_name(name)
  return hashlib.blake2b(data, digest_size=8).digest(), name
