"""Kinds of features that examples have: inputs and targets.

A source declares the features of its examples by name (`Source.features`).
Batches, crops, objectives, evaluations and predictions dispatch on the kind of
a feature, so no layer assumes that there is a label. The usual names are

    image     Image, Volume, Video or Audio, the model's input: `inputs.py`
    label     Label, one class
    labels    MultiLabel, several classes at once
    numbers   Number, quantities in their own units
    map       SegmentationMap, the class of each pixel
    text      Text, captions

A batch is a dict of arrays [B, ...] by these names, with `index` and `valid`.
"""

import abc
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import ClassVar

import numpy as np

from vit_jax.config import some
from vit_jax.config import UserError
from vit_jax.data import tokenizers
from vit_jax.data.inputs import Audio as Audio
from vit_jax.data.inputs import Feature as Feature
from vit_jax.data.inputs import Image as Image
from vit_jax.data.inputs import Video as Video
from vit_jax.data.inputs import Volume as Volume


@dataclasses.dataclass(frozen=True)
class OfClasses(Feature):
  """Values that name classes.

  Attributes:
    classes: Their names.
  """

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

  def draw(self, value: Any, key: tuple[int, ...] | None) -> Any:
    """Returns one of several values that an example has.

    Args:
      value: Value as a source stores it.
      key: Seeds the draw; None: the first value.
    """
    del key
    return value


@dataclasses.dataclass(frozen=True)
class Label(OfClasses, Target):
  """One class: its position in `classes`, int32."""

  dtype: ClassVar[np.dtype] = np.dtype(np.int32)

  @property
  def shape(self) -> tuple[int, ...]:
    """A scalar."""
    return ()

  def encode(self, value: Any, where: str) -> np.ndarray:
    """Returns the position of a class as an array."""
    del where
    return np.asarray(value, np.int32)


@dataclasses.dataclass(frozen=True)
class MultiLabel(OfClasses, Target):
  """Several classes at once: 1 where a class is present, uint8 [K]."""

  dtype: ClassVar[np.dtype] = np.dtype(np.uint8)

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
class Text(Target):
  """A caption as tokens, int32 [T].

  A source has the captions of an example as strings, at least one. Training
  draws one of them at each step; evaluation takes the first, and retrieval all.

  Attributes:
    length: T; 0: there is no tokenizer yet.
    vocabulary: Number of different tokens.
    tokenizer: As `config.data.tokenizer`.
    digest: Of the vocabulary, from `tokenizers.digest`.
    words: Words that the tokenizer 'words' knows.
    cuts: Whether longer captions are cut; False: they are refused.
  """

  length: int = 0
  vocabulary: int = 0
  tokenizer: str = ''
  digest: str = ''
  words: tuple[str, ...] = ()
  cuts: bool = True
  dtype: ClassVar[np.dtype] = np.dtype(np.int32)

  @property
  def shape(self) -> tuple[int, ...]:
    """One number for each token."""
    return (self.length,)

  def draw(
    self, value: Sequence[str], key: tuple[int, ...] | None
  ) -> Sequence[str]:
    """Returns one of the captions, as a sequence."""
    if key is None or len(value) < 2:
      return value[:1]
    return [value[int(np.random.default_rng(key).integers(len(value)))]]

  def encode(self, value: Sequence[str], where: str) -> np.ndarray:
    """Returns the tokens of the first caption.

    Raises:
      UserError: It is empty, or longer than allowed; or the vocabulary cannot
        be read.
    """
    text = value[0] if len(value) else ''
    if not text.strip():
      raise UserError(
        f'{where}: the caption is empty: write one, or leave the example out'
      )
    return self.encode_all([text], where)[0]

  def encode_all(self, texts: Sequence[str], where: str) -> np.ndarray:
    """Returns the tokens of texts, int32 [B, T].

    Raises:
      UserError: As `encode`.
    """
    made = tokenizers.make(self.tokenizer, self.length, self.words)
    if not all(text.strip() for text in texts):
      raise UserError(f'{where}: a text is empty: write it, or leave it out')
    if not self.cuts:
      for text in texts:
        count = len(made.encode(text))
        if count > self.length:
          raise UserError(
            f'{where}: {text[:40]!r} has {count} tokens, and the text tower'
            f' {self.length}: shorten it, or set config.data.text_length or'
            " config.data.text_too_long='cut'"
          )
    return made(texts)

  def decode(self, tokens: np.ndarray) -> str:
    """Returns the text of tokens, int32 [T]."""
    made = tokenizers.make(self.tokenizer, self.length, self.words)
    return made.decode(tokens.tolist())

  def check_vocabulary(self) -> None:
    """Checks that the vocabulary is the one that this feature was made with.

    Raises:
      UserError: It is another one, or cannot be read.
    """
    found = tokenizers.digest(self.tokenizer, self.words)
    if found != self.digest:
      raise UserError(
        f'{self.tokenizer} is not the vocabulary of the model: its hash is'
        f' {found}, and was {self.digest}; bring that file back'
      )


@dataclasses.dataclass(frozen=True)
class SegmentationMap(OfClasses):
  """The class of each pixel of the image: an encoded file, or integers [H, W].

  That of a volume is integers [D, H, W].

  A map is cropped, resized and mirrored as its image is, so its shape in a
  batch is that of the image. It is no `Target`, whose shape is fixed.

  Attributes:
    ignore: Label of pixels that do not count, and of those that padding adds.
  """

  ignore: int = 255

  @property
  def dtype(self) -> np.dtype:
    """Type of a label on the host; on the device it becomes int32."""
    most = max(self.ignore, len(self.classes) - 1)
    return np.dtype(np.uint8 if most < 2**8 else np.uint16)

  def encode(self, labels: np.ndarray, where: str) -> np.ndarray:
    """Returns a decoded map [..., H, W] with the type of a batch.

    Args:
      labels: Integers [..., H, W], at least 0.
      where: File or record, for error messages.

    Raises:
      UserError: A label is not that of a class.
    """
    wrong = (labels >= len(self.classes)) & (labels != self.ignore)
    if wrong.any():
      place = np.argwhere(wrong)[0]
      names = ('slice', 'row', 'column')[-labels.ndim :]
      at = [f'{name} {i}' for name, i in zip(names, place, strict=True)]
      raise UserError(
        f'{where} has label {labels[tuple(place)]} in {", ".join(at)}, but'
        f' labels are from 0 to {len(self.classes) - 1}, or {self.ignore} where'
        ' they do not count: mend the map, or name all classes'
      )
    return labels.astype(self.dtype)


Features = Mapping[str, Feature]

_KINDS: dict[str, Callable[..., Feature]] = {
  kind.__name__: kind
  for kind in (
    Image,
    Volume,
    Video,
    Audio,
    Label,
    MultiLabel,
    Number,
    SegmentationMap,
    Text,
  )
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
