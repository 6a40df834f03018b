"""A work directory in an object store, such as gs://bucket/run.

The run works in a local copy. What is in the store is downloaded when the run
starts, and what changes in the copy is uploaded every minute and at the end. A
checkpoint is a directory that appears in the copy at once, when it is complete.
In the store its files appear one after the other: if a process is killed in the
midst of that, the next start finds the checkpoint damaged and takes the one
before, which is removed only after the upload.

Object stores have no locks. An object lock.json says who uses the directory,
and when that process last said so. A process whose lock another one has taken,
since it was silent for too long, uploads nothing more.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import tempfile
import threading
import time
from typing import Any
import uuid

from absl import logging

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.parallel import processes
from vit_jax.runs import stores

_PERIOD_S = 60  # between uploads, and between two times in the lock
# Files that describe a run, in the order in which it writes them.
_DESCRIPTION = ('preprocess.json', 'run.json', 'config.json')
# Files that are being written, and the lock of the copy.
_TEMPORARY = re.compile(r'\.lock|(.*/)?\.[^/]*\.tmp|.*\.orbax-checkpoint-tmp.*')


@contextlib.contextmanager
def local_copy(address: str) -> Iterator[str]:
  """Yields the path of a local copy of a work directory in an object store.

  The copy is removed once all of it is uploaded.
  """
  if processes.is_up():
    raise UserError(
      f'workdir={address}: a run of several processes needs a folder that all'
      ' of them see: mount the bucket, as with gcsfuse'
    )
  # Not in /tmp, where old files may be removed: the store would lose them, too.
  copies = config_lib.wing('vit_jax.downloads.places:cache')() / 'runs'
  copies.mkdir(parents=True, exist_ok=True)
  parent = pathlib.Path(tempfile.mkdtemp(dir=copies))
  folder = parent / (address.rstrip('/').rpartition('/')[2] or 'run')
  advice = f'the whole run is in {folder}: copy it there'
  with contextlib.ExitStack() as stack:
    try:
      with stores.explained(f'cannot use {address}'):
        directory = _Directory(address, folder)
        stack.enter_context(_locked(directory, address))
        directory.download()
    except BaseException:
      shutil.rmtree(parent, ignore_errors=True)
      raise
    logging.info('%s: the run works in a copy, %s', address, folder)
    has_failed = True
    try:
      with _repeated(directory.upload, f'cannot write {address}'):
        yield str(folder)
      has_failed = False
    except UserError as e:  # which may name the copy, that is removed now
      raise UserError(str(e).replace(str(folder), address)) from e
    finally:
      try:
        with stores.explained(f'cannot write {address}', advice):
          directory.upload()
        shutil.rmtree(parent)
        logging.info('%s has the whole run', address)
      except UserError as e:
        if not has_failed:
          raise
        logging.error('%s', e)  # the first error propagates


@contextlib.contextmanager
def _repeated(function: Callable[[], None], problem: str) -> Iterator[None]:
  """Calls a function every minute in a thread, and warns of its errors."""
  done = threading.Event()

  def repeat() -> None:
    while not done.wait(_PERIOD_S):
      try:
        function()
      except Exception as e:  # of any type; the next call may succeed
        logging.warning(
          'warning: %s: %s; it is tried again in a minute',
          *(problem, config_lib.one_line(e)),
        )

  thread = threading.Thread(target=repeat, daemon=True)
  thread.start()
  try:
    yield
  finally:
    done.set()
    thread.join()


@contextlib.contextmanager
def _locked(directory: '_Directory', address: str) -> Iterator[None]:
  """Holds the lock of a directory, and says every minute that it does."""
  directory.take()
  try:
    with _repeated(directory.renew, f'cannot write the lock of {address}'):
      yield
  finally:
    with contextlib.suppress(Exception):  # of any type; it expires
      directory.release()


class _Directory:
  """A directory of a store, an object in it that is its lock, and its copy."""

  def __init__(self, address: str, folder: pathlib.Path):
    self._address, self._id = address, uuid.uuid4().hex
    self._folder = folder
    self._store = stores.connect(address)
    self._path = self._store.path(stores.LOCK)
    # Time of change and size of each uploaded file, by its name in the folder.
    self._stamps: dict[str, tuple[int, int]] = {}

  def take(self) -> None:
    lock = self._read()
    left = stores.lock_expires_s(lock)
    if left > 0:
      raise UserError(
        f'work directory {self._address} is in use by'
        f' {lock.get("holder", "another process")}: wait for it, or stop it; if'
        f' it was killed, start again in {left:.0f} s'
      )
    self._write()

  def _check_lock(self, consequence: str) -> None:
    lock = self._read()
    if lock.get('id') != self._id:  # one that is gone was another's, too
      raise UserError(
        f'{lock.get("holder", "another process")} has taken the work directory'
        f' {self._address}: {consequence}'
      )

  def renew(self) -> None:
    self._check_lock('nothing more is written there')
    self._write()

  def release(self) -> None:
    self._check_lock('its lock stays')
    self._store.files.rm_file(self._path)

  def _read(self) -> dict[str, Any]:
    self._store.files.invalidate_cache()
    try:
      text = self._store.files.cat_file(self._path)
    except FileNotFoundError:
      return {}
    lock: dict[str, Any] = json.loads(text)
    return lock

  def _write(self) -> None:
    holder = f'process {os.getpid()} on {socket.gethostname()}'
    lock = {'holder': holder, 'time': time.time(), 'id': self._id}
    self._store.files.pipe_file(self._path, json.dumps(lock).encode())

  def download(self) -> None:
    for name in self._store.listed():
      if name != stores.LOCK:
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        self._store.files.get_file(self._store.path(name), str(target))
    self._stamps = self._files()

  def upload(self) -> None:
    """Copies files that are new or have changed, and removes others."""
    self._check_lock(f'the whole run is in {self._folder} alone')
    if self._stamps and not self._folder.is_dir():
      # The store would lose its files, too.
      raise UserError(f'the copy of the run, {self._folder}, is gone')
    files = self._files()
    changed = [x for x in files if files[x] != self._stamps.get(x)]
    changed.sort(key=_rank)
    for name in changed:
      try:
        path = self._store.path(name)
        self._store.files.put_file(str(self._folder / name), path)
      except FileNotFoundError:  # also of the store, as where a bucket is gone
        if (self._folder / name).exists():
          raise
        continue  # an old checkpoint was removed in the meantime
      self._stamps[name] = files[name]
    for name in self._stamps.keys() - files.keys():
      with contextlib.suppress(FileNotFoundError):
        self._store.files.rm_file(self._store.path(name))
      del self._stamps[name]

  def _files(self) -> dict[str, tuple[int, int]]:
    """Returns time of change and size of all files that are complete."""
    files: dict[str, Any] = {}
    for path in self._folder.rglob('*'):
      name = path.relative_to(self._folder).as_posix()
      with contextlib.suppress(FileNotFoundError):
        if path.is_file() and not _TEMPORARY.fullmatch(name):
          status = path.stat()
          files[name] = status.st_mtime_ns, status.st_size
    return files


def _rank(name: str) -> tuple[int, str]:
  """Orders files, so that a killed upload leaves a run that can be resumed.

  Checkpoints without a config would be of no run. Metrics come before them: a
  resumed run removes later ones, and does not write earlier ones again. DONE
  says that nothing is missing.
  """
  if name in _DESCRIPTION:
    return 0, str(_DESCRIPTION.index(name))
  return (2 if '/' in name else 3 if name == 'DONE' else 1), name
