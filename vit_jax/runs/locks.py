"""File locks between processes; the kernel releases them when a process ends.

All locks of the package are of this kind. `filelock` is not used, for three
reasons. It empties the file at each attempt, but here the file says who holds
the lock. It cannot pass a lock on to a child process that outlives the sweep
that started it. And if a network file system has no locks, it raises an error,
while a run should go on with a warning.
"""

import fcntl
import os
import pathlib

from absl import logging


class Lock:
  """A lock on a file; also between hosts, if their file system has locks.

  A child process that inherits the file also holds the lock, until it ends.
  """

  def __init__(self, path: pathlib.Path, user: str = 'sweep'):
    """Does not take the lock yet.

    Args:
      path: Path of its file, which need not exist.
      user: Kind of process that takes it, for the warning that the file system
        has no locks.
    """
    self.path = path
    self._user = user
    self._file: int | None = None

  def acquire(self, wait: bool = True) -> bool:
    """Takes the lock; returns whether this process now holds it.

    Args:
      wait: Whether to wait until its holder releases it.

    Raises:
      OSError: Its file cannot be opened.
    """
    file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
      os.close(file)
      return False
    except OSError as e:  # some network file systems have no locks
      logging.warning(
        'Cannot lock %s (%s): see to it that no other %s uses it',
        *(self.path, e.strerror, self._user),
      )
    except BaseException:
      os.close(file)
      raise
    self._file = file
    return True

  def fileno(self) -> int:
    """Returns the file descriptor that holds the lock."""
    assert self._file is not None
    return self._file

  def release(self) -> None:
    """Releases the lock, unless a child process still holds it."""
    if self._file is not None:
      os.close(self._file)
      self._file = None

  def write(self, text: str) -> None:
    """Writes a text into the file, for processes that find it locked."""
    os.ftruncate(self.fileno(), 0)
    os.pwrite(self.fileno(), text.encode(), 0)

  def __enter__(self) -> 'Lock':
    self.acquire()
    return self

  def __exit__(self, *_: object) -> None:
    self.release()


def is_held(path: pathlib.Path) -> bool:
  """Whether a process holds the lock of a file, which need not exist."""
  try:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  except OSError:
    return False
  try:
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  except OSError:  # the file system has no locks
    return False
  finally:
    os.close(file)
  return False


class JournalLock(Lock):
  """The lock that Optuna takes before it appends to its journal.

  Optuna's own locks stay locked after their process is killed. It also appends
  to an incomplete line of a killed process, which makes the journal unreadable.
  """

  def __init__(self, journal: pathlib.Path):
    """Does not take the lock yet.

    Args:
      journal: The file that Optuna appends to.
    """
    super().__init__(journal.with_name(f'.{journal.name}.lock'))
    self._journal = journal

  def acquire(self, wait: bool = True) -> bool:
    """Takes the lock, and cuts off an incomplete last line."""
    taken = super().acquire(wait)
    if taken:
      _cut_torn_line(self._journal)
    return taken


def _cut_torn_line(path: pathlib.Path) -> None:
  with path.open('rb+') as file:
    size = file.seek(0, os.SEEK_END)
    if not size:
      return
    file.seek(size - 1)
    if file.read(1) == b'\n':
      return
    file.seek(0)
    file.truncate(file.read().rfind(b'\n') + 1)
