"""What the foreign formats share: what is known of a file before it is read."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import re
import reprlib
from typing import Any
from typing import Protocol

from absl import logging
from flax import linen as nn

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.weights import files
from vit_jax.weights import tables

Shape = tuple[int, ...]

# Mean and standard deviation of ImageNet's pixels in [0, 1].
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclasses.dataclass(frozen=True)
class Kind:
  """What a field of a JSON file has to be.

  Attributes:
    text: In words.
    fits: Whether a value is.
  """

  text: str
  fits: Callable[[Any], bool]


def is_number(value: Any) -> bool:
  """Whether it is a finite number of a sensible size; a truth value is none."""
  is_any = isinstance(value, int | float) and not isinstance(value, bool)
  return is_any and abs(value) < 1e30


def is_positive(value: Any) -> bool:
  """Whether it is a finite number above 0."""
  return is_number(value) and value > 1e-30


def is_count(value: Any) -> bool:
  """Whether it is a whole number above 0."""
  return isinstance(value, int) and is_positive(value) and value < 2**31


def are_counts(value: Any, number: int) -> bool:
  """Whether it is a list of so many whole numbers above 0."""
  is_list = isinstance(value, list) and len(value) == number
  return is_list and all(map(is_count, value))


def _are_labels(value: Any) -> bool:
  if isinstance(value, Mapping):
    if not all(re.fullmatch('[0-9]{1,9}', key) for key in value):
      return False
    value = [*value.values()]
  return isinstance(value, list) and all(
    isinstance(x, str) or (isinstance(x, int) and not isinstance(x, bool))
    for x in value
  )


TEXT = Kind('text', lambda x: isinstance(x, str))
TRUTH = Kind('true or false', lambda x: isinstance(x, bool))
OBJECT = Kind('an object', lambda x: isinstance(x, Mapping))
COUNT = Kind('a whole number above 0', is_count)
POSITIVE = Kind('a finite number above 0', is_positive)
PAIR = Kind('two whole numbers above 0', lambda x: are_counts(x, 2))
SIZE = Kind(
  'one or two whole numbers above 0',
  lambda x: is_count(x) or are_counts(x, 2),
)
_LABELS = Kind('names in a list, or by the numbers of classes', _are_labels)


@dataclasses.dataclass(frozen=True)
class Json:
  """An object in a JSON file of others, which may hold anything.

  Attributes:
    file: Its name.
    content: Of the file.
  """

  file: str
  content: Mapping[str, Any]

  def get(self, key: str, kind: Kind, default: Any = None) -> Any:
    """Returns a field, 'a.b' of an object in it; null is as good as absent.

    Raises:
      UserError: It is not of the kind.
    """
    value: Any = self.content
    *parents, _ = names = key.split('.')
    for i, name in enumerate(names):
      value = value.get(name)
      if value is None:
        return default
      wanted = kind if i == len(parents) else OBJECT
      if not wanted.fits(value):
        where = '.'.join(names[: i + 1])
        raise self.error(where, value, f'it must be {wanted.text}')
    return value

  def error(self, key: str, value: Any, wanted: str) -> UserError:
    """Returns the error for a field that is not as it must be."""
    shown = reprlib.repr(value)
    return UserError(f'its {self.file} says {key} {shown}: {wanted}')

  def channel_values(
    self,
    key: str,
    channels: int,
    default: Sequence[float],
    is_wanted: Callable[[Any], bool] = is_number,
  ) -> tuple[float, ...]:
    """Returns one number for all channels, or one for each.

    Raises:
      UserError: It is something else.
    """

    def fits(value: Any) -> bool:
      values = value if isinstance(value, list) else [value]
      return len(values) in (1, channels) and all(map(is_wanted, values))

    above = ' above 0' if is_wanted is is_positive else ''
    text = f'one finite number{above}, or one for each of {channels} channels'
    value = self.get(key, Kind(text, fits), default)
    return tuple(value) if isinstance(value, list | tuple) else (value,)

  def labels(self, key: str, classes: int) -> tuple[str, ...]:
    """Returns the names of classes; () where they are not those of the head.

    Args:
      key: Of a list, or of an object: number of the class -> name.
      classes: Of the head.

    Raises:
      UserError: It is neither.
    """
    names = self.get(key, _LABELS, [])
    if not isinstance(names, Mapping):
      names = dict(enumerate(names))
    numbered = sorted((int(number), str(names[number])) for number in names)
    if [number for number, _ in numbered] == [*range(classes)]:
      return tuple(name for _, name in numbered)
    if numbered and classes:
      logging.warning(
        '%s of %s names %d classes, the head has %d: the names are left out',
        key,
        self.file,
        len(numbered),
        classes,
      )
    return ()


@dataclasses.dataclass(frozen=True)
class Hints:
  """What is known beside the arrays.

  Attributes:
    overrides: Fields of the model that the caller gives.
    config: config.json beside the file; empty where there is none.
    preprocessor: preprocessor_config.json beside it, likewise.
    image_size: (height, width) that the caller asks for, or None.
    suffix: Of the file's name.
    stored_size: (height, width) that positions are for, as we wrote it beside
      the file, or None.
  """

  overrides: dict[str, Any]
  config: Json
  preprocessor: Json
  image_size: tuple[int, int] | None
  suffix: str
  stored_size: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Description:
  """What a file holds.

  Attributes:
    model: Linen module, with as many classes as the file has.
    image_size: (height, width) that its positions are for.
    preprocess: Fields of `data.Preprocess`.
    resize: How its positions are resized by the code that it comes from.
  """

  model: models.Model
  image_size: tuple[int, int]
  preprocess: dict[str, Any]
  resize: str


class Format(Protocol):
  """A module of this package that knows a format."""

  NAME: str
  IGNORED: str  # names that are no part of the model, as a regular expression

  def recognises(self, names: Iterable[str]) -> bool:
    """Whether a file with these arrays is of this format."""

  def prepare(self, arrays: files.Arrays) -> 'Renamed':
    """Returns the arrays under the names that the rules use."""

  def describe(self, arrays: 'Renamed', hints: Hints) -> Description:
    """Reads the architecture off the arrays' shapes."""

  def rules(self, model: nn.Module) -> Sequence[tables.Rule]:
    """Returns the table for a model."""

  def stored_name(self, model: nn.Module, name: str) -> str:
    """Returns the name that a file has for one of the rules."""

  def unsupported(
    self, model: nn.Module, image_size: tuple[int, int]
  ) -> str | None:
    """Returns what the format cannot hold; None: it can hold the model.

    Args:
      model: Linen module.
      image_size: (height, width) that its positions are for.
    """


class Renamed(files.Arrays):
  """Shows an open file's arrays under other names."""

  def __init__(
    self,
    arrays: files.Arrays,
    rename: Callable[[str], str] = str,
    restore: Callable[[str], str] = str,
    show: Callable[[str], str] = str,
  ):
    """Wraps an open file.

    Args:
      arrays: Of the file.
      rename: Name in the file -> name here.
      restore: Name here -> name that an array which is missing would have.
      show: That name -> how messages name it.
    """
    self._arrays = arrays
    self._restore = restore
    self._show = show
    self._stored = {rename(name): name for name in arrays.shapes}
    self.metadata = arrays.metadata
    self.shapes = {
      name: arrays.shapes[stored] for name, stored in self._stored.items()
    }

  def read(self, name: str) -> Any:
    """Reads one array."""
    return self._arrays.read(self._stored[name])

  def stored(self, name: str) -> str:
    """Returns the name that an array has in the file, or would have."""
    return self._show(self._stored.get(name) or self._restore(name))


class Shapes:
  """Shapes by name, for reading an architecture off them."""

  def __init__(self, arrays: Renamed):
    """Keeps the shapes of an open file."""
    self._shapes = arrays.shapes
    self._stored = arrays.stored

  def __contains__(self, name: str) -> bool:
    return name in self._shapes

  def get(self, name: str, axes: int) -> Shape:
    """Returns the shape of an array; of 'a_{}/b', of the first that is there.

    Raises:
      UserError: There is none, or it has another number of axes.
    """
    pattern = re.escape(name).replace(r'\{\}', r'\d+')
    found = [n for n in self._shapes if re.fullmatch(pattern, n)]
    if not found:
      wanted = self._stored(name.replace('{}', '0'))
      raise UserError(
        f'its architecture cannot be read: it holds no array {wanted}'
      )
    shape = self._shapes[found[0]]
    if len(shape) != axes:
      raise UserError(
        f'its architecture cannot be read: {self._stored(found[0])} has'
        f' the shape {shape}, not {axes} axes'
      )
    return shape

  def size(self, name: str, axis: int) -> int:
    """Returns one axis of an array; 0 where it is not there."""
    return self._shapes[name][axis] if self._shapes.get(name) else 0

  def count(self, pattern: str) -> int:
    """Returns one more than the largest number in 'blocks.{}.'."""
    expression = re.escape(pattern).replace(r'\{\}', r'(\d+)')
    matches = (re.match(expression, name) for name in self._shapes)
    return max((int(m[1]) + 1 for m in matches if m), default=0)

  def stages(self, pattern: str, first: int) -> tuple[int, ...]:
    """Returns the units in each stage, from 'stages.{}.blocks.{}.'.

    Args:
      pattern: With a number for the stage and one for the unit.
      first: What they count from.
    """
    expression = re.escape(pattern).replace(r'\{\}', r'(\d+)')
    units: dict[int, int] = {}
    for name in self._shapes:
      if match := re.match(expression, name):
        stage, unit = int(match[1]) - first, int(match[2]) - first
        units[stage] = max(units.get(stage, 0), unit + 1)
    return tuple(units.get(i, 1) for i in range(max(units, default=-1) + 1))


def build(
  module: type[models.Model], fields: dict[str, Any], hints: Hints
) -> models.Model:
  """Returns a module of what the arrays show and the caller gives.

  Raises:
    ValueError: They do not fit, or the family has no such field.
  """
  known = {field.name for field in dataclasses.fields(module)}
  for key in hints.overrides:
    if key not in known:
      raise UserError(
        f'it is a {module.__name__}, which has no field {key!r}: leave it out'
      )
  return models.model_of(module, fields | hints.overrides)


def image_size(
  tokens: int | None,
  patch: Sequence[int],
  hints: Hints,
  default: tuple[int, int] | None = None,
) -> tuple[int, int]:
  """Returns the image size that a file's positions are for, in pixels.

  Args:
    tokens: Patches that have a position; None where nothing depends on it.
    patch: Pixels that one token stands for, (height, width).
    hints: The size that is asked for serves where the grid is not square, and
      nothing beside the file says what it is.
    default: As the format's own files beside it say.

  Raises:
    UserError: The grid is not square, and nothing says what it is.
  """
  if tokens is None:
    asked = hints.stored_size or hints.image_size
    return asked or default or (224, 224)
  for size in (hints.stored_size, default):
    if size and tokens_of(size, patch) == tokens:
      return size
  side = square_side(tokens)
  if side:
    return side * patch[0], side * patch[1]
  if hints.image_size and tokens_of(hints.image_size, patch) == tokens:
    return hints.image_size
  raise UserError(
    f'its {tokens} positions are no square grid: say for which images they'
    ' are, with image_size= (on the command line --image_size=HxW)'
  )


def tokens_of(size: tuple[int, int], patch: Sequence[int]) -> int:
  """Returns the patches of an image; both (height, width) in pixels."""
  return (size[0] // patch[0]) * (size[1] // patch[1])


def square_side(tokens: int) -> int:
  """Returns the side of a square grid; 0 where there is none."""
  side = math.isqrt(max(tokens, 0))
  return side if side * side == tokens else 0


def published_heads(hidden_size: int, mlp_dim: int, depth: int) -> int | None:
  """Returns the heads of the published ViT of these sizes; None: no such."""
  sizes = {'hidden_size': hidden_size, 'mlp_dim': mlp_dim, 'depth': depth}
  for published in models.vit.SIZES.values():
    if sizes.items() <= published.items():
      return published['num_heads']
  return None


def num_heads(hints: Hints, configured: int | None, **sizes: int) -> int:
  """Returns the heads of a fused qkv, which its shape does not tell.

  Args:
    hints: What the caller gives comes first.
    configured: What else is known, or None.
    **sizes: hidden_size, mlp_dim, depth: of the published sizes.

  Raises:
    UserError: Nothing tells.
  """
  found = hints.overrides.get('num_heads') or configured
  found = found or published_heads(**sizes)
  if not found:
    raise UserError(
      f'its arrays do not say how many heads {sizes["hidden_size"]} channels'
      ' are divided into: give num_heads= (on the command line'
      ' --model.num_heads=)'
    )
  return found


def per_channel(values: tuple[float, ...], channels: int) -> list[float]:
  """Returns a mean or a deviation as a list: one number for each channel."""
  return list(values) * (channels if len(values) == 1 else 1)
