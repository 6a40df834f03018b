"""Files that are read safely, and replaced as a whole.

A file that is written appears under its name once it is complete: whoever reads
it, even after a crash, finds the old or the new one. A file that is read may be
made by others: it must be a regular file of a bounded size, and its JSON may
not be nested so deeply that what goes through it overflows the stack.
"""

from collections.abc import Iterator
import contextlib
import errno
import json
import os
import pathlib
import stat
from typing import Any
from typing import BinaryIO
from typing import TextIO

from vit_jax import config as config_lib
from vit_jax.config import UserError

# The largest text file that is read whole, in bytes: the names of a million
# classes.
MOST_TEXT = 64 << 20
_LONGEST_LINE = 4 << 20  # bytes of a line of metrics.jsonl
_DEEPEST = 64  # nested lists and objects of JSON


@contextlib.contextmanager
def replacing_path(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a path whose file takes the place of `path` once all went well.

  Raises:
    UserError: It cannot be written; what was there before is intact.
  """
  temporary = path.with_name(f'.{path.name}.tmp')
  try:
    try:
      yield temporary
      temporary.replace(path)
    finally:
      temporary.unlink(missing_ok=True)
  except OSError as e:
    if e.filename not in (None, str(temporary)):  # another file's trouble
      raise
    raise cannot_write(path, e) from e


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[TextIO]:
  """Opens a text file that takes the place of `path` once it is whole.

  Raises:
    UserError: As `replacing_path`.
  """
  with (
    replacing_path(path) as temporary,
    temporary.open('w', encoding='utf-8') as file,
  ):
    yield file
    file.flush()
    os.fsync(file.fileno())


def cannot_write(path: pathlib.Path, error: OSError) -> UserError:
  """Returns the error for a file that cannot be written."""
  return UserError(
    f'cannot write {path}: {error.strerror or error}; make room for it, or make'
    ' the directory writable, and run the same command again'
  )


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file that is at any moment the old or the new one, whole.

  Raises:
    UserError: It cannot be written.
  """
  text = json.dumps(value, indent=2) + '\n'
  with replacing(path) as file:
    file.write(text)


def open_regular(path: pathlib.Path | str) -> BinaryIO:
  """Opens a file to read its bytes, and only if it is one.

  Files beside a checkpoint, and images, are made by others: a link to /dev/zero
  would fill the memory, and a FIFO would let us wait for ever.

  Raises:
    OSError: It cannot be opened, or is no regular file.
  """
  # Not to wait for who writes into a FIFO.
  file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  try:
    if not stat.S_ISREG(os.fstat(file).st_mode):
      raise OSError(errno.EINVAL, 'it is no regular file', str(path))
    return os.fdopen(file, 'rb')
  except BaseException:
    os.close(file)
    raise


def read_bytes(path: pathlib.Path | str, most: int) -> bytes:
  """Returns the content of a regular file of at most so many bytes.

  Raises:
    OSError: It cannot be read, is no regular file, or has more.
  """
  with open_regular(path) as file:
    content = file.read(most + 1)
  if len(content) > most:
    raise OSError(errno.EFBIG, f'it has more than {most:,} bytes', str(path))
  return content


def read_text(path: pathlib.Path | str, most: int = MOST_TEXT) -> str:
  """Returns the content of a regular file of UTF-8.

  Raises:
    OSError: As `read_bytes`.
    ValueError: It is no UTF-8.
  """
  return read_bytes(path, most).decode('utf-8')


def read_lines(path: pathlib.Path) -> Iterator[str]:
  """Yields the lines of a regular file with their ends.

  What is no UTF-8 becomes question marks; a line that is longer than any of
  ours comes in parts.

  Raises:
    FileNotFoundError: There is none.
    UserError: It cannot be read, or is no regular file.
  """
  try:
    with open_regular(path) as file:
      while line := file.readline(_LONGEST_LINE):
        yield line.decode('utf-8', errors='replace')
  except FileNotFoundError:
    raise
  except OSError as e:
    raise UserError(f'cannot read {path}: {e.strerror}; repair it') from None


def read_json(
  path: pathlib.Path, advice: str = 'repair it, or give another --workdir'
) -> Any:
  """Reads a JSON file; None where there is none.

  Args:
    path: To read.
    advice: What to do where it cannot be read.

  Raises:
    UserError: It cannot be read.
  """
  try:
    return parse_json(read_text(path))
  except FileNotFoundError:
    return None
  except OSError as e:
    raise UserError(f'cannot read {path}: {e.strerror}; {advice}') from None
  except ValueError as e:
    why = config_lib.one_line(e)
    raise UserError(f'cannot read {path}: {why}; {advice}') from None


def parse_json(text: str | bytes) -> Any:
  """Returns what a JSON text holds.

  Raises:
    ValueError: It is none, or its lists and objects lie too deep in each other
      for what goes through them.
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
