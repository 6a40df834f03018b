"""Kinds of features that examples have: inputs and targets.

A source declares the features of its examples by name (`Source.features`).
Batches, crops, objectives, evaluations and predictions dispatch on the kind of
a feature, so no layer assumes that there is a label. The usual names are

    image     Image, Volume, Video or Audio, the model's input
    label     Label, one class
    labels    MultiLabel, several classes at once
    numbers   Number, quantities in their own units
    map       SegmentationMap, the class of each pixel
    text      Text, captions

Here are images and labels. `kinds` names the modules of the other kinds, which
say themselves how they are batched, augmented and shown.

A batch is a dict of arrays [B, ...] by these names, with `index` and `valid`.
"""

import abc
from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import cast
from typing import ClassVar

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError


@dataclasses.dataclass(frozen=True)
class Feature:
  """A kind of value that each example of a source has.

  Attributes:
    plural: What the values are called where no names tell; '': the names do.
    can_mix: Whether values of two examples can be mixed, as by mixup.
  """

  plural: ClassVar[str] = ''
  can_mix: ClassVar[bool] = False

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the values: classes, or quantities; by default none."""
    return ()

  def to_dict(self) -> dict[str, Any]:
    """Returns JSON that `from_dict` reads: the kind, and its fields."""
    fields = {
      key: list(value) if isinstance(value, tuple) else value
      for key, value in dataclasses.asdict(self).items()
    }
    return {'kind': type(self).__name__, **fields}

  def check_vocabulary(self) -> None:
    """Checks that a vocabulary is the one that this feature was made with."""


@dataclasses.dataclass(frozen=True)
class Image(Feature):
  """A still image: an encoded file, or uint8 or uint16 [H, W, C].

  Attributes:
    size: (height, width) if all stored images have one size, in which case the
      device crops them; else None.
    inputs: What such inputs are called in errors.
    filler: Class that decodes and crops them on the host for `host.batches`.
    device: Module that prepares them on the device; '': `device.views`.
    opener: Function that reads such an input of a path, but for sounds.
    bits: Bits of a stored value; None: files say it.
    part: What a picture shows of an input of three axes.
  """

  size: tuple[int, int] | None = None
  can_mix: ClassVar[bool] = True
  inputs: ClassVar[str] = 'images'
  filler: ClassVar[str] = 'vit_jax.data.host.images:ImageFiller'
  device: ClassVar[str] = ''
  opener: ClassVar[str] = 'vit_jax.data.folder:read_image'
  bits: ClassVar[int | None] = None
  part: ClassVar[str] = 'slice'

  def open(self, path: str, frames: int) -> Any:
    """Returns what an example holds of a file; of a sound at least `frames`."""
    del frames
    return config_lib.wing(self.opener)(path)

  def whole_size(self, training: bool) -> tuple[int, int] | None:
    """Returns the size of images that the host leaves whole; None: it crops."""
    del training
    return self.size

  def check_input(self, config: ml_collections.ConfigDict) -> None:
    """Checks that the model's input has the axes of the examples."""
    size = config_lib.sides(config.data.image_size)
    if len(size) == 3:
      raise UserError(
        f'config.data.image_size is {size}, but the examples of'
        f' {config.data.name} are images: write (height, width)'
      )

  def set_keys(self, config: ml_collections.ConfigDict) -> None:
    """Sets the keys of a config that such inputs follow; images have none."""


@dataclasses.dataclass(frozen=True)
class OfClasses(Feature):
  """Values that name classes."""

  classes: tuple[str, ...]

  @property
  def names(self) -> tuple[str, ...]:
    """The classes."""
    return self.classes


class Target(Feature, abc.ABC):
  """A kind of value that a model learns to predict, of a fixed shape.

  Attributes:
    dtype: Type of a value in a batch.
  """

  dtype: ClassVar[np.dtype]
  can_mix: ClassVar[bool] = True

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of one example's value; by default one number for each name."""
    return (len(self.names),)

  @abc.abstractmethod
  def encode(self, value: Any, origin: str) -> np.ndarray:
    """Returns a stored value as an array; `origin` names it in errors."""

  def draw(self, value: Any, key: tuple[int, ...] | None) -> Any:
    """Returns one of an example's values, drawn by a key; None: the first."""
    del key
    return value

  def show(self, value: np.ndarray) -> list[str]:
    """Returns an encoded value as lines for people."""
    pairs = zip(self.names, value.tolist(), strict=True)
    return [f'{name} {x:.4g}' for name, x in list(pairs)[:2]]


@dataclasses.dataclass(frozen=True)
class Label(OfClasses, Target):
  """One class: its position in `classes`, int32."""

  dtype: ClassVar[np.dtype] = np.dtype(np.int32)

  @property
  def shape(self) -> tuple[int, ...]:
    """A scalar."""
    return ()

  def encode(self, value: Any, origin: str) -> np.ndarray:
    """Returns the position of a class as an array."""
    if self.classes and not 0 <= value < len(self.classes):
      raise UserError(
        f'{origin}: the label is {value}: it must be the position of one of'
        f' {len(self.classes)} classes, from 0'
      )
    return np.asarray(value, np.int32)


class Map(Feature, abc.ABC):
  """A kind of value that each place of an image has.

  A map is cropped, resized and mirrored as its image is, so its shape in a
  batch is that of the image. It is no `Target`, whose shape is fixed.

  Attributes:
    ignore: Value of places that do not count, and of those that padding adds.
  """

  ignore: int

  @property
  @abc.abstractmethod
  def dtype(self) -> np.dtype:
    """Type of a value on the host; on the device it becomes int32."""

  @abc.abstractmethod
  def encode(self, values: np.ndarray, origin: str) -> np.ndarray:
    """Returns a decoded map, integers [..., H, W], with the type of a batch."""


Features = Mapping[str, Feature]


def image(features: Features) -> Image:
  """Returns the feature of the model's input."""
  return cast(Image, features['image'])


def targets(features: Features) -> dict[str, Target]:
  """Returns the features that a model can learn to predict, by name."""
  return {k: x for k, x in features.items() if isinstance(x, Target)}


def maps(features: Features) -> dict[str, Map]:
  """Returns the features that have a value for each pixel, by name."""
  return {k: x for k, x in features.items() if isinstance(x, Map)}
