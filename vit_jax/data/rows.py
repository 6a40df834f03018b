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

from vit_jax.config import check_data
from vit_jax.config import explained
from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import codes as codes_lib
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data import splits
from vit_jax.data import stored as stored_lib
from vit_jax.data import target_kinds
from vit_jax.data import text_kind

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


class RowSource(stored_lib.Table):
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

    `rows` are numbers of rows by split, and `names` the columns that are read.
    `directory` is that of relative paths of images. `classes`, by feature, are
    those that the data lists; others are collected from the rows of train.
    `data_name` is for errors; '': `config.data.name`.
    """
    self._names, self._directory = names, directory
    self._codes = codes_lib.from_config(config)
    self._listed = classes or {}
    data_name = data_name or config.data.name
    self.features = {
      'image': features.Image(stored_lib.source_size(config)),
      **self._find_targets(rows),
    }
    if 'map' in names:
      self.features['map'] = self._codes.feature(
        self._codes.classes, 'config.data.map.classes'
      )
    self._positions = {
      name: {x: i for i, x in enumerate(target.names)}
      for name, target in features.targets(self.features).items()
    }
    aliases = folder.other_names(data_name, split, rows)
    ordered = {
      name: sorted(rows[name], key=lambda x: base.hash_order(self.key(name, x)))
      for name in splits.chosen(split, rows, aliases).intersection(rows)
    }
    super().__init__(split, {**rows, **ordered}, data_name, aliases)

  @abc.abstractmethod
  def _cell(self, column: str, row: Row) -> Any:
    """Returns the content of a cell: text, a number, a list, or an image."""

  @abc.abstractmethod
  def _row_name(self, row: Row) -> str:
    """Returns the name of a row, for errors."""

  def example(self, split: str, row: int, index: int) -> base.Example:
    """Returns the example of a row, not decoded."""
    place = split, row
    values = {
      name: self._value(name, place) for name in features.targets(self.features)
    }
    image, image_name = self._content('image', place)
    files = {}
    feature = self.features.get('map')
    if isinstance(feature, target_kinds.SegmentationMap):
      labels, name = self._content('map', place)
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

  def path(self, split: str, row: int) -> str | None:
    """Returns the path of a row's image, None where it has no file."""
    cell = self._image((split, row))
    return cell if isinstance(cell, str) else None

  def bits(self) -> int:
    """Returns 16 if a header of the first images says so, else 8."""
    return folder.sample_bits(map(self._image, self.selected()))

  def captions(self, position: int) -> list[str]:
    """Returns the captions of an example; reads no image."""
    return self._captions(self.row(position))

  def _captions(self, row: Row) -> list[str]:
    captions: list[str] = []
    for column in self._names['text']:
      cell = self._cell(column, row)
      if cell is not None:
        captions += cell if isinstance(cell, list) else [cell]
    problem = ''
    if not all(isinstance(x, str) for x in captions):
      problem = 'is no text'
    else:
      try:
        ''.join(captions).encode()
      except UnicodeEncodeError:  # JSON may hold half of a pair of surrogates
        problem = 'has half a character: mend it'
    if problem:
      raise UserError(
        f'{self._row_name(row)}: a caption is {captions!r:.80}, which {problem}'
      )
    result = [x for x in captions if x.strip()]
    if not result:
      raise UserError(
        f'{self._row_name(row)}: the caption is empty: write one, or leave the'
        ' row out'
      )
    return result

  def check_targets(self, positions: Iterable[int]) -> None:
    """Checks classes and numbers of examples; reads no image."""
    names = [x for x in features.targets(self.features) if x != 'text']
    for position in positions:
      for name in names:
        self._encoded(name, position)

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples, [N, ...]; reads no image."""
    return np.stack([self._encoded(name, i) for i in range(len(self))])

  def _encoded(self, name: str, position: int) -> np.ndarray:
    row = self.row(position)
    target = features.targets(self.features)[name]
    return target.encode(self._value(name, row), self._row_name(row))

  def fingerprint(self) -> str:
    """Returns a digest of rows, targets and classes, not of the images."""
    encoded = ('image', 'map')
    names = {k: x for k, x in self._names.items() if k not in encoded}
    columns = all_columns(names)
    rows = self._read_rows()
    return base.digest(
      [
        *map(str, self.selection.ranges),
        *columns,
        *self.classes,
        *(self.key(*row) for row in rows),
        *(repr(self._cell(name, row)) for name in columns for row in rows),
      ]
    )

  def _read_rows(self) -> list[Row]:
    """Returns the rows of the whole splits that are read, in order."""
    names = self.selection.names
    return [(name, row) for name in names for row in self.rows[name]]

  def _image(self, row: Row, name: str = 'image') -> str | bytes | None:
    """Returns the path of an image or a map, or its bytes."""
    cell = self._cell(self._names[name], row)
    if isinstance(cell, Mapping):  # the datasets library's form
      cell = cell.get('bytes') or cell.get('path')
    if isinstance(cell, str) and cell.strip():
      cell = cell.strip()
      check_data(cell, f'{self._row_name(row)}: ')
      return os.path.join(self._directory, os.path.expanduser(cell))
    return cell if isinstance(cell, bytes) and cell else None

  def _find_targets(
    self, rows: Mapping[str, Sequence[int]]
  ) -> dict[str, features.Feature]:
    targets: dict[str, features.Feature] = {}
    train = {'train': rows['train']} if 'train' in rows else rows
    for name, kind in (
      ('label', features.Label),
      ('labels', target_kinds.MultiLabel),
    ):
      if name in self._names:
        classes = self._listed.get(name)
        if not classes:
          class_names = {
            class_name
            for split, row_numbers in train.items()
            for row in row_numbers
            for class_name in self._classes_in(name, (split, row))
          }
          classes = _sorted(class_names)
        targets[name] = kind(classes)
    if numbers := self._names.get('numbers'):
      targets['numbers'] = target_kinds.Number(tuple(numbers))
    if 'text' in self._names:
      targets['text'] = text_kind.Text()
    return targets

  def _classes_in(self, name: str, row: Row) -> list[str]:
    """Returns the one class of `label`, or the classes of `labels`."""
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
    if name == 'text':
      return self._captions(row)
    if name == 'numbers':
      numbers = []
      for column in self._names['numbers']:
        cell = self._cell(column, row)
        try:
          numbers.append(float(cell))
        except (TypeError, ValueError):
          raise UserError(
            f'{self._row_name(row)}: {column} is {cell!r}, which is no number'
          ) from None
      return numbers
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


def _sorted(names: set[str]) -> tuple[str, ...]:
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

  `columns` are `config.data.columns`, and `candidates` the possible columns of
  each feature: where the config names none, the first is taken if it has a
  usual name or is the only one.
  """
  chosen: dict[str, Any] = {}
  is_open = not any(columns[x] for x in ('label', 'labels', 'numbers', 'map'))
  for name, feature_columns in candidates.items():
    if columns[name]:
      chosen[name] = columns[name]
    elif name == 'text' and feature_columns:
      chosen[name] = (feature_columns[0],)
    elif feature_columns and (is_open or name in ('image', 'split')):
      is_usual = feature_columns[0] in USUAL_NAMES[name]
      if len(feature_columns) > 1 and not is_usual:
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
  columns: list[str] = []
  for x in names.values():
    columns += [x] if isinstance(x, str) else x
  return columns
