"""Copies of runs and models in an object store, such as gs://bucket/run.

They are kept in the cache. A run may still be going on, so each call lists what
the store has, and downloads what is new or has changed.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import pathlib
import re
from typing import Any

from absl import logging

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.downloads import places
from vit_jax.runs import safe_io
from vit_jax.runs import stores

_PART = 'part.json'  # of one task of a run of several
# Files of which a model's folder has one.
_MODEL = re.compile(r'[^/]*\.(json|safetensors|bin|npz|pth|pt)')
_CHECKPOINT = re.compile(r'checkpoints/(\d+)/.*')
_NEWEST = 2  # checkpoints that are copied; the last one may be incomplete
_TRIES = 3  # while a run adds and removes files


def fetch(address: str, step: int | str | None = None) -> pathlib.Path:
  """Returns the path of the copy of a model's file or folder, or of a run.

  Of a run's checkpoints it has the best, the two newest and that of `step`. Of
  the folder tasks/NAME of a run, it is the folder in the copy of the run.
  """

  def choose(names: stores.Names) -> list[str]:
    matches = {name: _CHECKPOINT.fullmatch(name) for name in names}
    steps = {name: int(x[1]) for name, x in matches.items() if x}
    chosen_steps = {*sorted({*steps.values()})[-_NEWEST:], step}
    return [
      name
      for name in names
      if name != stores.LOCK
      and (name not in steps or steps[name] in chosen_steps)
    ]

  def check(names: stores.Names) -> None:
    if _PART in names or any(map(_MODEL.fullmatch, names)) or '' in names:
      return
    if not names:
      raise UserError(f'{address}: there is no such object: check the name')
    folder_names = sorted({x.partition('/')[0] for x in names})
    raise UserError(
      f'{address} is neither a run nor a model: name a folder in it, as'
      f' {config_lib.join_first(folder_names)}'
    )

  local, names = _copy(address, check, choose)
  if _PART not in names:
    return local
  run, _, task = address.rstrip('/').rpartition('/tasks/')
  return fetch(run, step) / 'tasks' / task


def fetch_record(address: str) -> tuple[pathlib.Path, bool]:
  """Returns the path of a copy of a run without its checkpoints.

  Also returns whether the run goes on, as its lock says.
  """

  def check(names: stores.Names) -> None:
    if 'config.json' not in names:
      raise UserError(
        f'{address} is not the work directory of a run that began: it has no'
        ' config.json'
      )

  def choose(names: stores.Names) -> list[str]:
    return [name for name in names if '/' not in name]

  local, names = _copy(address, check, choose)
  if stores.LOCK not in names:
    return local, False
  lock = safe_io.read_json(local / stores.LOCK) or {}
  return local, stores.lock_expires_s(lock) > 0


def _copy(
  address: str,
  check: Callable[[stores.Names], None],
  choose: Callable[[stores.Names], list[str]],
) -> tuple[pathlib.Path, stores.Names]:
  """Brings the copy of what an address has up to date.

  Args:
    address: Of an object, or of a folder.
    check: Raises a UserError if the names are not what is expected.
    choose: Returns the names of what is downloaded.

  Returns:
    The path of the copy, and what the store has.
  """
  scheme, _, path = address.rstrip('/').partition('://')
  segments = path.split('/')
  if not {'', '.', '..'}.isdisjoint(segments):
    # A file of adapters may name the address: it stays in the cache.
    raise UserError(f"{address}: write it without '//', '.' and '..'")
  target = places.cache().joinpath('stores', scheme, *segments)
  with stores.explained(f'cannot read {address}'):
    store = stores.connect(address)
    with _locked(target):
      for attempts_left in reversed(range(_TRIES)):
        names = store.listed()
        check(names)
        try:
          _download(store, names, choose(names), target)
          return target, names
        except FileNotFoundError:  # the run has removed an old checkpoint
          if not attempts_left:
            raise
  raise AssertionError('the last attempt returns or raises')


@contextlib.contextmanager
def _locked(target: pathlib.Path) -> Iterator[None]:
  """Keeps other processes from the copy, while this one changes it."""
  target.parent.mkdir(parents=True, exist_ok=True)
  lock = safe_io.Lock(_sibling(target, 'lock'), 'download')
  if not lock.acquire(wait=False):
    logging.info('waiting for another process that downloads %s', target)
    lock.acquire()
  try:
    yield
  finally:
    lock.release()


def _sibling(target: pathlib.Path, ending: str) -> pathlib.Path:
  return target.with_name(f'.{target.name}.{ending}')


def _download(
  store: stores.Store,
  names: stores.Names,
  needed: Sequence[str],
  target: pathlib.Path,
) -> None:
  """Downloads what has changed; removes what the store has no more."""
  versions_path = _sibling(target, 'versions.json')
  versions = safe_io.read_json(versions_path) or {}
  for name in versions.keys() - names.keys():
    (target / name).unlink(missing_ok=True)
  versions = {
    name: version
    for name, version in versions.items()
    if name in names and (target / name).is_file()
  }
  changed = [x for x in needed if versions.get(x) != _version(names[x])]
  if changed:
    size = sum(names[x].get('size') or 0 for x in changed)
    logging.info(
      'downloading %s (%.1f MB) of %s to %s',
      *(config_lib.counted(len(changed), 'file'), size / 1e6),
      *(store.root, target),
    )
    parts = [_sibling(target / name, 'part') for name in changed]
    for part in parts:
      part.parent.mkdir(parents=True, exist_ok=True)
    store.files.get([store.path(x) for x in changed], [*map(str, parts)])
    for name, part in zip(changed, parts, strict=True):
      part.replace(target / name)
      versions[name] = _version(names[name])
  _remove_empty(target)
  safe_io.write_json(versions_path, versions)


def _version(facts: Mapping[str, Any]) -> str:
  """Returns what changes with the content of an object."""
  keys = ('ETag', 'generation', 'etag', 'md5Hash', 'created', 'size')
  return ' '.join(str(facts[key]) for key in keys if key in facts)


def _remove_empty(target: pathlib.Path) -> None:
  """Removes folders without files: of checkpoints that are gone."""
  for folder, _, _ in os.walk(target, topdown=False):
    with contextlib.suppress(OSError):  # it has files
      os.rmdir(folder)
