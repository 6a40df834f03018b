"""Datasets of Hugging Face's `datasets` library, with random access.

    hf:DIRECTORY                 what `save_to_disk` wrote, or files that
                                 `load_dataset` knows: Parquet, image folders
    hf:[OWNER/]NAME[@REVISION]   a repository of the Hub, downloaded once
    hf:...:CONFIG                one configuration of either

Columns are found by their types: Image is the image, ClassLabel one class, and
a list of ClassLabel several classes. `config.data.columns` names the columns of
numbers and captions, and chooses between columns of the same type. The library
decodes no image: its Arrow cells hold the encoded file, or its path.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import os
import re
import sys
from typing import Any
from typing import TYPE_CHECKING

import ml_collections

from vit_jax.config import check_data
from vit_jax.config import import_package
from vit_jax.config import nearby
from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.data import rows

if TYPE_CHECKING:
  import datasets

PREFIX = 'hf:'  # of `config.data.name`
# Files that `Dataset.save_to_disk` and `DatasetDict.save_to_disk` write.
_SAVED = ('state.json', 'dataset_dict.json')
_ON_HUB = re.compile(
  r'([\w.-]+(?:/[\w.-]+)?)(?:@([\w./+-]+))?(?::([^/:]+))?', re.ASCII
)
_PATIENCE_S = 10  # for the Hub's first answer


@dataclasses.dataclass(frozen=True)
class Address:
  """Where a dataset is."""

  path: str  # A directory, or the name of a repository of the Hub
  is_local: bool  # whether it is a directory
  # Branch, tag or commit of the repository; None: its main branch.
  revision: str | None = None
  # The configuration; None: the only one, or the default.
  config: str | None = None


class HfSource(rows.RowSource):
  """The rows of a split of a dataset."""

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    """Opens the dataset; downloads or converts it first if needed."""
    self._name, columns = config.data.name, config.data.columns
    if columns.split:
      raise UserError(
        'config.data.columns.split is for tables: the splits of'
        f' {self._name} have names of their own'
      )
    address = parse(self._name.removeprefix(PREFIX))
    self._datasets = _load(address, config.data.dir)
    self._columns: dict[tuple[str, str], list[Any]] = {}
    main = self._datasets.get('train', next(iter(self._datasets.values())))
    types = main.features
    names = rows.choose(
      self._name, columns, list(types), _candidates(types, columns.map)
    )
    for feature, column in names.items():
      for column_name in [column] if isinstance(column, str) else column:
        if not _fits(feature, types[column_name]):
          raise UserError(
            f'{self._name}: column {column_name!r} is {types[column_name]},'
            f' which cannot be config.data.columns.{feature}'
          )
    classes = {
      feature: tuple(kind.names)
      for feature in ('label', 'labels')
      if (kind := _class_label(types.get(names.get(feature))))
    }
    sizes = {name: range(len(x)) for name, x in self._datasets.items()}
    super().__init__(config, split, names, sizes, address.path, classes)

  @classmethod
  def check_config(cls, config: ml_collections.ConfigDict) -> None:
    """Checks that `config.data.name` is a directory or a repository's name."""
    parse(config.data.name.removeprefix(PREFIX))

  def _cell(self, column: str, row: rows.Row) -> Any:
    split, number = row
    if column in (self._names['image'], self._names.get('map')):
      return self._stored(split, column)[number].as_py()
    if (split, column) not in self._columns:
      cells = self._stored(split, column).to_pylist()
      kind = self._datasets[split].features[column]
      if label := _class_label(kind):  # numbers: the names take their place
        names = dict(enumerate(label.names))
        if _element(kind) is None:
          cells = [names.get(cell) for cell in cells]  # -1 or null: no label
        else:
          cells = [[names.get(x, x) for x in cell or ()] for cell in cells]
      self._columns[split, column] = cells
    return self._columns[split, column][number]

  def _row_name(self, row: rows.Row) -> str:
    return f'{self._name}, row {row[1]} of {row[0]}'

  def _stored(self, split: str, column: str) -> Any:
    """Returns a column of a split as Arrow has it, with images encoded."""
    dataset = self._datasets[split]
    if column not in dataset.column_names:
      raise UserError(f'{self._name}: its {split} has no column {column!r}')
    return dataset.data.column(column)


def parse(name: str) -> Address:
  """Returns the address in `config.data.name`, without its 'hf:'."""
  check_data(name, 'config.data.name=hf:')
  path = os.path.expanduser(name)
  head, _, config = path.rpartition(':')
  if os.path.isdir(path):
    return Address(path, True)
  if os.path.isdir(head):
    return Address(head, True, config=config)
  match = _ON_HUB.fullmatch(name)
  if match is None or name.startswith('.'):
    hub = (
      '; of the Hub write hf:OWNER/NAME, hf:OWNER/NAME@REVISION, or either with'
      ' :CONFIG'
    )
    hint = nearby(path, os.path.isdir, hub)
    raise UserError(
      f'config.data.name=hf:{name}: there is no directory {path!r}{hint}'
    )
  return Address(match[1], False, match[2], match[3])


def _load(
  address: Address, cache: str | None
) -> Mapping[str, 'datasets.Dataset']:
  import_package('config.data.name=hf:...', 'datasets', 'hf')
  import datasets
  from huggingface_hub import errors

  if not sys.stderr.isatty():
    datasets.disable_progress_bars()
  try:
    if not address.is_local:
      loaded = _from_hub(address, cache)
    elif any(os.path.exists(os.path.join(address.path, x)) for x in _SAVED):
      if address.config:
        raise ValueError(f'it has no configuration {address.config!r}')
      loaded = datasets.load_from_disk(address.path)
    else:
      # An absolute path cannot be taken for a name of the Hub.
      path = os.path.abspath(address.path)
      loaded = datasets.load_dataset(path, address.config, cache_dir=cache)
  except (
    OSError,
    ValueError,  # Arrow's errors are subclasses
    RuntimeError,
    errors.HTTPError,
    datasets.exceptions.DatasetsError,
  ) as e:
    # Where a conversion fails, the library's own error says only that.
    line = one_line(e.__cause__ or e)[:300].rstrip('.')
    name, hint = address.path, ''
    if not address.is_local:
      name = f'hf:{name}'
      if isinstance(e, ConnectionError):
        hint = (
          '; where there is no network, bring a directory that save_to_disk'
          ' wrote elsewhere, and name hf:DIRECTORY'
        )
      elif isinstance(e, FileNotFoundError):
        hint = '; nor is there a directory of this name'
    problem = f'config.data.name: {name} cannot be read: {line}{hint}'
    raise UserError(problem) from None
  if isinstance(loaded, datasets.Dataset):
    name = str(loaded.split or '')
    return {name if name.isidentifier() else 'train': loaded}
  return loaded


@functools.lru_cache(maxsize=4)  # a run opens several splits
def _from_hub(address: Address, cache: str | None) -> 'datasets.DatasetDict':
  """Downloads a dataset, or takes it from the cache.

  Without a network the library retries for half a minute before it looks into
  its cache. So this asks the Hub first, with a short timeout.
  """
  import datasets
  import huggingface_hub
  from huggingface_hub import errors

  was_offline = datasets.config.HF_HUB_OFFLINE
  try:
    huggingface_hub.HfApi(endpoint=datasets.config.HF_ENDPOINT).dataset_info(
      address.path, revision=address.revision, timeout=_PATIENCE_S
    )
  except errors.HfHubHTTPError:
    pass  # the library's own error says more
  except (OSError, errors.HTTPError):
    datasets.config.HF_HUB_OFFLINE = True
  try:
    return datasets.load_dataset(
      address.path, address.config, revision=address.revision, cache_dir=cache
    )
  finally:
    datasets.config.HF_HUB_OFFLINE = was_offline


def _class_label(kind: Any) -> 'datasets.ClassLabel | None':
  import datasets

  kind = _element(kind) or kind
  return kind if isinstance(kind, datasets.ClassLabel) else None


def _element(kind: Any) -> Any:
  """Returns the type of a list's elements; None if `kind` is no list."""
  import datasets

  is_list = isinstance(kind, datasets.List | datasets.LargeList)
  return kind.feature if is_list else None


def _fits(feature: str, kind: Any) -> bool:
  import datasets

  # Encoded bytes, with or without the library's type.
  if feature in ('image', 'map'):
    is_binary = getattr(kind, 'dtype', '') in ('binary', 'large_binary')
    is_struct = isinstance(kind, dict) and 'bytes' in kind
    return isinstance(kind, datasets.Image) or is_binary or is_struct
  if feature in ('labels', 'text'):
    kind = _element(kind) or kind  # labels in text have semicolons between
  return isinstance(kind, datasets.ClassLabel | datasets.Value)


def _candidates(
  types: Mapping[str, Any], map_column: str
) -> dict[str, Sequence[str]]:
  """Returns the possible columns of each feature: by type, else by name.

  The column of maps, '' if there is none, has no images. Captions are in the
  columns that the config names.
  """
  import datasets

  typed: dict[str, list[str]] = {'image': [], 'label': [], 'labels': []}
  for name, kind in types.items():
    if isinstance(kind, datasets.Image) and name != map_column:
      typed['image'].append(name)
    if isinstance(kind, datasets.ClassLabel):
      typed['label'].append(name)
    if _class_label(_element(kind)):
      typed['labels'].append(name)
  candidates: dict[str, Sequence[str]] = {}
  for feature, columns in typed.items():
    usual_names = rows.USUAL_NAMES[feature]
    candidates[feature] = sorted(columns, key=lambda x: x not in usual_names)
    if not columns:
      candidates[feature] = [
        x for x in usual_names if x in types and _fits(feature, types[x])
      ]
  candidates['text'] = ()
  return candidates
