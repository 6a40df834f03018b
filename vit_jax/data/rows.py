"""Sources whose examples are rows: an image, and cells of other columns.

`config.data.columns` assigns columns to features; by default they are found by
their names or types. Rows are ordered by a hash of their path or number, so
that a slice holds all classes.
"""

import abc
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
import re
from typing import Any

import ml_collections
import numpy as np

from vit_jax.config import explained
from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import codes as codes_lib
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data import splits
from vit_jax.data import target_kinds
from vit_jax.data import text_kind
from vit_jax.data.host import decode

Row = tuple[str, int]  # split, number of the row
# Column by feature name; a tuple for `numbers` and `text`.
Names = Mapping[str, Any]

# The names that columns of a feature usually have, best first.
USUAL_NAMES: Mapping[str, Sequence[str]] = {
  'image': 'image image_path img path file file_name filename filepath'.split(),
  'label': 'label class target'.split(),
  'labels': 'labels classes tags'.split(),
  'text': 'text caption captions title'.split(),
  'split': ['split'],
}


class RowSource(base.SelectedSource):
  """The rows of a split; a subclass says what is in their cells."""

  has_columns = True

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    split: str,
    names: Names,
    rows: Mapping[str, Sequence[int]],
    directory: str = '',
    classes: Mapping[str, tuple[str, ...]] | None = None,
    data_name: str = '',
  ):
    """Orders the rows of the splits that are asked for.

    Args:
      config: The full config.
      split: A split specification.
      names: The columns that are read.
      rows: Numbers of the rows of each split.
      directory: Directory that paths of images are relative to.
      classes: Classes by feature, where the data lists them. Otherwise they are
        collected from the rows of train.
      data_name: Name of the data, for errors; '': `config.data.name`.

    Raises:
      UserError: There is no such split, or a row of train has no class.
    """
    self._names, self._directory = names, directory
    self._codes = codes_lib.from_config(config)
    self._listed = classes = classes or {}
    data_name = data_name or config.data.name
    self.features = {
      'image': features.Image(base.source_size(config)),
      **self._find_targets(rows, classes),
    }
    if 'map' in names:
      self.features['map'] = self._codes.feature(
        self._codes.classes, 'config.data.map.classes'
      )
    self._positions = {
      name: {x: i for i, x in enumerate(target.names)}
      for name, target in features.targets(self.features).items()
    }
    sizes = {name: len(row_numbers) for name, row_numbers in rows.items()}
    aliases = folder.other_names(data_name, split, rows)
    self._selection = splits.Selection(split, sizes, data_name, aliases)
    self._rows = {
      name: sorted(
        rows[name], key=lambda row: base.hash_order(self._key((name, row)))
      )
      for name in self._selection.names
    }

  @abc.abstractmethod
  def _cell(self, column: str, row: Row) -> Any:
    """Returns the content of a cell: text, a number, a list, or an image."""

  @abc.abstractmethod
  def _row_name(self, row: Row) -> str:
    """Returns the name of a row, for errors."""

  @abc.abstractmethod
  def _key(self, row: Row) -> str:
    """Returns a name of a row that does not depend on the slice."""

  def read(self, position: int) -> base.Example:
    """Returns an example, not decoded.

    Raises:
      UserError: Its image cannot be read, or its class is not one of train.
    """
    row, index = self._locate(position)
    values = {
      name: self._value(name, row)
      for name in features.targets(self.features)
      if name != 'text'
    }
    if 'text' in self.features:
      values['text'] = self.captions(position)
    image, image_name = self._content('image', row)
    files = {}
    feature = self.features.get('map')
    if isinstance(feature, target_kinds.SegmentationMap):
      labels, name = self._content('map', row)
      values['map'] = self._codes.decoded(labels, feature.ignore, name)
      files['map'] = name
    return base.Example({'image': image, **values}, index, image_name, files)

  def _content(self, name: str, row: Row) -> tuple[bytes, str]:
    """Returns the encoded image or map of a row, and its name for errors."""
    cell, content_name = self._image(row, name), self._row_name(row)
    if name != 'image':
      content_name = f'the {name} of {content_name}'
    if isinstance(cell, str):
      content_name = f'{cell} ({content_name})'
      with explained(self._row_name(row)):
        cell = folder.read_image(cell)
    if not isinstance(cell, bytes):
      raise UserError(f'{content_name}: there is no {name}')
    return cell, content_name

  def file(self, position: int) -> str | None:
    """Returns the path of an example's image, None where it has no file."""
    cell = self._image(self._locate(position)[0])
    return cell if isinstance(cell, str) else None

  def id(self, position: int) -> str:
    """Returns the path of an example's image, or the number of its row."""
    return self._key(self._locate(position)[0])

  def bits(self) -> int:
    """Returns 16 if a header of the first 64 images says so, else 8."""
    bit_depths = [8]
    for position in range(min(len(self), 64)):
      cell = self._image(self._locate(position)[0])
      if isinstance(cell, bytes):
        bit_depths.append(decode.stored_bits(cell))
      elif cell is not None:
        bit_depths.append(decode.file_bits(cell))
    return max(bit_depths)

  def captions(self, position: int) -> list[str]:
    """Returns the captions of an example; reads no image.

    Raises:
      UserError: It has none.
    """
    row, _ = self._locate(position)
    captions: list[str] = []
    for column in self._names['text']:
      cell = self._cell(column, row)
      if cell is not None:
        captions += cell if isinstance(cell, list) else [cell]
    if not all(isinstance(x, str) for x in captions):
      raise UserError(
        f'{self._row_name(row)}: a caption is {captions!r:.80}, which is no'
        ' text'
      )
    try:
      ''.join(captions).encode()
    except UnicodeEncodeError:  # JSON may hold half of a pair of surrogates
      raise UserError(
        f'{self._row_name(row)}: a caption is {captions!r:.80}, which has half'
        ' a character: mend it'
      ) from None
    result = [x for x in captions if x.strip()]
    if not result:
      raise UserError(
        f'{self._row_name(row)}: the caption is empty: write one, or leave the'
        ' row out'
      )
    return result

  def check_targets(self, positions: Iterable[int]) -> None:
    """Checks classes and numbers of examples; reads no image."""
    targets = features.targets(self.features)
    names = [name for name in targets if name != 'text']
    for position in positions:
      for name in names:
        self._encoded(name, targets[name], position)

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]; reads no image."""
    target = features.targets(self.features)[name]
    return np.stack([self._encoded(name, target, i) for i in range(len(self))])

  def _encoded(
    self, name: str, target: features.Target, position: int
  ) -> np.ndarray:
    row, _ = self._locate(position)
    return target.encode(self._value(name, row), self._row_name(row))

  def fingerprint(self) -> str:
    """Returns a digest of rows, targets and classes, not of the images."""
    columns = all_columns(
      {
        name: x
        for name, x in self._names.items()
        if name not in ('image', 'map')
      }
    )
    rows = [
      (name, row)
      for name, row_numbers in self._rows.items()
      for row in row_numbers
    ]
    return base.digest(
      [
        *(str(term) for term in self._selection.ranges),
        *columns,
        *self.classes,
        *map(self._key, rows),
        *(repr(self._cell(name, row)) for name in columns for row in rows),
      ]
    )

  def _locate(self, position: int) -> tuple[Row, int]:
    """Returns an example's row, and its index."""
    split, place, index = self._selection.locate(position)
    return (split, self._rows[split][place]), index

  def _image(self, row: Row, name: str = 'image') -> str | bytes | None:
    """Returns the path of an image or a map, or its bytes."""
    cell = self._cell(self._names[name], row)
    if isinstance(cell, Mapping):  # the datasets library's form
      cell = cell.get('bytes') or cell.get('path')
    if isinstance(cell, str) and cell.strip():
      cell = cell.strip()
      return os.path.join(self._directory, os.path.expanduser(cell))
    return cell if isinstance(cell, bytes) and cell else None

  def _find_targets(
    self,
    rows: Mapping[str, Sequence[int]],
    classes: Mapping[str, tuple[str, ...]],
  ) -> dict[str, features.Feature]:
    targets: dict[str, features.Feature] = {}
    train = {'train': rows['train']} if 'train' in rows else rows
    for name, kind in (
      ('label', features.Label),
      ('labels', target_kinds.MultiLabel),
    ):
      if name in self._names:
        named = classes.get(name) or _in_order(
          {
            cell
            for split, row_numbers in train.items()
            for row in row_numbers
            for cell in self._classes_in(name, (split, row))
          }
        )
        targets[name] = kind(named)
    if numbers := self._names.get('numbers'):
      targets['numbers'] = target_kinds.Number(tuple(numbers))
    if 'text' in self._names:
      targets['text'] = text_kind.Text()
    return targets

  def _classes_in(self, name: str, row: Row) -> list[str]:
    """Returns the one class of `label`, or any number of those of `labels`."""
    cell = self._cell(self._names[name], row)
    if name == 'labels':
      parts = cell if isinstance(cell, list) else [cell]
      if isinstance(cell, str):
        parts = re.split('[;|]', cell)
      class_names = [str(x).strip() for x in parts if x is not None]
      return [x for x in class_names if x]
    text = '' if cell is None else str(cell)
    if name not in self._listed:
      text = text.strip()
    if not text:
      raise UserError(
        f'{self._row_name(row)}: column {self._names[name]!r} is empty: it must'
        ' have a class'
      )
    return [text]

  def _value(self, name: str, row: Row) -> Any:
    """Returns a target as its feature encodes it."""
    if name == 'numbers':
      return [self._number(column, row) for column in self._names['numbers']]
    positions = self._positions[name]
    class_indices = []
    for cell in self._classes_in(name, row):
      if cell not in positions:
        raise UserError(
          f'{self._row_name(row)}: {cell!r} is not a class of train: they are'
          f' {join_first(tuple(positions))}; give train rows of it, or take'
          ' this one out'
        )
      class_indices.append(positions[cell])
    return class_indices[0] if name == 'label' else class_indices

  def _number(self, column: str, row: Row) -> float:
    cell = self._cell(column, row)
    try:
      return float(cell)
    except (TypeError, ValueError):
      raise UserError(
        f'{self._row_name(row)}: {column} is {cell!r}, which is no number'
      ) from None


def _in_order(names: set[str]) -> tuple[str, ...]:
  """Sorts classes: whole numbers by their size, others as text."""
  if all(re.fullmatch(r'-?\d+', name) for name in names):
    return tuple(sorted(names, key=lambda name: (int(name), name)))
  return tuple(sorted(names))


def choose(
  data_name: str,
  columns: ml_collections.ConfigDict,
  column_names: Sequence[str],
  candidates: Mapping[str, Sequence[str]],
) -> Names:
  """Returns the column of each feature, by feature name.

  Args:
    data_name: Name of the data, for errors.
    columns: `config.data.columns`.
    column_names: All columns.
    candidates: Possible columns of each feature, by feature name. Where the
      config names none, the first is taken if it has a usual name or is the
      only one.

  Raises:
    UserError: A column that the config names is missing, there is no image, or
      it is not clear which column is which.
  """
  chosen: dict[str, Any] = {}
  is_open = not (
    columns.label or columns.labels or columns.numbers or columns.map
  )
  for name, feature_columns in candidates.items():
    if columns[name]:
      chosen[name] = columns[name]
    elif name == 'text' and feature_columns:
      chosen[name] = (feature_columns[0],)
    elif feature_columns and (is_open or name in ('image', 'split')):
      if (
        len(feature_columns) > 1 and feature_columns[0] not in USUAL_NAMES[name]
      ):
        raise UserError(
          f'{data_name} has several columns that may be {name}: say which, as'
          f' in --config.data.columns.{name}={feature_columns[0]}, of'
          f' {", ".join(feature_columns)}'
        )
      chosen[name] = feature_columns[0]
  if is_open and 'label' in chosen:
    chosen.pop('labels', None)
  if columns.map:
    chosen['map'] = columns.map
  if columns.numbers:
    chosen['numbers'] = tuple(columns.numbers)
  for name in all_columns(chosen):
    if name not in column_names:
      raise UserError(
        f'config.data.columns names {name!r}, but the columns of {data_name}'
        f' are {join_first(column_names, 12)}'
      )
  if 'image' not in chosen:
    raise UserError(
      f'{data_name} has the columns {join_first(column_names, 12)}: say which'
      f' has the images, as in --config.data.columns.image={column_names[0]}'
    )
  return chosen


def all_columns(names: Names) -> list[str]:
  """Returns all columns of the features in `names`."""
  return [
    column
    for feature_columns in names.values()
    for column in (
      [feature_columns] if isinstance(feature_columns, str) else feature_columns
    )
  ]
