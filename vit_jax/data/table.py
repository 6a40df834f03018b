"""Tables with one example a row: `table:FILE` of CSV, TSV or Parquet.

One column holds the images, as paths (relative to the table's folder) or, in
Parquet, as encoded bytes. Others hold a class, several classes (a list; in
text, separated by semicolons or bars) or numbers. Without
`config.data.columns`, columns are found by their usual names (`rows.USUAL`). A
column `split` names the split of each row; without it, all rows are in train.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import csv
import os
from typing import Any

import ml_collections

from vit_jax.config import explained
from vit_jax.config import import_package
from vit_jax.config import one_line
from vit_jax.config import reason
from vit_jax.config import UserError
from vit_jax.data import codes as codes_lib
from vit_jax.data import folder
from vit_jax.data import rows

ENDINGS = ('.csv', '.tsv', '.parquet')


class TableSource(rows.RowSource):
  """The rows of a split of a table."""

  def __init__(
    self,
    path: str,
    split: str,
    columns: ml_collections.ConfigDict,
    image_shape: tuple[int, int] | None = None,
    codes: codes_lib.Codes | None = None,
  ):
    """Reads the table, but no image files.

    `columns` is `config.data.columns`; see `rows.RowSource` for the rest.

    Raises:
      UserError: There is no such file, column or split, or a row does not fit.
    """
    self._path = path
    self._table = _read(path)
    candidates = {
      name: [x for x in usual if x in self._table]
      for name, usual in rows.USUAL.items()
    }
    names = rows.choose(path, columns, list(self._table), candidates)
    self._images = self._table[names['image']]
    self._has_paths = len(self._images) > 0 and isinstance(self._images[0], str)
    by_split = self._rows_of_splits(names.get('split'))
    directory = os.path.dirname(path)
    super().__init__(
      path, split, names, by_split, directory, {}, image_shape, codes
    )

  def _cell(self, column: str, row: rows.Row) -> Any:
    return self._table[column][row[1]]

  def _where(self, row: rows.Row) -> str:
    return f'{self._path}, row {row[1] + 1}'

  def _key(self, row: rows.Row) -> str:
    path = self._images[row[1]] if self._has_paths else None
    return path or f'row {row[1] + 1}'

  def _rows_of_splits(self, column: str | None) -> dict[str, list[int]]:
    """Returns the rows of each split; without a column, all are in train."""
    if not len(self._images):
      raise UserError(f'{self._path} has no rows')
    found: dict[str, list[int]] = {}
    for row in range(len(self._images)):
      cell = self._table[column][row] if column else None
      name = folder.split_name('' if cell is None else str(cell))
      found.setdefault(name or 'train', []).append(row)
    return {
      name: found[name]
      for name in sorted(found, key=lambda x: (x != 'train', x))
    }


def _read(path: str) -> dict[str, Sequence[Any]]:
  """Returns the columns of a table by name.

  Raises:
    UserError: The file cannot be read, or is no table.
  """
  ending = os.path.splitext(path)[1].lower()
  if ending not in ENDINGS:
    raise UserError(
      f'config.data.name=table:{path}: a table ends with {", ".join(ENDINGS)}'
    )
  try:
    if ending == '.parquet':
      return _read_parquet(path)
    with open(path, encoding='utf-8-sig', newline='') as file:
      return _read_text(path, file, '\t' if ending == '.tsv' else ',')
  except OSError as e:
    raise UserError(f'cannot read {path}: {reason(e)}') from None
  except UnicodeDecodeError:
    raise UserError(f'{path} is not UTF-8 text: store it as such') from None


def _read_text(
  path: str, file: Iterator[str], delimiter: str
) -> dict[str, Sequence[Any]]:
  with explained(f'{path} is damaged', csv.Error):
    lines = list(csv.reader(file, delimiter=delimiter, strict=True))
  lines = [line for line in lines if line]
  if not lines:
    raise UserError(f'{path} is empty')
  head, *rows = lines
  twice = [name for name in head if name and head.count(name) > 1]
  if twice:
    raise UserError(f'{path} has two columns {twice[0]!r}: rename one')
  for number, row in enumerate(rows, 1):
    if len(row) != len(head):
      raise UserError(
        f'{path}, row {number}: it has {len(row)} cells, and the first line'
        f' names {len(head)} columns'
      )
  return {name: [row[i] for row in rows] for i, name in enumerate(head)}


class _Cells(Sequence[Any]):
  """A column of Arrow; a cell becomes a Python object when it is read."""

  def __init__(self, column: Any):
    self._column = column

  def __len__(self) -> int:
    return len(self._column)

  def __getitem__(self, row: Any) -> Any:
    return self._column[row].as_py()


def _read_parquet(path: str) -> dict[str, Sequence[Any]]:
  what = f'{path}: Parquet'
  pa = import_package(what, 'pyarrow', 'tables')
  parquet = import_package(what, 'pyarrow.parquet', 'tables')
  try:
    table = parquet.read_table(path, memory_map=True)
  except pa.ArrowException as e:
    raise UserError(f'{path} is damaged: {one_line(e)[:200]}') from None
  return {
    name: _Cells(column)
    for name, column in zip(table.column_names, table.columns, strict=True)
  }
