"""Reads every example of a dataset and reports all problems."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import os
from typing import Any

import cv2
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.config import counted
from vit_jax.config import parts
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import class_areas
from vit_jax.data import folder as folder_lib
from vit_jax.data import intensity
from vit_jax.data import scan_folder
from vit_jax.data import sources
from vit_jax.data import stored as stored_lib
from vit_jax.data import target_kinds
from vit_jax.data.host import clips
from vit_jax.data.host import decode
from vit_jax.data.host import maps as maps_lib
from vit_jax.data.host import threads

_COMMON = 10  # number of sizes to list
_NONE = '(none)'  # stands for a missing class or file name suffix
_MOST_LINES = 20  # of one kind, in a text
_MOST_CLASSES = 10  # with more, only the smallest and largest are shown


@dataclasses.dataclass(frozen=True)
class Entry:
  """An example to read."""

  id: str  # as `Source.id`
  split: str  # name of its split
  label: str | None  # name of its class; None: known once it is read
  read: Callable[[], base.Example]  # function that reads it
  # Its maps of classes, by name.
  maps: Mapping[str, target_kinds.SegmentationMap] = dataclasses.field(
    default_factory=dict
  )


@dataclasses.dataclass(frozen=True)
class Survey:
  """Examples to read, and problems that were found without reading them."""

  data: str  # as `config.data.name`
  classes: tuple[str, ...]  # classes of train
  entries: list[Entry]
  # Folders of the splits, by name.
  folders: Mapping[str, str] = dataclasses.field(default_factory=dict)
  ignored: Sequence[str] = ()  # files that are not images of a class
  # Problems of classes, and of splits that cannot be opened.
  problems: Sequence[str] = ()
  train: str = 'train'  # the split of training


@dataclasses.dataclass(frozen=True)
class _Reading:
  """An example after it was read."""

  entry: Entry
  label: str
  problem: str = ''  # why it cannot be read
  digest: bytes = b''
  size: tuple[int, int] = (0, 0)  # (height, width)
  channels: int = 0
  counts: np.ndarray | None = None  # of its 16-bit values; None: it has 8 bits
  # Of each class, from `class_areas.count`, by the name of the map.
  places: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def list_folder(root: str, split_of: Mapping[str, str] | None = None) -> Survey:
  """Lists all examples and other files in a folder.

  `split_of` has the split of examples by id, where it is not the folder's.
  """
  data_name = f'{folder_lib.PREFIX}{root}'
  paired = scan_folder.find_source(root)
  if paired is scan_folder.ScansSource:
    raise UserError(
      f'{root} holds scans, and check is for images, unless a config says how'
      ' scans are read: write python -m vit_jax.data check CONFIG.py'
      f' --config.data.name={data_name}'
    )
  if paired is not None:
    config = config_lib.default()
    config.data.name = data_name
    names = paired.split_names(data_name)
    opened = {name: paired.from_config(config, name) for name in names}
    return _survey_sources(data_name, opened)
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
      example_split = (split_of or {}).get(id_, split)
      read = functools.partial(_read_file, path)
      entries.append(Entry(id_, example_split, name.split('/')[0], read))
  return Survey(data_name, classes, entries, folders, ignored, problems)


def _read_file(path: str) -> base.Example:
  return base.Example({'image': folder_lib.read_image(path)}, -1, path)


def list_config(config: ml_collections.ConfigDict) -> Survey:
  """Lists the data of a config, or all of a folder of classes.

  This includes examples that the config leaves out as damaged.
  """
  config = config.copy_and_resolve_references()
  config.data.skip_damaged = ''
  data_name, root = config.data.name, stored_lib.data_path(config.data.name)
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
  is_folder = data_name.startswith(folder_lib.PREFIX)
  if is_folder and scan_folder.find_source(root) is None:
    split_of = {
      source.id(i): split
      for split, source in reversed(opened.items())
      for i in range(len(source))
    }
    survey = list_folder(root, split_of)
    problems = [*dict.fromkeys([*survey.problems, *problems])]
    return dataclasses.replace(survey, problems=problems)
  if not opened:
    raise UserError(problems[0])
  return _survey_sources(data_name, opened, problems, config.data.split)


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


def report(
  survey: Survey, progress: Callable[[int], object] = lambda _: None
) -> dict[str, Any]:
  """Reads and decodes all examples, and lists all problems.

  The result is what `python -m vit_jax.data check --format=json` prints;
  `vit_jax.data.__main__` describes it. `progress` is called with the number of
  examples that were read.
  """
  examples = []
  counts = np.zeros(2**16, np.int64)
  read = functools.partial(_read, survey.classes)
  for example in threads.in_threads(read, survey.entries):
    progress(1)
    if example.counts is not None:
      counts += example.counts
      # The histograms of all images together would fill the memory.
      example = dataclasses.replace(example, counts=counts[:0])
    examples.append(example)
  good = [example for example in examples if not example.problem]
  duplicates, copies = _duplicates(good)
  deep = sum(example.counts is not None for example in good)
  areas: dict[str, dict[str, class_areas.ClassAreas]] = {}
  for split, group in _grouped(good, lambda x: x.entry.split).items():
    for name, kind in group[0].entry.maps.items():
      places = sum(x.places[name] for x in group)
      counted_areas = class_areas.ClassAreas(kind, places, len(group))
      areas.setdefault(name, {})[split] = counted_areas
  problems, warnings = [*survey.problems], []
  for by_split in areas.values():
    if train_areas := by_split.get(survey.train):
      sentence = train_areas.problem(survey.train, train_areas.maps)
      if train_areas.is_useless():
        problems.append(sentence)
      elif sentence:
        warnings.append(sentence)
  return {
    'data': survey.data,
    'examples': len(examples),
    'splits': _splits(survey, examples),
    'problems': problems,
    'warnings': warnings,
    'damaged': [
      {
        'id': x.entry.id,
        'split': x.entry.split,
        'class': x.label,
        'problem': x.problem,
      }
      for x in examples
      if x.problem
    ],
    'duplicates': duplicates,
    'copies': copies,
    'ignored': _endings(survey.ignored),
    'sizes': _sizes(good),
    'channels': _count(str(example.channels) for example in good),
    'bits': {'8': len(good) - deep, '16': deep},
    'intensity': _intensity(intensity.Histogram(counts, deep)),
    'maps': {
      name: {split: x.to_dict() for split, x in by_split.items()}
      for name, by_split in areas.items()
    },
  }


def _read(classes: tuple[str, ...], entry: Entry) -> _Reading:
  """Returns what is reported of an example; its pixels are not kept."""
  cv2.setNumThreads(1)  # other cores read other examples
  label = entry.label or ''
  try:
    example = entry.read()
    if entry.label is None:
      position = example.values.get('label')
      label = _NONE if position is None else classes[position]
    image: Any = example.image
    if isinstance(image, bytes):
      data, pixels = image, decode.as_stored(image, origin=example.origin)
    else:
      is_stored = isinstance(image, clips.Frames)
      pixels = image.read_all(example.origin) if is_stored else image
      data = pixels.tobytes()
    places = {}
    for name, kind in entry.maps.items():
      size = pixels.shape[: max(pixels.ndim - 1, 2)]  # without channels
      labels = maps_lib.read(example, name, kind, size)
      places[name] = class_areas.count(labels, kind)
  except UserError as e:
    return _Reading(entry, label, str(e))
  counts = None
  if pixels.dtype == np.uint16:
    colors = pixels if pixels.ndim == 2 else pixels[..., :3]
    counts = intensity.histogram(colors, 16)
  first = max(pixels.ndim - 3, 0)  # after the frames of a video
  return _Reading(
    entry,
    label,
    digest=hashlib.blake2b(data, digest_size=16).digest(),
    size=(pixels.shape[first], pixels.shape[first + 1]),
    channels=1 if pixels.ndim == 2 else pixels.shape[-1],
    counts=counts,
    places=places,
  )


def _grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, Any]:
  """Returns lists of items by their key, in order."""
  groups: dict[Any, Any] = {}
  for item in items:
    groups.setdefault(key(item), []).append(item)
  return groups


def _splits(survey: Survey, examples: Sequence[_Reading]) -> dict[str, Any]:
  """Returns the examples of each split, by class."""
  by_split = _grouped(examples, lambda x: x.entry.split)
  return {
    name: {
      **({'folder': survey.folders[name]} if name in survey.folders else {}),
      'examples': len(by_split[name]),
      'classes': _count(x.label for x in by_split[name]),
    }
    for name in dict.fromkeys([*survey.folders, *by_split])
    if name in by_split
  }


def _duplicates(
  examples: Sequence[_Reading],
) -> tuple[list[dict[str, Any]], int]:
  """Returns duplicates across splits or classes, and the number of others."""
  duplicates, copies = [], 0
  for group in _grouped(examples, lambda x: x.digest).values():
    splits = list(dict.fromkeys(x.entry.split for x in group))
    labels = list(dict.fromkeys(x.label for x in group))
    if len(splits) > 1 or len(labels) > 1:
      ids = [x.entry.id for x in group]
      duplicates.append({'ids': ids, 'splits': splits, 'classes': labels})
    else:
      copies += len(group) - 1
  return duplicates, copies


def _endings(paths: Sequence[str]) -> dict[str, Any]:
  """Returns the count and one example of ignored files, by file suffix."""
  by_ending = _grouped(paths, lambda x: os.path.splitext(x)[1].lower() or _NONE)
  return {
    ending: {'count': len(ending_paths), 'example': ending_paths[0]}
    for ending, ending_paths in sorted(by_ending.items())
  }


def _sizes(examples: Sequence[_Reading]) -> dict[str, Any] | None:
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


def _count(names: Iterable[str]) -> dict[str, int]:
  return dict(sorted(collections.Counter(names).items()))


def is_bad(survey_report: Mapping[str, Any]) -> bool:
  """Whether a report lists something that would stop a run."""
  return bool(survey_report['damaged'] or survey_report['problems'])


def as_text(report: Mapping[str, Any]) -> str:
  """Returns what `survey.report` found as a report for people."""
  splits = report['splits']
  rows = [
    (name, part['examples'], _classes(part['classes']))
    for name, part in splits.items()
  ]
  table = tables.Table(('split', 'examples', 'classes'), rows)
  lines = [report['data'], table.text(tables.room())]
  lines += [*_about_images(report)]
  for ending, files in report['ignored'].items():
    lines.append(
      f'ignored: {counted(files["count"], "file")} with the ending {ending},'
      f' such as {files["example"]}'
    )
  lines += [*_about_maps(report['maps'])]
  lines += [f'warning: {x}' for x in report['warnings']]
  pairs = [' = '.join(group['ids']) for group in report['duplicates']]
  damaged = [entry['problem'] for entry in report['damaged']]
  lines += _listed('problems of splits and classes', report['problems'])
  lines += _listed('damaged', damaged)
  lines += _listed('the same bytes in several splits or classes', pairs)
  if report['copies']:
    lines.append(f'copies within a class of a split: {report["copies"]}')
  warns = any(line.startswith('warning:') for line in lines)
  if not any((damaged, pairs, report['problems'], warns)):
    lines.append('nothing is wrong')
  return '\n'.join(lines)


def _about_images(report: Mapping[str, Any]) -> Iterator[str]:
  sizes = report['sizes']
  if sizes is None:
    return
  common = sizes['common'][0]
  yield (
    f'height x width: {_by(sizes["smallest"])} to {_by(sizes["largest"])},'
    f' {counted(sizes["different"], "size")}; most often'
    f' {_by(common["size"])} ({counted(common["count"], "image")})'
  )
  for name in ('channels', 'bits'):
    counts = ', '.join(f'{x} ({n})' for x, n in report[name].items() if n)
    yield f'{name} (images): {counts}'
  if all(report['bits'].values()):
    yield (
      'warning: some images have 8 bits and some 16: leave'
      ' config.data.intensity at type, since other settings need one depth'
    )
  if values := report['intensity']:
    low, high = values['percentiles'].values()
    yield (
      f'values of 16 bits: {values["least"]} to {values["greatest"]}, 99% of'
      f' them {low} to {high}'
    )
    if values['warning']:
      yield f'warning: {values["warning"]}'


def _about_maps(maps: Mapping[str, Any]) -> Iterator[str]:
  for name, by_split in maps.items():
    for split, areas in by_split.items():
      total = sum(areas['classes'].values()) + areas['ignored']
      shares = {k: n / total for k, n in areas['classes'].items()}
      least = sorted(shares, key=lambda k: shares[k])[:_MOST_CLASSES]
      kind = 'classes' if len(shares) <= _MOST_CLASSES else 'rarest classes'
      text = ', '.join(f'{k} {shares[k]:.1%}' for k in shares if k in least)
      yield (
        f'{kind} of the pixels of {counted(areas["maps"], "map")} ({name} of'
        f' {split}): {text}; {areas["ignored"] / total:.1%} are ignored'
      )


def _classes(counts: Mapping[str, int]) -> str:
  """Returns classes with their sizes; if many, the smallest and largest."""
  if len(counts) <= _MOST_CLASSES:
    return ', '.join(f'{name} {n}' for name, n in counts.items())
  least = min(counts, key=lambda name: counts[name])
  most = max(counts, key=lambda name: counts[name])
  return (
    f'{len(counts)}, of {counts[least]} ({least}) to {counts[most]} ({most})'
  )


def _by(size: Sequence[int]) -> str:
  return f'{size[0]} x {size[1]}'


def _listed(title: str, lines: Sequence[str]) -> list[str]:
  if not lines:
    return []
  first_lines = [f'  {x}' for x in lines[:_MOST_LINES]]
  left = len(lines) - len(first_lines)
  more = [f'  ... and {left} more'] if left else []
  return [f'{title}: {len(lines)}', *first_lines, *more]
