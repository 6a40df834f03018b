"""A work directory in an object store, such as gs://bucket/run.

The run works in a local copy. What is in the store is downloaded when the run
starts, and what changes in the copy is uploaded every minute and at the end. A
checkpoint is a directory that appears in the copy at once, when it is complete.
In the store its files appear one after the other: if a process is killed in the
midst of that, the next start finds the checkpoint damaged and takes the one
before, which is removed only after the upload.

Object stores have no locks. An object lock.json says who uses the directory,
and the time of the last upload.
"""

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

from absl import logging
import fsspec

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.parallel import processes

_PERIOD_S = 60  # between uploads
_STALE_S = 200  # without an upload, after which a lock no longer counts
_LOCK = 'lock.json'
# Files that are being written, and the lock of the copy.
_TEMPORARY = re.compile(r'\.lock|(.*/)?\.[^/]*\.tmp|.*\.orbax-checkpoint-tmp.*')


@contextlib.contextmanager
def local_copy(address: str) -> Iterator[str]:
  """Yields the path of a local copy of a work directory in an object store.

  The copy is removed once all of it is uploaded.

  Args:
    address: Address of the work directory.

  Raises:
    UserError: The store cannot be read or written, another run uses the work
      directory, or this run has several processes, which need a folder that all
      of them see.
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
  try:
    with _explained(f'cannot read {address}'):
      copy = _Copy(address, folder)
      copy.check_lock()
      copy.download()
    with _explained(f'cannot write {address}'):
      copy.write_lock()
  except UserError:
    shutil.rmtree(parent)
    raise
  logging.info('%s: the run works in a copy, %s', address, folder)
  done = threading.Event()
  thread = threading.Thread(
    target=_keep_uploading, args=(copy, done), daemon=True
  )
  thread.start()
  has_failed = True
  try:
    yield str(folder)
    has_failed = False
  finally:
    done.set()
    thread.join()
    advice = f'the whole run is in {folder}: copy it there'
    try:
      with _explained(f'cannot write {address}', advice):
        copy.upload()
        copy.remove_lock()
      shutil.rmtree(parent)
    except UserError as e:
      if not has_failed:
        raise
      logging.error('%s', e)  # the first error propagates


def _keep_uploading(copy: '_Copy', done: threading.Event) -> None:
  while not done.wait(_PERIOD_S):
    try:
      copy.upload()
      copy.write_lock()
    except Exception as e:  # of any type; the next upload may succeed
      logging.warning(
        'warning: cannot write %s: %s; it is tried again in a minute',
        *(copy.address, config_lib.one_line(e)),
      )


@contextlib.contextmanager
def _explained(
  problem: str, advice: str = 'see to your access to it, or name a local folder'
) -> Iterator[None]:
  """Turns errors of a store's library, of any type, into a UserError."""
  try:
    yield
  except UserError:
    raise
  except Exception as e:
    reason = config_lib.one_line(e) or type(e).__name__
    raise UserError(f'{problem}: {reason}; {advice}') from e


class _Copy:
  """The copy of a directory of a store.

  Attributes:
    address: Address of the directory.
  """

  def __init__(self, address: str, folder: pathlib.Path):
    self.address = address
    self._folder = folder
    self._store, root = fsspec.core.url_to_fs(address)
    self._root = root.rstrip('/')
    # Time of change and size of each uploaded file, by its name in the folder.
    self._stamps: dict[str, tuple[int, int]] = {}

  def check_lock(self) -> None:
    """Raises a UserError if another process uses the directory."""
    path = f'{self._root}/{_LOCK}'
    self._store.invalidate_cache()
    if not self._store.exists(path):
      return
    lock = json.loads(self._store.cat_file(path))
    left = _STALE_S - (time.time() - lock['time'])
    if left > 0:
      raise UserError(
        f'work directory {self.address} is in use by {lock["holder"]}: wait for'
        f' it, or stop it; if it was killed, start again in {left:.0f} s'
      )

  def write_lock(self) -> None:
    """Says that this process uses the directory."""
    holder = f'process {os.getpid()} on {socket.gethostname()}'
    lock = json.dumps({'holder': holder, 'time': time.time()})
    self._store.pipe_file(f'{self._root}/{_LOCK}', lock.encode())

  def remove_lock(self) -> None:
    """Lets others use the directory."""
    self._store.rm_file(f'{self._root}/{_LOCK}')

  def download(self) -> None:
    """Copies all files of the directory, except for the lock."""
    for path in self._store.find(self._root):
      name = path.removeprefix(self._root).strip('/')
      # Names come from whoever may write to the bucket.
      if name != _LOCK and '..' not in pathlib.PurePath(name).parts:
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        self._store.get_file(path, str(target))
    self._stamps = self._files()

  def upload(self) -> None:
    """Copies files that are new or have changed, and removes others."""
    files = self._files()
    changed = [x for x in files if files[x] != self._stamps.get(x)]
    # Checkpoints come first, and DONE says that nothing is missing.
    changed.sort(key=lambda name: (name == 'DONE', '/' not in name))
    for name in changed:
      # An old checkpoint may be removed in the meantime.
      with contextlib.suppress(FileNotFoundError):
        path = f'{self._root}/{name}'
        self._store.put_file(str(self._folder / name), path)
        self._stamps[name] = files[name]
    for name in self._stamps.keys() - files.keys():
      self._store.rm_file(f'{self._root}/{name}')
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
