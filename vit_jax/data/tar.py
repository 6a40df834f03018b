"""Shards of WebDataset: `tar:shards-{000..099}.tar`, with random access.

A sample is all files of one name in a shard, as 0001.jpg, 0001.txt and
0001.json; what follows the first dot says what a file is. Images are the
column `image`, .cls is `label` (a class number) and .txt is `text`; the keys
of .json are columns of their names, and other files of theirs, as `seg.png`.
`config.data.columns` may name others than these.

A pattern has {000..099}, or * and ? as in a shell; a folder stands for all
shards in it. A shard whose name has the word train, val or test belongs to
that split, and others to train.

Each shard is read once, and the places of its files are written beside it, as
shards-000.tar.index.json; after that, a sample is read by itself.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import glob
import os
import pathlib
import re
import tarfile
from typing import Any

from absl import logging
import ml_collections

from vit_jax.config import explained
from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import folder
from vit_jax.data import rows
from vit_jax.runs import safe_io

_RANGE = re.compile(r'\{(\d+)\.\.(\d+)\}')
_MOST_SHARDS = 10**6
# Columns of files, by the end of their names.
_KINDS = {'cls': 'label', 'txt': 'text'} | dict.fromkeys(
  (x.removeprefix('.') for x in folder.ENDINGS), 'image'
)

# Offset and number of bytes of each column of a sample.
Places = Mapping[str, tuple[int, int]]


class TarSource(rows.RowSource):
  """The samples of the shards of a split."""

  def __init__(
    self,
    pattern: str,
    split: str,
    columns: ml_collections.ConfigDict,
    image_shape: tuple[int, int] | None = None,
  ):
    """Finds the samples; reads shards that have no index.

    `pattern` names the shards, `columns` is `config.data.columns`; see
    `rows.RowSource` for the rest.

    Raises:
      UserError: There is no such shard, column or split, or a shard is damaged.
    """
    if columns.split:
      raise UserError(
        'config.data.columns.split is for tables: the split of a shard is in'
        ' its name'
      )
    shards = expand(pattern)
    self._samples: list[tuple[str, str, Places]] = []  # shard, key, places
    by_split: dict[str, list[int]] = {}
    for shard in shards:
      found = index(shard)
      first = len(self._samples)
      self._samples += [(shard, key, places) for key, places in found.items()]
      places_of = by_split.setdefault(_split_of(shard), [])
      places_of += range(first, len(self._samples))
    if not self._samples:
      raise UserError(f'tar:{pattern}: the shards are empty')
    there = sorted(self._samples[0][2])
    if 'json' in there:
      there += sorted(self._fields(0))
    candidates = {
      name: [x for x in (name, *usual) if x in there]
      for name, usual in rows.USUAL.items()
      if name != 'split'
    }
    names = rows.choose(f'tar:{pattern}', columns, there, candidates)
    super().__init__(
      f'tar:{pattern}', split, names, by_split, '', {}, image_shape
    )

  def _cell(self, column: str, row: rows.Row) -> Any:
    _, _, places = self._samples[row[1]]
    if column in places:
      data = self._bytes(column, row)
      is_image = column == self._names['image']
      return data if is_image else self._text(data, column, row)
    return self._fields(row[1]).get(column) if 'json' in places else None

  def _where(self, row: rows.Row) -> str:
    shard, key, _ = self._samples[row[1]]
    return f'{shard}, sample {key}'

  def _key(self, row: rows.Row) -> str:
    shard, key, _ = self._samples[row[1]]
    return f'{os.path.basename(shard)}/{key}'

  def fingerprint(self) -> str:
    """Returns a digest of names and sizes, not of what the files hold."""
    parts = [
      f'{self._key((name, row))} {self._samples[row][2]}'
      for name, each in self._rows.items()
      for row in each
    ]
    terms = map(str, self._selection.ranges)
    return base.digest([*terms, *rows.columns_of(self._names), *parts])

  def _bytes(self, column: str, row: rows.Row) -> bytes:
    """Returns the content of a file.

    Raises:
      UserError: It cannot be read.
    """
    shard, _, places = self._samples[row[1]]
    offset, size = places[column]
    with explained(f'{shard} cannot be read', OSError):
      with open(shard, 'rb') as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) < size:
      raise UserError(
        f'{self._where(row)}: the shard ends within it: bring it whole'
      )
    return data

  def _text(self, data: bytes, column: str, row: rows.Row) -> str:
    try:
      return data.decode('utf-8').strip()
    except UnicodeDecodeError:
      raise UserError(
        f'{self._where(row)}: its {column} is not UTF-8 text'
      ) from None

  def _fields(self, number: int) -> dict[str, Any]:
    """Returns what a sample's .json holds."""
    row = ('', number)
    with explained(f'{self._where(row)}: its .json is damaged', ValueError):
      found = safe_io.parse_json(self._bytes('json', row))
    return found if isinstance(found, dict) else {}


def expand(pattern: str) -> list[str]:
  """Returns the paths of the shards that a pattern names, in order.

  Raises:
    UserError: There is none, or one of a range is missing.
  """
  pattern = os.path.expanduser(pattern)
  if os.path.isdir(pattern):
    pattern = os.path.join(glob.escape(pattern), '*.tar')
  paths = list(_expand_ranges(pattern))
  found = [x for path in paths for x in sorted(glob.glob(path)) or [path]]
  missing = [path for path in found if not os.path.isfile(path)]
  if missing:
    raise UserError(
      f'tar:{pattern}: there is no shard {missing[0]}: name shards as in'
      ' tar:shards-{000..099}.tar, or the folder that holds them'
    )
  return found


def _expand_ranges(pattern: str) -> Iterator[str]:
  match = _RANGE.search(pattern)
  if match is None:
    yield pattern
    return
  first, last = int(match[1]), int(match[2])
  if not first <= last < first + _MOST_SHARDS:
    raise UserError(
      f'tar:{pattern}: {match[0]} is no range: write the smaller number first'
    )
  for number in range(first, last + 1):
    digits = str(number).zfill(len(match[1]))
    yield from _expand_ranges(
      f'{pattern[: match.start()]}{digits}{pattern[match.end() :]}'
    )


def _split_of(shard: str) -> str:
  """Returns the split that a word of a shard's name says."""
  for word in re.split(r'[^a-z]+', os.path.basename(shard).lower()):
    if word in folder.SPLITS:
      return folder.SPLITS[word]
  return 'train'


def index(shard: str) -> Mapping[str, Places]:
  """Returns the samples of a shard; reads it only if it has no index yet.

  Raises:
    UserError: The shard is damaged, or compressed.
  """
  path = pathlib.Path(f'{shard}.index.json')
  state = os.stat(shard)
  stamp = [state.st_size, state.st_mtime_ns]
  stored = _stored(path, stamp)
  if stored is not None:
    return stored
  samples = _scanned(shard, state.st_size)
  try:
    safe_io.write_json(path, {'shard': stamp, 'samples': samples})
  except UserError as e:  # as on a disk that is only read
    logging.warning('the shard will be read again the next time: %s', e)
  return samples


def _stored(path: pathlib.Path, stamp: list[int]) -> dict[str, Places] | None:
  """Returns the samples of an index; None if it is damaged, old or missing."""
  try:
    found = safe_io.read_json(path)
    if found is None or found['shard'] != stamp:
      return None
    return {
      key: {name: (int(at), int(size)) for name, (at, size) in places.items()}
      for key, places in found['samples'].items()
    }
  except (UserError, AttributeError, KeyError, TypeError, ValueError) as e:
    logging.warning('%s is damaged and made anew: %s', path, one_line(e))
    return None


def _scanned(shard: str, size: int) -> Mapping[str, Places]:
  """Returns the samples of a shard, from the headers in it."""
  samples: dict[str, dict[str, tuple[int, int]]] = {}
  try:
    with tarfile.open(shard, 'r:') as archive:
      for member in archive:
        if not member.isfile():
          continue
        if member.offset_data + member.size > size:
          raise tarfile.ReadError('it ends within a file')
        directory, name = os.path.split(member.name)
        key, _, ending = name.partition('.')
        if not key or not ending:  # such as macOS's ._0001.jpg, or README
          continue
        column = _KINDS.get(ending.lower(), ending)
        places = samples.setdefault(os.path.join(directory, key), {})
        places[column] = (member.offset_data, member.size)
    _check_end(shard, archive.offset)
  except (tarfile.TarError, EOFError, OSError) as e:
    raise UserError(
      f'{shard} is damaged, or is compressed, and cannot be read'
      f' ({one_line(e)}): bring it whole, as a plain .tar'
    ) from None
  return samples


def _check_end(shard: str, at: int) -> None:
  """Raises a ReadError unless the block that ends a shard is at an offset.

  Without it `tarfile` ends quietly, also at a header that is damaged.
  """
  with open(shard, 'rb') as file:
    file.seek(at)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
      raise tarfile.ReadError('its end is missing, or a header in it is wrong')
