"""Sources of stored examples: rows of whole splits, and their files."""

import abc
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.data import base
from vit_jax.data import splits


class Table(base.Source):
  """Rows of whole splits, of which a specification selects some.

  A row is what its example is read from, as the path of a file or the number of
  a record. Subclasses define `example`, and where rows are no numbers `key`.

  Attributes:
    rows: Rows of each whole split. Of a split that is not read, they may be
      unordered or empty.
    selection: The rows that are read.
  """

  def __init__(
    self,
    spec: str,
    rows: Mapping[str, Sequence[Any]],
    data_name: str,
    aliases: Mapping[str, str] | None = None,
  ):
    """Selects rows by a specification, as 'train[:90%]'."""
    sizes = {name: len(split_rows) for name, split_rows in rows.items()}
    self.rows = rows
    self.selection = splits.Selection(spec, sizes, data_name, aliases)

  def __len__(self) -> int:
    return len(self.selection)

  @abc.abstractmethod
  def example(self, split: str, row: Any, index: int) -> base.Example:
    """Returns the example of a row, as it is stored, with an index."""

  def key(self, split: str, row: Any) -> str:
    """Returns a name of a row that does not depend on the slice."""
    return f'{split}/{row}'

  def path(self, split: str, row: Any) -> str | None:
    """Returns the path of a row's file, None where it has none."""
    del split, row
    return None

  def row(self, position: int) -> tuple[str, Any]:
    """Returns the whole split and the row of an example."""
    split, number, _ = self.selection.locate(position)
    return split, self.rows[split][number]

  def selected(self) -> Iterator[tuple[str, Any]]:
    """Yields the whole split and the row of all examples."""
    for split, start, stop in self.selection.ranges:
      for row in self.rows[split][start:stop]:
        yield split, row

  def read(self, position: int) -> base.Example:
    """Returns an example, as it is stored."""
    split, number, index = self.selection.locate(position)
    return self.example(split, self.rows[split][number], index)

  def file(self, position: int) -> str | None:
    """Returns the path of an example's file, None where it has none."""
    return self.path(*self.row(position))

  def id(self, position: int) -> str:
    """Returns a name of an example that does not depend on the slice."""
    return self.key(*self.row(position))


def sample(source: base.Source, most: int) -> Sequence[int]:
  """Returns the positions of some examples; the same ones in all runs."""
  if len(source) <= most:
    return range(len(source))
  rng = np.random.default_rng(0)
  return rng.choice(len(source), most, replace=False).tolist()


def data_path(name: str) -> str:
  """Returns the path in a `config.data.name` such as 'folder:PATH'."""
  prefix, colon, path = name.partition(':')
  config_lib.check_data(path, f'config.data.name={prefix}{colon}')
  return os.path.expanduser(path)


def source_size(
  config: ml_collections.ConfigDict,
) -> tuple[int, int] | None:
  """Returns the (height, width) that all stored images are said to have."""
  size = config.data.source_size
  return None if size is None else config_lib.pair(size, 'data.source_size')
