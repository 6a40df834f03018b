"""Interface of foreign formats, and inference of architectures from shapes."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import re
from typing import Any
from typing import Protocol

import numpy as np

from vit_jax import data
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.data.host import geometry
from vit_jax.models.zoo import vit as named
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import tables

Shape = tuple[int, ...]
Size = tuple[int, int]
Values = Mapping[str, Any]
_NO_FILE = typed.Json('', {})
INTERPOLATION = typed.choice(*geometry.INTERPOLATIONS)

# Mean and standard deviation of ImageNet's pixels in [0, 1].
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclasses.dataclass(frozen=True)
class Description:
  """The model that a file holds."""

  model: models.Model  # the model, with as many classes as the file has
  image_size: Size  # (height, width) that its positions are for
  preprocess: dict[str, Any]  # fields of `data.Preprocess`
  resize: str  # method by which the original code resizes its positions
  rules: Sequence[tables.Rule]  # the table of its arrays
  # Name of the file that should define the preprocessing but does not; '' if it
  # does.
  silent: str = ''
  # Parameters that another file holds, float32 arrays by path.
  extra_params: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class FileFacts:
  """What is known of a file while its model is described.

  Patterns of names have `#` for a number, and may be several, `a|b` or
  `x.{a,b}`: the first that there is.
  """

  arrays: 'Renamed'  # of which the shapes are read
  config: typed.Json  # config.json beside the file; empty if there is none
  # preprocessor_config.json there; empty if there is none.
  preprocessor: typed.Json = _NO_FILE
  # Values of the model that the caller gives, as of
  # `models.values.explicit_values`.
  caller_values: Values = dataclasses.field(default_factory=dict)
  # (height, width) that the caller requests.
  image_size: Size | None = None
  # (height, width) that positions are for, if our export stored it.
  stored_size: Size | None = None
  # Values of the model so far, by name.
  values: dict[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def shapes(self) -> Mapping[str, Shape]:
    """Shapes of its arrays by name."""
    return self.arrays.shapes

  def has(self, pattern: str) -> bool:
    """Whether an array's name begins with a pattern."""
    return any(self._matches(pattern, is_whole=False))

  def size(self, pattern: str, axis: int) -> int:
    """Returns a side of the first array of a name; 0: there is none."""
    shape = self.shape(pattern)
    return shape[axis] if -len(shape) <= axis < len(shape) else 0

  def shape(self, pattern: str, axes: int = 0) -> Shape:
    """Returns the shape of the first array of a name.

    If `axes` is 0, it is () where there is none; else the array must be there,
    with so many axes.
    """
    name = next((x.string for x in self._matches(pattern)), None)
    shape = () if name is None else self.shapes[name]
    if not axes or len(shape) == axes:
      return shape
    if name is None:
      name = tables.alternatives(pattern)[0].replace('#', '0')
      raise _unreadable(f'it holds no array {self.arrays.stored(name)}')
    array = self.arrays.stored(name)
    raise _unreadable(f'{array} has the shape {shape}, not {axes} axes')

  def count(self, pattern: str) -> int:
    """Returns one more than the largest number at the `#` of a pattern."""
    numbers = (int(x[1]) for x in self._matches(pattern, is_whole=False))
    return self._plausible(max(numbers, default=-1) + 1)

  def stages(self, pattern: str, first: int) -> tuple[int, ...]:
    """Returns the units in each stage, from 'stages.#.blocks.#.'.

    Stages and units are counted from `first`, 0 or 1.
    """
    units: dict[int, int] = {}
    for match in self._matches(pattern, is_whole=False):
      stage, unit = (self._plausible(int(x) - first) for x in match.groups())
      units[stage] = max(units.get(stage, 0), unit + 1)
    return tuple(units.get(i, 1) for i in range(max(units, default=-1) + 1))

  def widths(self, pattern: str, axis: int, first: int) -> tuple[int, ...]:
    """Returns a side of a kernel in each of the stages in `values`.

    Its name has the stage at `#`, counted from `first`, 0 or 1.
    """
    stages = range(first, first + len(self.values['stages']))
    names = (tables.numbered(pattern, [i]) for i in stages)
    return tuple(self.shape(name, 4)[axis] for name in names)

  def _matches(
    self, pattern: str, is_whole: bool = True
  ) -> Iterator[re.Match[str]]:
    """Yields the names of a pattern, or those that begin with it."""
    for name in tables.alternatives(pattern):
      expression = tables.pattern(name)
      match = expression.fullmatch if is_whole else expression.match
      yield from filter(None, map(match, self.shapes))

  def _plausible(self, count: int) -> int:
    if count <= len(self.shapes):
      return count
    raise _unreadable(
      f'by their names there are {count} layers, but only'
      f' {len(self.shapes)} arrays'
    )


def _unreadable(reason: str) -> UserError:
  return UserError(f'its architecture cannot be read: {reason}')


class Library(Protocol):
  """Interface of the modules of another program's files."""

  NAME: str
  SUFFIX: str  # of a single file of weights; '': it needs a directory
  IGNORED: str  # regular expression of names outside the model

  @property
  def KINDS(self) -> Sequence[Any]:
    """Its `format.Format`s; a model is written as the first that can be."""

  def recognises(self, names: Iterable[str]) -> bool:
    """Whether a file with these arrays has this format."""

  def prepare(self, arrays: containers.Arrays) -> 'Renamed':
    """Returns the arrays under the names that the rules use."""

  def describe(self, file: FileFacts) -> Description:
    """Returns the model that a file holds."""

  def usage(
    self, kind: Any, values: Values, directory: str, file: str
  ) -> tuple[str, str]:
    """Returns the name of a program, and Python code that loads the model."""


class Writer(Protocol):
  """What a module has whose program needs more than the arrays."""

  def companions(
    self, kind: Any, values: Values, preprocess: data.Preprocess, params: Any
  ) -> dict[str, dict[str, Any]]:
    """Returns the JSON files beside the arrays, by name.

    `values` are a model's, by a `format.Format`, with the `image_size` and
    `image_channels` of its positions.
    """

  def notes(self, kind: Any, values: Values) -> list[str]:
    """Returns notes on a format and a model that the tables do not have."""


class Renamed(containers.Arrays):
  """Presents an open file's arrays under other names."""

  def __init__(
    self,
    arrays: containers.Arrays,
    rename: Callable[[str], str] = str,
    restore: Callable[[str], str] = str,
    show: Callable[[str], str] = str,
  ):
    """Wraps an open file.

    Args:
      arrays: Arrays of the file.
      rename: Name in the file -> name here.
      restore: Name here -> name in the file, also for missing arrays.
      show: Name in the file -> name in messages.
    """
    self._restore = restore
    self._show = show
    self._stored = {rename(name): name for name in arrays.shapes}
    super().__init__(
      {name: arrays.shapes[stored] for name, stored in self._stored.items()},
      lambda name: arrays.read(self._stored[name]),
    )

  def stored(self, name: str) -> str:
    """Returns the name that an array has in the file, or would have."""
    return self._show(self._stored.get(name) or self._restore(name))


def renaming(text: str, back: bool = False) -> Callable[[str], str]:
  """Returns what renames arrays by the lines of a text, one after the other.

  A line has how a name begins, and how the new one does, or with `back` the
  other way round; `#` are numbers, which are kept.
  """
  pairs = [line.split()[:: -1 if back else 1] for line in text.splitlines()]
  rules = [(tables.pattern(x[0]), x[1]) for x in pairs if x]

  def rename(name: str) -> str:
    for pattern, new in rules:
      if match := pattern.match(name):
        name = tables.numbered(new, match.groups()) + name[match.end() :]
    return name

  return rename


Derivations = Mapping[str, tuple[Sequence[str], Callable[..., np.ndarray]]]


def derived(
  arrays: containers.Arrays, derivations: Derivations
) -> containers.Arrays:
  """Returns arrays of a file, and others in place of those they are made of.

  `derivations` have the names of arrays in the file, and the function of these
  arrays that returns the new one.
  """
  used = {x for names, _ in derivations.values() for x in names}
  shapes = {k: x for k, x in arrays.shapes.items() if k not in used}
  for name, (names, make) in derivations.items():
    # The functions give the shapes for broadcast bytes. These take no memory
    # unless they are joined: then a quarter of the array's.
    probes = (np.broadcast_to(np.uint8(0), arrays.shapes[x]) for x in names)
    shapes[name] = make(*probes).shape

  def read(name: str) -> np.ndarray:
    if name not in derivations:
      return arrays.read(name)
    names, make = derivations[name]
    return make(*map(arrays.read, names))

  return containers.Arrays(shapes, read)


def image_size(
  rows: int | None,
  patch: Sequence[int],
  file: FileFacts,
  default: Size | None = None,
  is_relative: bool = False,
) -> Size:
  """Returns the image size (height, width) that a file's positions are for.

  Args:
    rows: Number of patches that have a position; None if the model has no
      positions.
    patch: (height, width) of the pixels of one token.
    file: Its requested size is used if the grid is not square and no file
      defines it.
    default: Size in the format's own files.
    is_relative: Whether positions are relative: of h x w patches there are
      (2 h - 1) (2 w - 1) + 3 rows.
  """
  if rows is None:
    height, width = (max(224 // p, 1) * p for p in patch[:2])
    fallback = height, width
    return file.stored_size or file.image_size or default or fallback
  side, noun = square_side(rows), 'positions are no'
  if is_relative:
    side = (square_side(rows - 3) + 1) // 2
    noun = 'relative positions are of no'
  square = (side * patch[0], side * patch[1]) if side else None
  for size in filter(
    None, (file.stored_size, default, square, file.image_size)
  ):
    h, w = size[0] // patch[0], size[1] // patch[1]
    if rows == ((2 * h - 1) * (2 * w - 1) + 3 if is_relative else h * w):
      return size
  raise UserError(
    f'its {rows} {noun} square grid: say for which images they are, with'
    ' image_size= (on the command line --image_size=HxW)'
  )


def num_heads(values: Values, default: int | None = None) -> int:
  """Returns the number of heads, which the shape of a fused qkv does not show.

  It is `default`, that of the file's kind, or that of the published ViT of the
  same sizes (`values`).
  """
  sizes = {k: values[k] for k in ('hidden_size', 'mlp_dim', 'depth')}
  published = (
    x['num_heads'] for x in named.SIZES.values() if sizes.items() <= x.items()
  )
  number = default or next(published, None)
  if number is None:
    raise UserError(
      f'its arrays do not say how many heads {sizes["hidden_size"]} channels'
      ' are divided into: give num_heads= (on the command line'
      ' --model.num_heads=; in a run --config.model.num_heads=)'
    )
  return number


def count_patches(size: Size, patch: Sequence[int]) -> int:
  """Returns the number of patches; both sizes are (height, width) in pixels."""
  return (size[0] // patch[0]) * (size[1] // patch[1])


def patch_pixels(values: Values) -> list[int]:
  """Returns (height, width) of a ViT's patch in pixels of the image."""
  stages = values.get('patches.stages')
  stride = 1 if stages is None else 4 * 2 ** max(len(stages) - 1, 0)
  return [stride * side for side in values['patch_size']]


def square_side(tokens: int) -> int:
  """Returns the side of a square grid; 0 if `tokens` is no square."""
  side = math.isqrt(max(tokens, 0))
  return side if side * side == tokens else 0


def ratio(number: int, base: int) -> float:
  """Returns r with int(base * r) == number, as an int if possible."""
  result = number / base
  if int(base * result) != number:
    result = math.nextafter(result, math.inf)
  return int(result) if result == int(result) else result


def per_channel(values: tuple[float, ...], channels: int) -> list[float]:
  """Returns a mean or standard deviation as one number for each channel."""
  return list(values) * (channels if len(values) == 1 else 1)
