"""Writes tables: CSV, or Parquet if pyarrow is installed."""

from collections.abc import Sequence
import importlib.util
import os
import pathlib
from typing import Any

from vit_jax import tables
from vit_jax.config import UserError
from vit_jax.runs import safe_io


def check_path(
  flag: str, value: str, endings: Sequence[str] = ()
) -> pathlib.Path:
  """Returns the path of a file to write, from the value of a flag as '--out'.

  `endings` are those that the name may have, as '.csv'; (): any. A UserError
  says why the file cannot be written.
  """
  path = pathlib.Path(value)
  if endings and path.suffix not in endings:
    raise UserError(
      f'{flag}={path}: its name must end in {" or ".join(endings)}'
    )
  if not path.parent.is_dir():
    raise UserError(f'{flag}={path}: there is no folder {path.parent}')
  if path.is_dir():
    raise UserError(f'{flag}={path} is a folder: name a file')
  if not os.access(path.parent, os.W_OK | os.X_OK):
    raise UserError(f'{flag}={path}: nothing can be written in {path.parent}')
  needs_pyarrow = endings and path.suffix == '.parquet'
  if needs_pyarrow and not importlib.util.find_spec('pyarrow'):
    raise UserError(
      f'{flag}={path} needs pyarrow: run pip install pyarrow, or name a'
      f' {endings[0]} file'
    )
  return path


def write(path: pathlib.Path, columns: dict[str, list[Any]]) -> None:
  """Writes columns of equal length, by name, to a .csv or .parquet file.

  `file` holds names of files. Lists in a column become JSON in CSV.
  """
  with safe_io.replacing_path(path) as temporary:
    if path.suffix == '.parquet':
      import pyarrow as pa  # optional
      from pyarrow import parquet

      # The type is string even if all values are None.
      names = [as_text(name) for name in columns['file']]
      file = pa.array(names, pa.string())
      parquet.write_table(pa.table(columns | {'file': file}), temporary)
      return
    with temporary.open(
      'w', encoding='utf-8', newline='', errors='surrogateescape'
    ) as f:
      rows = zip(*columns.values(), strict=True)
      tables.Table([*columns], rows).write_csv(f)


def as_text(name: str | None) -> str | None:
  r"""Returns a file's name as valid text: other bytes become \xff."""
  if name is None:
    return None
  data = name.encode('utf-8', 'surrogateescape')
  return data.decode('utf-8', 'backslashreplace')
