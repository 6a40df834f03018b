"""Tables with one example a row: `table:FILE` of CSV, TSV or Parquet.

One column holds the images, as paths (relative to the table's folder) or, in
Parquet, as encoded bytes. Others hold a class, several classes (a list; in
text, separated by semicolons or bars) or numbers. Without
`config.data.columns`, columns are found by their usual names
(`rows.USUAL_NAMES`). A column `split` names the split of each row; without it,
all rows are in train. Cells of text may also be separated by semicolons, tabs
or bars, as the first line shows. Spaces around names and cells do not count,
but in captions.
"""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import csv
import io
import itertools
import os
import re
from typing import Any

import ml_collections

from vit_jax.config import import_package
from vit_jax.config import nearby
from vit_jax.config import one_line
from vit_jax.config import reason
from vit_jax.config import UserError
from vit_jax.data import folder
from vit_jax.data import rows
from vit_jax.data import stored as stored_lib
from vit_jax.runs import safe_io

ENDINGS = ('.csv', '.tsv', '.parquet')
_DELIMITERS = {',': 'commas', '\t': 'tabs', ';': 'semicolons', '|': 'bars'}
_FIRST_LINE = re.compile(r'sep=([,\t;|])\r?\n')  # spreadsheets may write it


class TableSource(rows.RowSource):
  """The rows of a split of a table."""

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    """Reads the table, but no image files.

    A table that cannot be read raises a UserError, as does a row that does not
    fit.
    """
    self._path = path = stored_lib.data_path(config.data.name)
    columns = config.data.columns
    self._table = _read(path, rows.all_columns(columns.to_dict()))
    candidates = {
      name: [x for x in usual_names if x in self._table]
      for name, usual_names in rows.USUAL_NAMES.items()
    }
    names = rows.choose(path, columns, list(self._table), candidates)
    self._images = self._table[names['image']]
    self._has_paths = len(self._images) > 0 and isinstance(self._images[0], str)
    if not len(self._images):
      raise UserError(f'{path} has no rows')
    by_split: dict[str, list[int]] = {}
    for row in range(len(self._images)):
      cell = self._table[names['split']][row] if 'split' in names else None
      name = folder.split_name('' if cell is None else str(cell).strip())
      by_split.setdefault(name or 'train', []).append(row)
    by_split = dict(
      sorted(by_split.items(), key=lambda x: (x[0] != 'train', x[0]))
    )
    directory = os.path.dirname(path)
    super().__init__(config, split, names, by_split, directory, data_name=path)

  @classmethod
  def check_config(cls, config: ml_collections.ConfigDict) -> None:
    """Checks that there is the file that `config.data.name` names."""
    path = stored_lib.data_path(config.data.name)
    if not os.path.isfile(path):
      hint = nearby(path, os.path.isfile)
      raise UserError(f'config.data.name: there is no file {path!r}{hint}')

  def _cell(self, column: str, row: rows.Row) -> Any:
    return self._table[column][row[1]]

  def _row_name(self, row: rows.Row) -> str:
    return f'{self._path}, row {row[1] + 1}'

  def key(self, split: str, row: int) -> str:
    """Returns the path of a row's image, or the number of the row."""
    path = self._images[row] if self._has_paths else None
    return (path or '').strip() or f'row {row + 1}'


def _read(path: str, named: Collection[str]) -> dict[str, Sequence[Any]]:
  """Returns the columns of a table by name; the config has some, `named`."""
  ending = os.path.splitext(path)[1].lower()
  if ending not in ENDINGS:
    raise UserError(
      f'config.data.name=table:{path}: a table ends with {", ".join(ENDINGS)}'
    )
  try:
    if ending == '.parquet':
      return _read_parquet(path)
    with open(path, 'rb') as file:
      text = safe_io.decoded(file.read())
  except OSError as e:
    raise UserError(f'cannot read {path}: {reason(e)}') from None
  except UnicodeDecodeError:
    raise UserError(f'{path} is not UTF-8 text: store it as such') from None
  default = '\t' if ending == '.tsv' else ','
  if match := _FIRST_LINE.match(text):
    text, default = text[match.end() :], match[1]
  likely_names = {*named, *itertools.chain(*rows.USUAL_NAMES.values())}
  problems = []
  for delimiter in _delimiters(text, default, likely_names):
    try:
      columns = _columns(path, text, delimiter)
    except UserError as e:
      problems.append(e)
      continue
    if delimiter != default:
      folder.inform_once(f'{path}: {_DELIMITERS[delimiter]} separate its cells')
    return columns
  raise problems[0]


def _delimiters(
  text: str, default: str, likely_names: Collection[str]
) -> Sequence[str]:
  """Returns what may separate cells, by the first line; the likeliest first."""
  scores = {}
  for delimiter in _DELIMITERS:
    try:
      head = next(_lines(text, delimiter), [])
    except csv.Error:
      head = []
    if len(head) > 1 or delimiter == default:
      names = sum(name.strip() in likely_names for name in head)
      is_default = delimiter == default
      scores[delimiter] = names, len(head) > 1, is_default, len(head)
  return sorted(scores, key=lambda x: scores[x], reverse=True)


def _lines(text: str, delimiter: str) -> Iterator[list[str]]:
  file = io.StringIO(text, newline='')
  for line in csv.reader(file, delimiter=delimiter, strict=True):
    if len(line) > 1 or any(x.strip() for x in line):
      yield line


def _columns(path: str, text: str, delimiter: str) -> dict[str, Sequence[Any]]:
  try:
    lines = list(_lines(text, delimiter))
  except csv.Error as e:
    raise UserError(f'{path} is damaged: {one_line(e)}') from None
  if not lines:
    raise UserError(f'{path} is empty')
  head, *rows_of_cells = lines
  names = _names(path, head)
  for number, row in enumerate(rows_of_cells, 1):
    if len(row) != len(names):
      raise UserError(
        f'{path}, row {number}: it has {len(row)} cells, and the first line'
        f' names {len(names)} columns'
      )
  return {
    name: [row[i] for row in rows_of_cells] for i, name in enumerate(names)
  }


def _names(path: str, head: Sequence[str]) -> list[str]:
  names = [name.strip() for name in head]
  for name in names:
    if name and names.count(name) > 1:
      raise UserError(f'{path} has two columns {name!r}: rename one')
  return names


class _Cells(Sequence[Any]):
  """A column of Arrow; a cell becomes a Python object when it is read."""

  def __init__(self, column: Any):
    self._column = column

  def __len__(self) -> int:
    return len(self._column)

  def __getitem__(self, row: Any) -> Any:
    return self._column[row].as_py()


def _read_parquet(path: str) -> dict[str, Sequence[Any]]:
  purpose = f'{path}: Parquet'
  pa = import_package(purpose, 'pyarrow', 'tables')
  parquet = import_package(purpose, 'pyarrow.parquet', 'tables')
  try:
    table = parquet.read_table(path, memory_map=True)
  except pa.ArrowException as e:
    raise UserError(f'{path} is damaged: {one_line(e)[:200]}') from None
  names = _names(path, table.column_names)
  return dict(zip(names, map(_Cells, table.columns), strict=True))
