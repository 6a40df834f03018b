"""Reads every example of a dataset and reports all problems."""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import dataclasses
import functools
import hashlib
import os
from typing import Any

import cv2
import ml_collections
import numpy as np

from vit_jax.config import parts
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import class_areas
from vit_jax.data import folder as folder_lib
from vit_jax.data import intensity
from vit_jax.data import pairs as pairs_lib
from vit_jax.data import scan_folder
from vit_jax.data import sources
from vit_jax.data import target_kinds
from vit_jax.data import voc
from vit_jax.data.host import batches
from vit_jax.data.host import clips
from vit_jax.data.host import decode
from vit_jax.data.host import maps as maps_lib

_AT_ONCE = 256  # examples that threads read before the next group starts
_COMMON = 10  # number of sizes to list
_NONE = '(none)'  # stands for a missing class or file name suffix


@dataclasses.dataclass(frozen=True)
class Entry:
  """An example to read.

  Attributes:
    id: As `Source.id`.
    split: Name of its split.
    label: Name of its class; None: known once it is read.
    read: Function that reads it.
    maps: Its maps of classes, by name.
  """

  id: str
  split: str
  label: str | None
  read: Callable[[], base.Example]
  maps: Mapping[str, target_kinds.SegmentationMap] = dataclasses.field(
    default_factory=dict
  )


@dataclasses.dataclass(frozen=True)
class Survey:
  """Examples to read, and problems that were found without reading them.

  Attributes:
    data: As `config.data.name`.
    classes: Classes of train.
    entries: All examples.
    folders: Folders of the splits, by name.
    ignored: Files that are not images of a class.
    problems: Problems of classes, and of splits that cannot be opened.
    train: The split of training.
  """

  data: str
  classes: tuple[str, ...]
  entries: list[Entry]
  folders: Mapping[str, str] = dataclasses.field(default_factory=dict)
  ignored: Sequence[str] = ()
  problems: Sequence[str] = ()
  train: str = 'train'


@dataclasses.dataclass(frozen=True)
class _ReadExample:
  """An example after it was read.

  Attributes:
    label: Name of its class.
    problem: Why it cannot be read; '' if it can.
    digest: Digest of its bytes.
    size: (height, width).
    channels: Number of stored channels.
    counts: Histogram of its 16-bit values; None: it has 8 bits.
    places: Of each class, from `class_areas.count`, by the name of the map.
  """

  label: str
  problem: str = ''
  digest: bytes = b''
  size: tuple[int, int] = (0, 0)
  channels: int = 0
  counts: np.ndarray | None = None
  places: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def list_folder(root: str, split_of: Mapping[str, str] | None = None) -> Survey:
  """Lists all examples and other files in a folder.

  Args:
    root: The folder.
    split_of: Split by example id, where it is not the folder's.

  Raises:
    UserError: There is no such folder, or its splits are not clear.
  """
  _refuse_scans(root)
  if pairs_lib.holds_maps(root):
    names = voc.lists(root) or pairs_lib.split_folders(root)
    opened = {name: pairs_lib.PairsSource(root, name) for name in names}
    return _survey_sources(f'{folder_lib.PREFIX}{root}', opened)
  folders = folder_lib.split_folders(root)
  classes = folder_lib.class_names(folders, folders)
  entries, ignored, problems = [], [], []
  for split, folder in folders.items():
    listing = folder_lib.look_into(folder, classes)
    ignored += [os.path.join(folder, name) for name in listing.ignored]
    problems += listing.problems
    for name in listing.images:
      path = os.path.join(folder, name)
      id_ = os.path.relpath(path, root)
      entries.append(
        Entry(
          id_,
          (split_of or {}).get(id_, split),
          name.split('/')[0],
          functools.partial(_read_file, path),
        )
      )
  name = f'{folder_lib.PREFIX}{root}'
  return Survey(name, classes, entries, folders, ignored, problems)


def _refuse_scans(root: str) -> None:
  """Raises a UserError if a folder holds scans, which need a config."""
  if scan_folder.holds_scans(root):
    raise UserError(
      f'{root} holds scans, and check is for images, unless a config says how'
      ' scans are read: write python -m vit_jax.data check CONFIG.py'
      f' --config.data.name=folder:{root}'
    )


def _read_file(path: str) -> base.Example:
  return base.Example({'image': folder_lib.read_image(path)}, -1, path)


def list_config(config: ml_collections.ConfigDict) -> Survey:
  """Lists the data of a config: its splits, or all of a folder of classes.

  This includes examples that the config leaves out as damaged.

  Raises:
    UserError: The data does not exist.
  """
  root = base.data_path(config.data.name)
  opened, problems = _open_splits(config)
  is_folder = config.data.name.startswith(folder_lib.PREFIX)
  if is_folder and scan_folder.find_source(root) is None:
    split_of = {
      source.id(i): split
      for split, source in reversed(opened.items())
      for i in range(len(source))
    }
    result = list_folder(root, split_of)
    new = [x for x in problems if x not in result.problems]
    return dataclasses.replace(result, problems=[*result.problems, *new])
  if not opened:
    raise UserError(problems[0])
  return _survey_sources(config.data.name, opened, problems, config.data.split)


def _survey_sources(
  name: str,
  opened: Mapping[str, base.Source],
  problems: Sequence[str] = (),
  train: str = 'train',
) -> Survey:
  """Returns all examples of some splits, each once."""
  entry_by_id: dict[str, Entry] = {}
  for split, source in opened.items():
    maps = {
      name: x
      for name, x in source.features.items()
      if isinstance(x, target_kinds.SegmentationMap)
    }
    for i in range(len(source)):
      id_, read = source.id(i), functools.partial(source.read, i)
      entry_by_id.setdefault(id_, Entry(id_, split, None, read, maps))
  classes = next(iter(opened.values())).classes
  entries = [*entry_by_id.values()]
  return Survey(name, classes, entries, problems=problems, train=train)


def _open_splits(
  config: ml_collections.ConfigDict,
) -> tuple[dict[str, base.Source], list[str]]:
  """Returns the splits of a config that can be opened, and the problems."""
  config = config.copy_and_resolve_references()
  config.data.skip_damaged = ''
  specs = [config.data.split]
  for spec in config.evals.values():
    if spec.split:
      evaluator = parts.parse(spec.kind, 'evals.NAME.kind')
      specs += [spec.split, evaluator.options.get('train_split', '')]
  opened: dict[str, base.Source] = {}
  problems = []
  for split in dict.fromkeys(filter(None, specs)):
    try:
      opened[split] = sources.open_source(config, split)
    except UserError as e:
      problems.append(str(e))
  return opened, problems


def report(
  survey: Survey, progress: Callable[[int], object] = lambda _: None
) -> dict[str, Any]:
  """Reads and decodes all examples, and lists all problems.

  Args:
    survey: Examples to read.
    progress: Function to call with the number of examples that were read.

  Returns:
    JSON, as `python -m vit_jax.data check --format=json` prints it;
    `vit_jax.data.__main__` describes it.
  """
  examples = []
  counts = np.zeros(2**16, np.int64)
  for example in _look_at_all(survey, progress):
    if example.counts is not None:
      counts += example.counts
      # The histograms of all images together would fill the memory.
      example = dataclasses.replace(example, counts=counts[:0])
    examples.append(example)
  pairs = [*zip(survey.entries, examples, strict=True)]
  good = [example for example in examples if not example.problem]
  duplicates, copies = _duplicates(pairs)
  deep = sum(example.counts is not None for example in good)
  areas = _class_areas(pairs)
  useless, warnings = _absent_classes(areas, survey.train)
  return {
    'data': survey.data,
    'examples': len(pairs),
    'splits': _splits(survey, pairs),
    'problems': [*survey.problems, *useless],
    'warnings': warnings,
    'damaged': [_damage(*pair) for pair in pairs if pair[1].problem],
    'duplicates': duplicates,
    'copies': copies,
    'ignored': _endings(survey.ignored),
    'sizes': _sizes(good),
    'channels': _count(str(example.channels) for example in good),
    'bits': {'8': len(good) - deep, '16': deep},
    'intensity': _intensity(intensity.Histogram(counts, deep)),
    'maps': {
      name: {split: _map_areas(x) for split, x in by_split.items()}
      for name, by_split in areas.items()
    },
  }


def _class_areas(pairs: '_Pairs') -> '_Areas':
  """Returns the areas of all maps."""
  areas: _Areas = {}
  for entry, example in pairs:
    for name, places in example.places.items():
      by_split = areas.setdefault(name, {})
      zero = class_areas.ClassAreas.zero(entry.maps[name])
      by_split[entry.split] = by_split.get(entry.split, zero).with_map(places)
  return areas


def _absent_classes(areas: '_Areas', train: str) -> tuple[list[str], list[str]]:
  """Returns problems and warnings of classes that no training map has."""
  problems, warnings = [], []
  for by_split in areas.values():
    if train_areas := by_split.get(train):
      sentence = train_areas.problem(train, train_areas.maps)
      if train_areas.is_useless():
        problems.append(sentence)
      elif sentence:
        warnings.append(sentence)
  return problems, warnings


def _map_areas(areas: class_areas.ClassAreas) -> dict[str, Any]:
  """Returns the places of each class, and of those that do not count."""
  *places, ignored = areas.places.tolist()
  classes = dict(zip(areas.feature.classes, places, strict=True))
  return {'maps': areas.maps, 'classes': classes, 'ignored': ignored}


def _look_at_all(
  survey: Survey, progress: Callable[[int], object]
) -> Iterator[_ReadExample]:
  """Yields all examples in order, as threads read them."""

  def look(entry: Entry) -> _ReadExample:
    cv2.setNumThreads(1)  # other cores read other examples
    return _look_at(entry, survey.classes)

  with concurrent.futures.ThreadPoolExecutor(batches.num_cores()) as pool:
    for start in range(0, len(survey.entries), _AT_ONCE):
      for example in pool.map(look, survey.entries[start : start + _AT_ONCE]):
        progress(1)
        yield example


def _look_at(entry: Entry, classes: tuple[str, ...]) -> _ReadExample:
  label = entry.label or ''
  try:
    example = entry.read()
    if entry.label is None:
      position = example.values.get('label')
      label = _NONE if position is None else classes[position]
    if isinstance(example.image, bytes):
      data = example.image
      pixels = decode.as_stored(data, origin=example.origin)
    else:
      pixels = example.image
      if isinstance(pixels, clips.Frames):
        pixels = pixels.read_all(example.origin)
      data = pixels.tobytes()
    places = {}
    for name, kind in entry.maps.items():
      size = pixels.shape[: max(pixels.ndim - 1, 2)]  # without channels
      labels = maps_lib.read(example, name, kind, size)
      places[name] = class_areas.count(labels, kind)
  except UserError as e:
    return _ReadExample(label, str(e))
  colors = pixels if pixels.ndim == 2 else pixels[..., :3]
  first = max(pixels.ndim - 3, 0)  # after the frames of a video
  return _ReadExample(
    label,
    digest=hashlib.blake2b(data, digest_size=16).digest(),
    size=(pixels.shape[first], pixels.shape[first + 1]),
    channels=1 if pixels.ndim == 2 else pixels.shape[-1],
    counts=intensity.histogram(colors, 16)
    if pixels.dtype == np.uint16
    else None,
    places=places,
  )


def _damage(entry: Entry, example: _ReadExample) -> dict[str, str]:
  """Returns a report's entry about an example that cannot be read."""
  return {
    'id': entry.id,
    'split': entry.split,
    'class': example.label,
    'problem': example.problem,
  }


_Pairs = Sequence[tuple[Entry, _ReadExample]]
# Areas by the name of the maps, and by split.
_Areas = dict[str, dict[str, class_areas.ClassAreas]]


def _splits(survey: Survey, pairs: _Pairs) -> dict[str, Any]:
  """Returns the examples of each split, by class."""
  split_reports: dict[str, Any] = {}
  for name, path in survey.folders.items():
    split_reports[name] = {'folder': path, 'examples': 0, 'classes': {}}
  labels: dict[str, list[str]] = {}
  for entry, example in pairs:
    labels.setdefault(entry.split, []).append(example.label)
  for name, class_names in labels.items():
    part = split_reports.setdefault(name, {})
    part |= {'examples': len(class_names), 'classes': _count(class_names)}
  return {
    name: part for name, part in split_reports.items() if part['examples']
  }


def _duplicates(pairs: _Pairs) -> tuple[list[dict[str, Any]], int]:
  """Returns duplicates across splits or classes, and the number of others."""
  groups: dict[bytes, list[tuple[Entry, _ReadExample]]] = {}
  for entry, example in pairs:
    if not example.problem:
      groups.setdefault(example.digest, []).append((entry, example))
  duplicates, copies = [], 0
  for group in groups.values():
    splits = list(dict.fromkeys(entry.split for entry, _ in group))
    labels = list(dict.fromkeys(example.label for _, example in group))
    if len(splits) > 1 or len(labels) > 1:
      ids = [entry.id for entry, _ in group]
      duplicates.append({'ids': ids, 'splits': splits, 'classes': labels})
    else:
      copies += len(group) - 1
  return duplicates, copies


def _endings(paths: Sequence[str]) -> dict[str, Any]:
  """Returns the count and one example of ignored files, by file suffix."""
  paths_by_ending: dict[str, list[str]] = {}
  for path in paths:
    ending = os.path.splitext(path)[1].lower() or _NONE
    paths_by_ending.setdefault(ending, []).append(path)
  return {
    ending: {'count': len(ending_paths), 'example': ending_paths[0]}
    for ending, ending_paths in sorted(paths_by_ending.items())
  }


def _sizes(examples: Sequence[_ReadExample]) -> dict[str, Any] | None:
  """Returns the range and the most common of the images' sizes."""
  counts = collections.Counter(example.size for example in examples)
  if not counts:
    return None
  ordered = sorted(counts, key=lambda size: (size[0] * size[1], size))
  common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
  return {
    'smallest': ordered[0],
    'largest': ordered[-1],
    'different': len(counts),
    'common': [{'size': size, 'count': n} for size, n in common[:_COMMON]],
  }


def _intensity(histogram: intensity.Histogram) -> dict[str, Any] | None:
  """Returns the range of the 16-bit values."""
  if not histogram.images:
    return None
  values = np.flatnonzero(histogram.counts)
  low, high = (histogram.percentile(x) for x in intensity.SUGGESTED)
  return {
    'images': histogram.images,
    'least': int(values[0]),
    'greatest': int(values[-1]),
    'percentiles': {'0.5': low, '99.5': high},
    'warning': histogram.unused(),
  }


def _count(names: Any) -> dict[str, int]:
  return dict(sorted(collections.Counter(names).items()))


def is_bad(survey_report: Mapping[str, Any]) -> bool:
  """Whether a report lists something that would stop a run."""
  return bool(survey_report['damaged'] or survey_report['problems'])
