"""Shards of WebDataset: `tar:shards-{000..099}.tar`, with random access.

A sample is all files of one name in a shard, as 0001.jpg, 0001.txt and
0001.json. The name ends at its first dot, and the ending says what a file is;
capitals do not matter. Images are the column `image`, .cls is `label` (a class)
and .txt is `text`; the keys of .json are columns of their names, and other
files of their endings, as `seg.png`. A file goes before a key of .json.
`config.data.columns` may name other columns, also by their endings: of two
images in a sample, `config.data.columns.image=jpg` says which is meant. A
sample whose name occurs again in a shard is another sample.

A pattern has {000..099}, or * and ? as in a shell; a folder stands for all
shards in it. A shard whose name has the word train, val or test belongs to
that split, and others to train. Of shards in several folders, the folder's name
says it where that of the shard does not.

Each shard is read once. The places of its files, and its classes and texts, are
written beside it, as shards-000.tar.index.json. After that, a sample is read by
itself, and classes and captions without the shard.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import glob
import itertools
import os
import pathlib
import re
import tarfile
from typing import Any

from absl import logging
import ml_collections

from vit_jax.config import check_data
from vit_jax.config import explained
from vit_jax.config import join_first
from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import folder
from vit_jax.data import leftovers
from vit_jax.data import rows
from vit_jax.runs import safe_io

PREFIX = 'tar:'  # of `config.data.name`
_RANGE = re.compile(r'\{(\d+)\.\.(\d+)\}')
_MOST_SHARDS = 10**6
_FORMAT = 3  # of an index
# Bytes of the longest .cls or .txt that an index has; others stay in the shard.
_MOST_TEXT = 2**12
# Endings of the files that serve a column with another name.
_ENDINGS: Mapping[str, tuple[str, ...]] = {
  'image': tuple(x.removeprefix('.') for x in folder.ENDINGS),
  'label': ('cls',),
  'text': ('txt',),
}
_TEXTS = (*_ENDINGS['label'], *_ENDINGS['text'])
_COLUMNS = {x: name for name, endings in _ENDINGS.items() for x in endings}
_DOTS = (
  "a sample's name ends at its first dot, so rename files with more dots, or"
  ' name the ending'
)


@dataclasses.dataclass(slots=True)
class Sample:
  """The files of one name in a shard."""

  shard: str  # path
  key: str  # name
  # Offset and number of bytes of each file, by its ending.
  places: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
  # What its .cls and .txt hold, by their endings; files that are no UTF-8, or
  # long, are not among them.
  texts: dict[str, str] = dataclasses.field(default_factory=dict)


class TarSource(rows.RowSource):
  """The samples of the shards of a split."""

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    """Finds the samples; reads the shards that have no index.

    A shard that cannot be read raises a UserError, as does a sample that lacks
    a file.
    """
    data_name, columns = config.data.name, config.data.columns
    if columns.split:
      raise UserError(
        'config.data.columns.split is for tables: the split of a shard is in'
        ' its name'
      )
    shards = expand(data_name.removeprefix(PREFIX))
    self._root = os.path.commonpath([os.path.dirname(x) for x in shards])
    self._samples: list[Sample] = []
    by_split: dict[str, list[int]] = {}
    for shard in shards:
      first = len(self._samples)
      self._samples += index(shard)
      numbers = by_split.setdefault(_split_from_name(self._name(shard)), [])
      numbers += range(first, len(self._samples))
    if not self._samples:
      raise UserError(f'{data_name}: the shards are empty')
    self._endings = sorted(
      {x for sample in self._samples for x in sample.places}
    )
    # Those that name an ending have small letters, as the index has it.
    columns = columns.copy_and_resolve_references()
    for name, x in columns.items():
      is_one = isinstance(x, str)
      columns[name] = self._column(x) if is_one else tuple(map(self._column, x))
    self._named = {*rows.all_columns(columns.to_dict())}
    self._names = self._chosen(data_name, columns)
    self._check_samples()
    super().__init__(config, split, self._names, by_split)

  @classmethod
  def check_config(cls, config: ml_collections.ConfigDict) -> None:
    """Checks that there are the shards that `config.data.name` names."""
    expand(config.data.name.removeprefix(PREFIX))

  def _column(self, name: str) -> str:
    return name.lower() if name.lower() in self._endings else name

  def _chosen(
    self, data_name: str, columns: ml_collections.ConfigDict
  ) -> rows.Names:
    endings = self._endings
    column_names = {*endings, *(_COLUMNS[x] for x in endings if x in _COLUMNS)}
    if 'json' in column_names:
      with_json = (i for i, x in enumerate(self._samples) if 'json' in x.places)
      for number in itertools.islice(with_json, folder.SAMPLE):
        column_names |= self._fields(number).keys()
    has_dots = 'image' not in column_names  # then labels may have them, too
    candidates = {}
    for name, usual_names in rows.USUAL_NAMES.items():
      dotted = [
        x
        for x in endings
        if has_dots
        and x.rpartition('.')[2] in _ENDINGS.get(name, ())
        and x != columns.map
        and x not in _COLUMNS
      ]
      if name == 'image' and not columns.image and len(dotted) > 1:
        samples = enumerate(self._samples)
        number = next(i for i, x in samples if dotted[0] in x.places)
        raise UserError(
          f'{self._row_name(("", number))}: images end with'
          f' {join_first(dotted)}: {_DOTS}, as in'
          f' --config.data.columns.image={dotted[0]}'
        )
      if name != 'split':
        first = [name] if name in column_names else dotted
        other_names = [
          x for x in usual_names if x in column_names and x != name
        ]
        candidates[name] = [*first, *other_names]
    return rows.choose(data_name, columns, sorted(column_names), candidates)

  def _check_samples(self) -> None:
    present = dict.fromkeys(self._endings)
    for name, columns in self._names.items():
      for column in [columns] if isinstance(columns, str) else columns:
        if 'json' in present and not self._serving(column, present):
          continue  # a key of it: whoever reads it checks it
        lacking = []
        for number, sample in enumerate(self._samples):
          endings = self._serving(column, sample.places)
          if len(endings) > 1:
            raise UserError(
              f'{self._row_name(("", number))} has {len(endings)} files for the'
              f' {name}, with the endings {", ".join(endings)}: say which it'
              f' is, as in --config.data.columns.{name}={endings[0]}'
            )
          is_in_json = 'json' in sample.places and not endings
          if is_in_json and self._fields(number).get(column) is not None:
            continue
          if not endings:
            lacking.append(number)
        if lacking:
          self._tell_lacking(name, column, lacking)

  def _tell_lacking(
    self, name: str, column: str, numbers: Sequence[int]
  ) -> None:
    """Tells of samples without a column that each must have, or should."""
    first = numbers[0]
    endings = sorted(self._samples[first].places)
    dots = f' ({_DOTS})' if any('.' in x for x in endings) else ''
    line = (
      f'{self._row_name(("", first))} has no {column} ({len(numbers)} of'
      f' {len(self._samples)} samples have none); its files end with'
      f' {join_first(endings)}{dots}: add the file, or leave the sample out'
    )
    if name not in ('text', 'labels'):
      raise UserError(line)
    folder.warn_once(f'warning: {line}')

  def _serving(self, column: str, places: Mapping[str, Any]) -> list[str]:
    """Returns the endings of a sample's files that may be a column."""
    if column in places and column in self._named:
      return [column]
    chosen_columns = {*rows.all_columns(self._names)} - {column}
    endings = column, *_ENDINGS.get(column, ())
    return [x for x in endings if x in places and x not in chosen_columns]

  def _cell(self, column: str, row: rows.Row) -> Any:
    sample = self._samples[row[1]]
    if not (endings := self._serving(column, sample.places)):
      return (
        self._fields(row[1]).get(column) if 'json' in sample.places else None
      )
    is_image = column in (self._names['image'], self._names.get('map'))
    if not is_image and endings[0] in sample.texts:
      return sample.texts[endings[0]]
    data = self._bytes(endings[0], row)
    if is_image:
      return data
    try:
      return safe_io.decoded(data).strip()
    except UnicodeDecodeError:
      raise UserError(
        f'{self._row_name(row)}: its {column} is not UTF-8 text'
      ) from None

  def _row_name(self, row: rows.Row) -> str:
    sample = self._samples[row[1]]
    return f'{sample.shard}, sample {sample.key}'

  def key(self, split: str, row: int) -> str:
    """Returns the name of a sample, behind that of its shard."""
    sample = self._samples[row]
    return f'{self._name(sample.shard)}/{sample.key}'

  def _name(self, shard: str) -> str:
    """Returns a shard's path below the folder that all shards are in."""
    return os.path.relpath(shard, self._root)

  def fingerprint(self) -> str:
    """Returns a digest of names and sizes, not of what the files hold."""
    parts = [
      f'{self.key(*row)} {_by_column(self._samples[row[1]].places)}'
      for row in self._read_rows()
    ]
    if 'map' in self._names:
      parts += [*self.classes, str(self._codes)]
    terms = map(str, self.selection.ranges)
    return base.digest([*terms, *rows.all_columns(self._names), *parts])

  def _bytes(self, ending: str, row: rows.Row) -> bytes:
    sample = self._samples[row[1]]
    shard, (offset, size) = sample.shard, sample.places[ending]
    with explained(f'{shard} cannot be read', OSError):
      with open(shard, 'rb') as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) < size:
      raise UserError(
        f'{self._row_name(row)}: the shard ends within it: bring it whole'
      )
    return data

  def _fields(self, number: int) -> dict[str, Any]:
    row = ('', number)
    with explained(f'{self._row_name(row)}: its .json is damaged', ValueError):
      fields = safe_io.parse_json(self._bytes('json', row))
    return fields if isinstance(fields, dict) else {}


def expand(pattern: str) -> list[str]:
  """Returns the paths of the shards that a pattern names, in order."""
  check_data(pattern, f'config.data.name={PREFIX}')
  pattern = os.path.expanduser(pattern)
  if os.path.isdir(pattern):
    pattern = os.path.join(glob.escape(pattern), '*.[tT][aA][rR]')
  paths = list(_expand_ranges(pattern))
  shard_paths = [x for path in paths for x in sorted(glob.glob(path)) or [path]]
  missing = [path for path in shard_paths if not os.path.isfile(path)]
  if missing:
    raise UserError(
      f'tar:{pattern}: there is no shard {missing[0]}: name shards as in'
      ' tar:shards-{000..099}.tar, or the folder that holds them'
    )
  return shard_paths


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


def _split_from_name(name: str) -> str:
  """Returns the split that a word of a shard's name, or of its folder, says."""
  for part in os.path.split(name.lower())[::-1]:
    for word in re.split(r'[^a-z]+', part):
      if word in folder.SPLITS:
        return folder.SPLITS[word]
  return 'train'


def index(shard: str) -> list[Sample]:
  """Returns the samples of a shard; reads it only if it has no index yet."""
  path = pathlib.Path(f'{shard}.index.json')
  state = os.stat(shard)
  stamp = [state.st_size, state.st_mtime_ns]
  stored = _stored(path, shard, stamp)
  if stored is not None:
    return stored
  samples = _scanned(shard, state.st_size)
  stored_samples = {x.key: (x.places, x.texts) for x in samples}
  try:
    content = {'format': _FORMAT, 'shard': stamp, 'samples': stored_samples}
    safe_io.write_json(path, content)
  except UserError as e:  # as on a disk that is only read
    logging.warning('the shard will be read again the next time: %s', e)
  return samples


def _stored(
  path: pathlib.Path, shard: str, stamp: list[int]
) -> list[Sample] | None:
  """Returns the samples of an index; None if it is damaged, old or missing."""
  try:
    content = safe_io.read_json(path)
    if content is None or content['shard'] != stamp:
      return None
    if content.get('format') != _FORMAT:
      return None
    samples = []
    for key, (places, texts) in content['samples'].items():
      places = {
        name: (int(at), int(size)) for name, (at, size) in places.items()
      }
      texts = {name: str(text) for name, text in texts.items()}
      samples.append(Sample(shard, key, places, texts))
    return samples
  except (UserError, AttributeError, KeyError, TypeError, ValueError) as e:
    logging.warning('%s is damaged and made anew: %s', path, one_line(e))
    return None


def _scanned(shard: str, size: int) -> list[Sample]:
  """Returns the samples of a shard, from the headers and the texts in it."""
  samples: dict[str, Sample] = {}
  keys: dict[str, str] = {}  # of the last sample of each name
  try:
    with tarfile.open(shard, 'r:') as archive:
      for member in archive:
        if not member.isfile():
          continue
        if member.offset_data + member.size > size:
          raise tarfile.ReadError('it ends within a file')
        directory, name = os.path.split(member.name)
        stem, _, ending = name.partition('.')
        if not stem or not ending:  # such as macOS's ._0001.jpg, or README
          continue
        folders = [x for x in directory.split('/') if x not in ('.', '..')]
        if any(map(leftovers.is_hidden, folders)):
          continue
        name, ending = os.path.join(directory, stem), ending.lower()
        key = keys.get(name, name)
        if key in samples and ending in samples[key].places:  # another sample
          count = itertools.count(2)
          key = next(x for i in count if (x := f'{name}#{i}') not in samples)
          line = 'warning: %s has several samples %s: this one is %s'
          logging.warning(line, shard, name, key)
        keys[name] = key
        sample = samples.setdefault(key, Sample(shard, key))
        sample.places[ending] = (member.offset_data, member.size)
        is_text = ending.rpartition('.')[2] in _TEXTS
        if is_text and member.size <= _MOST_TEXT:
          content = archive.extractfile(member)
          assert content is not None  # of a file
          with contextlib.suppress(UnicodeDecodeError):  # told when it is read
            sample.texts[ending] = safe_io.decoded(content.read()).strip()
    # Without the block that ends a shard, `tarfile` ends quietly, also at a
    # header that is damaged.
    with open(shard, 'rb') as file:
      file.seek(archive.offset)
      if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(
          'its end is missing, or a header in it is wrong'
        )
  except (tarfile.TarError, EOFError, OSError) as e:
    raise UserError(
      f'{shard} is damaged, or is compressed, and cannot be read'
      f' ({one_line(e)}): bring it whole, as a plain .tar'
    ) from None
  return [*samples.values()]


def _by_column(
  places: Mapping[str, tuple[int, int]],
) -> dict[str, tuple[int, int]]:
  """Returns the places by column; of two for one, the others by ending."""
  result: dict[str, tuple[int, int]] = {}
  for ending, place in places.items():
    column = _COLUMNS.get(ending, ending)
    result[ending if column in result else column] = place
  return result
