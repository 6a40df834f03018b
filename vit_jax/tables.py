"""The one writer of tables: for a terminal, as Markdown, CSV and JSON.

clu's `parameter_overview.make_table` draws a box around dataclasses, and cannot
fold a table; rich's tables take 50 ms to import, which a log does not need.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import csv
import dataclasses
import json
import re
import shutil
import sys
import textwrap
from typing import Any
from typing import IO

from vit_jax.config import number

Cell = Any  # a text, a number, or None: there is no value

# As '1,024', 'x 0.5', '81.2%', '0.81 (0.79 to 0.83)' and '12.3 ± 0.4'.
_NUMBER = re.compile(
  r'(x )?[-+±]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ?%| [KMGT]?i?B| ms| G?FLOP)?'
  r'( ?(±|\().*)?|[-+]?(nan|inf)|-|'
)
_LAYER = re.compile(r'\bblocks_(\d+)/')  # in the path of a parameter
_GAP = '  '  # between columns
_LEAST_TEXT = 24  # letters of a line in a column of texts that is folded


def room(stream: IO[str] | None = None) -> int | None:
  """Returns the columns of the terminal; None: the stream is not a terminal.

  `stream` is where a table is printed; None is stdout.
  """
  stream = sys.stdout if stream is None else stream
  return shutil.get_terminal_size().columns if stream.isatty() else None


@dataclasses.dataclass(frozen=True)
class Table:
  """Rows below the names of their columns.

  Attributes:
    names: Names of the columns, with units; (): as text, the table has no head.
    rows: The cells of each row.
    formats: How a column's numbers are written as text, by its name, such as
      '.4f'; otherwise as `number` and integers with commas.
  """

  names: Sequence[str]
  rows: Iterable[Sequence[Cell]]
  formats: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def text(self, width: int | None = None, indent: str = '') -> str:
    """Returns the table for people.

    Columns of numbers are aligned to the right. If the table is too wide, texts
    in its last column continue on further lines; if these would be too short,
    columns continue in a further table, which repeats the first column.

    Args:
      width: Most letters of a line; None: any number.
      indent: What each line begins with.

    Returns:
      Lines without spaces at their ends.
    """
    body = [self._texts(row) for row in self.rows]
    cells = [list(self.names), *body] if self.names else body
    if not cells:
      return ''
    right = [
      all(_NUMBER.fullmatch(cell) for cell in column)
      for column in zip(*body, strict=True)
    ] or [False] * len(self.names)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    space = None if width is None else width - len(indent)
    lines = _folded(cells, widths, right, space)
    return '\n'.join(f'{indent}{line}'.rstrip() for line in lines)

  def stream(self, widths: Sequence[int]) -> Iterator[str]:
    """Yields the lines of the table for people before all its rows are known.

    `widths` are the letters of each column but the last.
    """
    right = [name in self.formats for name in self.names]
    yield _line(self.names, [*widths, 0], right)
    for row in self.rows:
      yield _line(self._texts(row), [*widths, 0], right)

  def markdown(self) -> list[str]:
    """Returns the lines of the table as Markdown."""
    lines = [' | '.join(self._texts(row)) for row in self.rows]
    head = ' | '.join(self.names)
    rule = '|' + '---|' * len(self.names)
    return [f'| {head} |', rule, *(f'| {line} |' for line in lines)]

  def write_csv(self, file: IO[str]) -> None:
    """Writes the table as CSV; numbers are whole, and lists are JSON."""
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(self.names)
    for row in self.rows:
      writer.writerow(
        [json.dumps(x) if isinstance(x, list) else x for x in row]
      )

  def _texts(self, row: Sequence[Cell]) -> list[str]:
    names = self.names or [''] * len(row)
    return [
      _text(cell, self.formats.get(name, ''))
      for name, cell in zip(names, row, strict=True)
    ]


def by_layers(
  rows: Iterable[tuple[str, tuple[Cell, ...]]],
) -> list[tuple[str, tuple[Cell, ...], int]]:
  """Puts rows of layers that are alike into one.

  `rows` are paths of parameters, as 'blocks_3/norm1/bias', and their cells. The
  result has the paths as 'blocks_0..3,5/norm1/bias', the cells, and the number
  of rows.
  """
  layers: dict[tuple[str, tuple[Cell, ...]], set[int]] = {}
  for path, cells in rows:
    row = _LAYER.sub('blocks_*/', path), cells
    layers.setdefault(row, set()).update(map(int, _LAYER.findall(path)))
  return [
    (path.replace('*', _ranges(numbers)), cells, max(len(numbers), 1))
    for (path, cells), numbers in layers.items()
  ]


def _ranges(numbers: Set[int]) -> str:
  """Returns numbers as '0,2,5..7'."""
  starts = sorted(n for n in numbers if n - 1 not in numbers)
  ends = sorted(n for n in numbers if n + 1 not in numbers)
  return ','.join(
    str(start) if start == end else f'{start}..{end}'
    for start, end in zip(starts, ends, strict=True)
  )


def write_json(objects: Iterable[Mapping[str, Any]], file: IO[str]) -> None:
  """Writes an array of JSON with an object on each line, as they come."""
  separator = '['
  for entry in objects:
    file.write(f'{separator}\n{json.dumps(entry)}')
    separator = ','
  file.write('\n]\n' if separator == ',' else '[]\n')


def _text(cell: Cell, form: str) -> str:
  if cell is None:
    return ''
  if isinstance(cell, str | bool):
    return str(cell)
  if form:
    return format(cell, form)
  return f'{cell:,}' if isinstance(cell, int) else number(cell)


def _line(
  cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]
) -> str:
  return _GAP.join(
    cell.rjust(width) if is_right else cell.ljust(width)
    for cell, width, is_right in zip(cells, widths, right, strict=True)
  ).rstrip()


def _folded(
  cells: Sequence[list[str]],
  widths: Sequence[int],
  right: Sequence[bool],
  space: int | None,
) -> Iterator[str]:
  """Yields the lines of cells in at most `space` letters, where they fit."""
  parts: Iterable[list[int]] = [[*range(len(widths))]]
  total = sum(widths) + len(_GAP) * (len(widths) - 1)
  if space is not None and total > space:
    last = space - (total - widths[-1])
    if last >= _LEAST_TEXT and not right[-1]:
      wrapped = []
      for *texts, text in cells:
        first, *more_lines = textwrap.wrap(text, last) or ['']
        wrapped.append([*texts, first])
        wrapped += [[''] * len(texts) + [line] for line in more_lines]
      cells = wrapped
    else:
      parts = _parts(widths, space)
  for i, part in enumerate(parts):
    if i:
      yield ''
    for row in cells:
      yield _line(
        [row[k] for k in part],
        [widths[k] for k in part],
        [right[k] for k in part],
      )


def _parts(widths: Sequence[int], space: int) -> Iterator[list[int]]:
  """Yields the columns of each of the tables that a wide one becomes."""
  part, used = [0], widths[0]
  for i, width in enumerate(widths[1:], 1):
    if len(part) > 1 and used + len(_GAP) + width > space:
      yield part
      part, used = [0], widths[0]
    part.append(i)
    used += len(_GAP) + width
  yield part
