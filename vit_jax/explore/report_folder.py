"""The folder of a report, in which a new report replaces an earlier one.

`numbers.json` lists the pictures of the report under `files`, so that a new
report removes the pictures of the earlier one and no other files.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import re
import tempfile

from vit_jax.config import UserError
from vit_jax.runs import safe_io

NUMBERS = 'numbers.json'
FILES = 'files'  # a key in it

# Names of pictures. Files with other names or in other folders are not removed.
_PICTURE = re.compile(r'[a-z]+(-\d+)?\.(png|svg)')


def check(folder: pathlib.Path) -> None:
  """Raises a UserError if nothing can be written to a folder."""
  path = folder.absolute()
  existing = next(p for p in (path, *path.parents) if os.path.exists(p))
  if not os.path.isdir(existing):
    raise UserError(f'--out={folder}: {existing} is a file; name a folder')
  if not os.access(existing, os.W_OK | os.X_OK):
    raise UserError(
      f'--out={folder}: nothing can be written in {existing}; name another'
      ' folder'
    )


@contextlib.contextmanager
def replacing(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields an empty folder whose files are moved to `folder` at the end.

  The pictures of an earlier report are then removed; after a failure they stay.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise UserError(f'--out={folder} cannot be made: {e.strerror}') from None
  with tempfile.TemporaryDirectory(prefix='.new-', dir=folder) as name:
    new = pathlib.Path(name)
    yield new
    files = sorted(os.listdir(new))
    try:
      for file in _drawn_before(folder) - set(files):
        (folder / file).unlink(missing_ok=True)
      for file in files:
        (new / file).replace(folder / file)
    except OSError as e:
      raise safe_io.cannot_write(folder / file, e) from e


def _drawn_before(folder: pathlib.Path) -> set[str]:
  """Returns the names of the pictures of the report in a folder."""
  try:
    numbers = safe_io.read_json(folder / NUMBERS)
  except UserError:  # an unreadable file is replaced
    return set()
  files = numbers.get(FILES) if isinstance(numbers, dict) else None
  if not isinstance(files, list):  # not written by us
    return set()
  return {x for x in files if isinstance(x, str) and _PICTURE.fullmatch(x)}
