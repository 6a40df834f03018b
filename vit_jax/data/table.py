"""Examples in a table, a row for each: `table:FILE` of CSV, TSV or Parquet.

A column has images, as paths (relative to the table's folder) or, in Parquet,
as encoded bytes. Others have a class, several classes (a list; in text they are
separated by semicolons or bars) or numbers. `config.data.columns` says which is
which; without, columns are known by their usual names. A column `split` names
the split of each row; without, all are in train. Rows are ordered by a hash of
their path or number, so that a slice holds all classes.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import csv
import os
import re
from typing import Any

import ml_collections
import numpy as np

from vit_jax.config import one_line
from vit_jax.config import some
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data import splits
from vit_jax.data.host import decode

ENDINGS = ('.csv', '.tsv', '.parquet')
# Columns that are taken where the config names none.
_USUAL = {
  'image': 'image image_path img path file file_name filename filepath'.split(),
  'label': 'label class target'.split(),
  'labels': 'labels classes tags'.split(),
  'split': ['split'],
}


class TableSource(base.Source):
  """The rows of a split of a table."""

  def __init__(self, path: str, split: str, columns: ml_collections.ConfigDict):
    """Reads the table, but no image that has a file of its own.

    Args:
      path: Of the file.
      split: A split specification.
      columns: `config.data.columns`.

    Raises:
      UserError: There is no such file, column or split, or a row does not fit.
    """
    self._path, self._folder = path, os.path.dirname(path)
    self._table = _read(path)
    self._names = _choose(path, columns, list(self._table))
    rows = self._rows_of_splits()
    self.features = self._find_features(rows)
    self._selection = splits.Selection(
      split, {name: len(x) for name, x in rows.items()}, path
    )
    self._rows = rows

  def __len__(self) -> int:
    return len(self._selection)

  def read(self, position: int) -> base.Example:
    """Returns an example, not decoded.

    Raises:
      UserError: Its image cannot be read, or its class is not one of train.
    """
    row, index = self._locate(position)
    where = self._where(row)
    values = {
      name: self._value(name, row) for name in features.targets(self.features)
    }
    cell = self._image(row)
    if isinstance(cell, str):
      where = f'{cell} ({where})'
      try:
        cell = folder.read_image(cell)
      except UserError as e:
        raise UserError(f'{self._where(row)}: {e}') from None
    if not isinstance(cell, bytes):
      raise UserError(f'{where}: there is no image')
    return base.Example({'image': cell, **values}, index, where)

  def file(self, position: int) -> str | None:
    """Returns the path of an example's image, None where the table holds it."""
    cell = self._image(self._locate(position)[0])
    return cell if isinstance(cell, str) else None

  def id(self, position: int) -> str:
    """Returns the path of an example's image, or the number of its row."""
    row, _ = self._locate(position)
    return self._key(row)

  def bits(self) -> int:
    """Returns 16 where one of the first 64 images has 16, by its header."""
    found = [8]
    for position in range(min(len(self), 64)):
      cell = self._image(self._locate(position)[0])
      if isinstance(cell, bytes):
        found.append(decode.stored_bits(cell))
      elif cell is not None:
        found.append(folder.file_bits(cell))
    return max(found)

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]; reads no image."""
    target = features.targets(self.features)[name]
    rows = [self._locate(i)[0] for i in range(len(self))]
    return np.stack(
      [target.encode(self._value(name, row), self._where(row)) for row in rows]
    )

  def fingerprint(self) -> str:
    """Returns a digest of paths, targets and splits, not of the images."""
    targets = [x for key, x in self._names.items() if key != 'image']
    columns = [c for x in targets for c in ([x] if isinstance(x, str) else x)]
    cells = [repr(x) for name in columns for x in self._table[name]]
    keys = [self._key(row) for row in range(len(self._column('image')))]
    ranges = [str(term) for term in self._selection.ranges]
    return base.digest([*ranges, *columns, *keys, *cells])

  def _column(self, name: str) -> Sequence[Any]:
    return self._table[self._names[name]]

  def _where(self, row: int) -> str:
    return f'{self._path}, row {row + 1}'

  def _locate(self, position: int) -> tuple[int, int]:
    """Returns an example's row in the table, and its index."""
    split, place, index = self._selection.locate(position)
    return self._rows[split][place], index

  def _image(self, row: int) -> str | bytes | None:
    """Returns the path of an image, or its bytes."""
    cell = self._column('image')[row]
    if isinstance(cell, Mapping):  # as the datasets library stores it
      cell = cell.get('bytes') or cell.get('path')
    if isinstance(cell, str) and cell:
      return os.path.join(self._folder, os.path.expanduser(cell))
    return cell or None

  def _key(self, row: int) -> str:
    cell = self._column('image')[row]
    return cell if isinstance(cell, str) else f'row {row + 1}'

  def _rows_of_splits(self) -> dict[str, list[int]]:
    """Returns the rows of each split, ordered by a hash."""
    count = len(self._column('image'))
    if not count:
      raise UserError(f'{self._path} has no rows')
    rows: dict[str, list[int]] = {}
    for row in range(count):
      name = str(self._column('split')[row]) if 'split' in self._names else ''
      name = folder.split_name(name) or name or 'train'
      rows.setdefault(name, []).append(row)
    for each in rows.values():
      each.sort(key=lambda row: folder.hash_order(self._key(row)))
    return {
      name: rows[name] for name in sorted(rows, key=lambda x: (x != 'train', x))
    }

  def _find_features(
    self, rows: Mapping[str, Sequence[int]]
  ) -> dict[str, features.Feature]:
    found: dict[str, features.Feature] = {'image': features.Image()}
    train = rows.get('train') or [row for each in rows.values() for row in each]
    if 'label' in self._names:
      cells = {self._text('label', row) for row in train}
      found['label'] = features.Label(_in_order(cells))
    if 'labels' in self._names:
      several = {x for row in train for x in self._several(row)}
      found['labels'] = features.MultiLabel(_in_order(several))
    if numbers := self._names.get('numbers'):
      found['numbers'] = features.Number(tuple(numbers))
    self._positions = {
      name: {x: i for i, x in enumerate(target.names)}
      for name, target in found.items()
    }
    return found

  def _text(self, name: str, row: int) -> str:
    """Returns a class in a cell."""
    cell = self._column(name)[row]
    if cell is None or cell == '':
      raise UserError(
        f'{self._where(row)}: column {self._names[name]!r} is empty: it must'
        ' have a class'
      )
    return str(cell)

  def _several(self, row: int) -> list[str]:
    """Returns the classes in a cell; none where it is empty."""
    cell = self._column('labels')[row]
    if cell is None:
      return []
    parts = re.split('[;|]', cell) if isinstance(cell, str) else cell
    return [str(x).strip() for x in parts if str(x).strip()]

  def _value(self, name: str, row: int) -> Any:
    """Returns a target as its feature encodes it."""
    if name == 'numbers':
      return [self._number(column, row) for column in self._names['numbers']]
    cells = [self._text(name, row)] if name == 'label' else self._several(row)
    known = self._positions[name]
    for cell in cells:
      if cell not in known:
        raise UserError(
          f'{self._where(row)}: {cell!r} is not a class of train: they are'
          f' {some(tuple(known))}'
        )
    found = [known[cell] for cell in cells]
    return found[0] if name == 'label' else found

  def _number(self, column: str, row: int) -> float:
    cell = self._table[column][row]
    try:
      return float(cell)
    except (TypeError, ValueError):
      raise UserError(
        f'{self._where(row)}: {column} is {cell!r}, which is no number'
      ) from None


def _in_order(names: set[str]) -> tuple[str, ...]:
  """Sorts classes: whole numbers by their size, others as text."""
  if all(re.fullmatch(r'-?\d+', name) for name in names):
    return tuple(sorted(names, key=int))
  return tuple(sorted(names))


def _choose(
  path: str, columns: ml_collections.ConfigDict, there: list[str]
) -> dict[str, Any]:
  """Returns the columns of the features, by the names of these.

  Raises:
    UserError: One that the config names is missing, or there is no image or
      nothing to learn.
  """
  chosen: dict[str, Any] = {}
  is_open = not (columns.label or columns.labels or columns.numbers)
  for name, usual in _USUAL.items():
    found = [x for x in usual if x in there]
    if columns[name]:
      chosen[name] = columns[name]
    elif found and (is_open or name in ('image', 'split')):
      chosen[name] = found[0]
  if is_open and 'label' in chosen:
    chosen.pop('labels', None)
  if columns.numbers:
    chosen['numbers'] = tuple(columns.numbers)
  single = [x for k, x in chosen.items() if k != 'numbers']
  for name in (*single, *chosen.get('numbers', ())):
    if name not in there:
      raise UserError(
        f'config.data.columns names {name!r}, but the columns of {path} are'
        f' {some(there, 12)}'
      )
  if 'image' not in chosen:
    raise UserError(
      f'{path} has the columns {some(there, 12)}: say which has the images, as'
      f' in --config.data.columns.image={there[0]}'
    )
  return chosen


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
    raise UserError(
      f'cannot read {path}: {e.strerror or one_line(e)}'
    ) from None
  except UnicodeDecodeError:
    raise UserError(f'{path} is not UTF-8 text: store it as such') from None


def _read_text(
  path: str, file: Iterator[str], delimiter: str
) -> dict[str, Sequence[Any]]:
  try:
    lines = list(csv.reader(file, delimiter=delimiter, strict=True))
  except csv.Error as e:
    raise UserError(f'{path} is damaged: {one_line(e)}') from None
  lines = [line for line in lines if line]
  if not lines:
    raise UserError(f'{path} is empty')
  head, *rows = lines
  for number, row in enumerate(rows, 1):
    if len(row) != len(head):
      raise UserError(
        f'{path}, row {number}: it has {len(row)} cells, and the first line'
        f' names {len(head)} columns'
      )
  return {name: [row[i] for row in rows] for i, name in enumerate(head)}


class _Cells(Sequence[Any]):
  """A column of Arrow, whose cells become Python objects one by one."""

  def __init__(self, column: Any):
    self._column = column

  def __len__(self) -> int:
    return len(self._column)

  def __getitem__(self, row: Any) -> Any:
    return self._column[row].as_py()


def _read_parquet(path: str) -> dict[str, Sequence[Any]]:
  try:
    import pyarrow as pa
    from pyarrow import parquet
  except ImportError:
    raise UserError(
      f"{path}: Parquet needs pyarrow: pip install -e '.[tables]'"
    ) from None
  try:
    table = parquet.read_table(path, memory_map=True)
  except pa.ArrowException as e:
    raise UserError(f'{path} is damaged: {one_line(e)[:200]}') from None
  return {
    name: _Cells(column)
    for name, column in zip(table.column_names, table.columns, strict=True)
  }
