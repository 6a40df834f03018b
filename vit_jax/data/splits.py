"""Split specifications: `train`, `train[:90%]`, `train[:500]+test[50%:]`.

Grammar and rounding are as in TFDS, but work for every source, and do not
import it. As in TFDS, a `%` on either bound applies to both: `[10%:-5]` stops
five percent before the end.
"""

import bisect
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import itertools
import re

from vit_jax.config import counted
from vit_jax.config import UserError

_BOUND = r'(?:(-?[\d_.]+)(%?))?'
_PART = re.compile(rf'([\w-]+)(?:\[{_BOUND}:{_BOUND}\])?')


class SplitError(UserError):
  """The data has no such split.

  Attributes:
    only: Name of the data's only split, if another was requested; else ''.
  """

  only: str = ''


@dataclasses.dataclass(frozen=True)
class Part:
  """One term of a specification: a split, or a slice of it."""

  name: str
  start: float | None = None  # examples or percent; negative: from the end
  stop: float | None = None
  percent: bool = False

  def __str__(self) -> str:
    if self.start is None and self.stop is None:
      return self.name
    unit = '%' if self.percent else ''
    start, stop = (
      '' if x is None else f'{x:g}{unit}' for x in (self.start, self.stop)
    )
    return f'{self.name}[{start}:{stop}]'

  def bounds(self, size: int) -> tuple[int, int]:
    """Returns the first row and one past the last, of `size` rows."""

    def row(bound: float | None, default: int) -> int:
      if bound is None:
        return default
      return round(bound * size / 100.0) if self.percent else int(bound)

    start, stop = row(self.start, 0), row(self.stop, size)
    if max(abs(start), abs(stop)) > size:
      raise UserError(
        f"split '{self}' reaches beyond the {counted(size, 'example')} of"
        f" '{self.name}'"
      )
    return start + size * (start < 0), stop + size * (stop < 0)


def parse(spec: str) -> tuple[Part, ...]:
  """Returns the terms of a specification, which `+` joins."""
  try:
    return tuple(map(_parse_part, re.split(r'\s*\+\s*', spec)))
  except ValueError:
    raise UserError(
      f'{spec!r} is not a split: write a name with or without a slice, as in'
      " 'train', 'train[:90%]' or 'train[:500]+test'"
    ) from None


def _parse_part(text: str) -> Part:
  """Returns a term; a ValueError if it follows no grammar."""
  match = _PART.fullmatch(text)
  if match is None:
    raise ValueError(text)
  name, *bounds = match.groups()
  if '[' not in text:
    return Part(name)
  percent = '%' in bounds
  start, stop = (
    x if x is None else float(x) if percent else int(x) for x in bounds[::2]
  )
  if start is stop is None or (
    percent and max(abs(start or 0), abs(stop or 0)) > 100
  ):
    raise ValueError(text)
  return Part(name, start, stop, percent)


def chosen(
  spec: str, names: Iterable[str], aliases: Mapping[str, str]
) -> set[str]:
  """Returns the names of the splits that a specification, or 'all', reads."""
  if spec == 'all':
    return set(names)
  return {aliases.get(part.name, part.name) for part in parse(spec)}


class Selection:
  """The examples that a specification names, by position.

  Attributes:
    ranges: (name of the whole split, first row, one past the last row) of each
      term.
  """

  def __init__(
    self,
    spec: str,
    sizes: Mapping[str, int],
    data_name: str,
    aliases: Mapping[str, str] | None = None,
  ):
    """Resolves a specification among whole splits, of these sizes."""
    if spec == 'all':
      spec = '+'.join(sizes)
    self.ranges: list[tuple[str, int, int]] = []
    self._offsets: dict[str, int] = {}
    offset = 0
    for part in parse(spec):
      name = (aliases or {}).get(part.name, part.name)
      if name not in sizes:
        names = list(sizes)
        error = SplitError(
          f'{data_name} has no split {name!r}: choose from {", ".join(names)},'
          f" or a slice of one, as in '{names[0]}[90%:]'"
        )
        error.only = names[0] if len(names) == 1 else ''
        raise error
      part = dataclasses.replace(part, name=name)
      try:
        self.ranges.append((name, *part.bounds(sizes[name])))
      except UserError as e:
        raise SplitError(f'{data_name}: {e}') from None
      if name not in self._offsets:
        self._offsets[name] = offset
        offset += sizes[name]
    lengths = [max(0, stop - start) for _, start, stop in self.ranges]
    self._ends = list(itertools.accumulate(lengths))
    if not len(self):
      raise SplitError(f'{data_name}: split {spec!r} is empty')

  @property
  def names(self) -> list[str]:
    """Names of the whole splits that are read."""
    return list(self._offsets)

  def __len__(self) -> int:
    return self._ends[-1]

  def locate(self, position: int) -> tuple[str, int, int]:
    """Returns (name of the whole split, row in it, index) of an example.

    The index is the row plus the sizes of the whole splits that come before its
    split in the specification, so it does not depend on the slices.
    """
    i = bisect.bisect_right(self._ends, position)
    name, _, stop = self.ranges[i]
    row = stop - (self._ends[i] - position)
    return name, row, row + self._offsets[name]
