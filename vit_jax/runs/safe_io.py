"""Reads files safely, replaces files atomically, and locks them.

A written file appears under its name only when it is complete. A reader finds
either the old or the new file, even after a crash. Files that are read may come
from others: they must be regular files of bounded size, and JSON must not be
nested so deeply that recursive code overflows the stack.

The kernel releases a lock when its process ends. `filelock` is not used, for
three reasons. It empties the file at each attempt, but here the file says who
holds the lock. It cannot pass a lock on to a child process that outlives the
sweep that started it. And if a network file system has no locks, it raises an
error, while a run should go on with a warning.
"""

import codecs
from collections.abc import Iterator
import contextlib
import errno
import fcntl
import glob
import json
import os
import pathlib
import secrets
import stat
from typing import Any
from typing import BinaryIO
from typing import TextIO

from absl import logging

from vit_jax import config as config_lib
from vit_jax.config import UserError

# The largest text file that is read at once, in bytes. It is enough for the
# names of a million classes.
MOST_TEXT = 64 << 20
_DEEPEST = 64  # deepest nesting of lists and objects in JSON


@contextlib.contextmanager
def replacing_path(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary path whose file replaces `path` if the body succeeds.

  The old file is intact after any error.
  """
  # Another process may replace the same file, such as the index of a shard.
  temporary = path.with_name(f'.{path.name}.{secrets.token_hex(4)}.tmp')
  try:
    try:
      yield temporary
      temporary.replace(path)
    finally:
      temporary.unlink(missing_ok=True)
  except OSError as e:
    if e.filename not in (None, str(temporary)):  # the error of another file
      raise
    raise cannot_write(path, e) from e


def remove_strays(path: pathlib.Path) -> None:
  """Removes what killed processes left of files that were to replace `path`.

  No other process may be about to replace it.
  """
  name = glob.escape(path.name)
  for stray in path.parent.glob(f'.{name}.{"[0-9a-f]" * 8}.tmp'):
    stray.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[TextIO]:
  """Opens a text file that replaces `path` once it is complete."""
  with (
    replacing_path(path) as temporary,
    temporary.open('w', encoding='utf-8') as file,
  ):
    yield file
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Turns errors of writing a file into a UserError."""
  try:
    yield
  except OSError as e:
    raise cannot_write(path, e) from e


def cannot_write(path: pathlib.Path, error: OSError) -> UserError:
  """Returns the error for a file that cannot be written."""
  return UserError(
    f'cannot write {path}: {error.strerror or error}; make room for it, or make'
    ' the directory writable, and run the same command again'
  )


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file; at any time it is the complete old or new one."""
  text = json.dumps(value, indent=2) + '\n'
  with replacing(path) as file:
    file.write(text)


def open_regular(path: pathlib.Path | str) -> BinaryIO:
  """Opens a regular file for reading bytes; an OSError says why it cannot.

  Checkpoints, images and the files beside them come from others: a link to
  /dev/zero would fill the memory, and a FIFO would block for ever.
  """
  # O_NONBLOCK: opening a FIFO does not wait for its writer.
  try:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  except ValueError as e:  # it has a zero byte, or no file can be called so
    raise OSError(errno.EINVAL, config_lib.one_line(e), str(path)) from None
  try:
    if not stat.S_ISREG(os.fstat(file).st_mode):
      raise OSError(errno.EINVAL, 'it is no regular file', str(path))
    return os.fdopen(file, 'rb')
  except BaseException:
    os.close(file)
    raise


def read_bytes(path: pathlib.Path | str, most: int) -> bytes:
  """Reads a regular file of at most `most` bytes, or raises an OSError."""
  with open_regular(path) as file:
    content = file.read(most + 1)
  if len(content) > most:
    raise OSError(errno.EFBIG, f'it has more than {most:,} bytes', str(path))
  return content


def read_text(path: pathlib.Path | str, most: int = MOST_TEXT) -> str:
  """Reads a regular file of text, with `read_bytes` and `decoded`."""
  return decoded(read_bytes(path, most))


def decoded(content: bytes) -> str:
  """Returns text without the byte order mark that editors put before it.

  It is UTF-8, or UTF-16 where the mark says so. Raises a UnicodeDecodeError if
  it is neither.
  """
  marks = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
  if content.startswith(marks) and content not in marks:
    return content.decode('utf-16')
  return content.decode('utf-8-sig')


def read_json(
  path: pathlib.Path, advice: str = 'repair it, or give another --workdir'
) -> Any:
  """Reads a JSON file; None if it does not exist.

  `advice` is the end of the error message, which says what to do.
  """
  try:
    return parse_json(read_text(path))
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as e:
    problem = config_lib.reason(e)
    raise UserError(f'cannot read {path}: {problem}; {advice}') from None


def parse_json(text: str | bytes) -> Any:
  """Parses JSON.

  A ValueError says that it is none, or that its lists and objects are nested so
  deeply that recursive functions would fail on them.
  """
  too_deep = f'more than {_DEEPEST} lists or objects in each other'
  try:
    value = json.loads(text)
  except RecursionError:
    raise ValueError(too_deep) from None
  level = [value]
  for _ in range(_DEEPEST):
    if not level:
      return value
    level = [
      child
      for x in level
      if isinstance(x, dict | list)
      for child in (x.values() if isinstance(x, dict) else x)
    ]
  if level:
    raise ValueError(too_deep)
  return value


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
    """Takes the lock; returns whether this process now holds it."""
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
