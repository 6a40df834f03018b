"""The work directory: one run at a time, and the files that describe it.

config.json      the whole config, as `config.to_dict` gives it
preprocess.json  what prediction needs beside the parameters
run.json         {"runs": [...]}: on what each start ran, the newest last
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import datetime
import errno
import fcntl
from importlib import metadata
import json
import os
import pathlib
import platform
import shlex
import socket
import stat
import subprocess
import sys
from typing import Any
from typing import BinaryIO
from typing import TextIO

from absl import logging
import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError

# Of a text file that is read whole, in bytes: the names of a million classes.
MOST_TEXT = 64 << 20
_LONGEST_LINE = 4 << 20  # of metrics.jsonl
_DEEPEST = 64  # lists and objects of JSON in each other

# Packages whose versions decide what a run computes.
_PACKAGES = (
  'vit_jax',
  'jax',
  'jaxlib',
  'jax-cuda12-plugin',
  'jax-cuda13-plugin',
  'libtpu',
  'flax',
  'optax',
  'orbax-checkpoint',
  'clu',
  'ml_collections',
  'grain',
  'tensorflow-datasets',
  'opencv-python-headless',
  'simplejpeg',
  'scikit-learn',
  'numpy',
)


@contextlib.contextmanager
def lock(workdir: pathlib.Path | str) -> Iterator[None]:
  """Holds a work directory, which is made where there is none.

  The kernel gives the lock back when the process ends, however it does. With
  several processes, the first alone calls this.

  Raises:
    UserError: Another process holds it, or it cannot be made.
  """
  workdir = pathlib.Path(workdir)
  if workdir.is_file():
    raise UserError(
      f'cannot use work directory {workdir}: it is a file; give another'
      ' --workdir'
    )
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    file = (workdir / '.lock').open('a+')
  except OSError as e:
    raise UserError(
      f'cannot use work directory {workdir}: {e.strerror}; make it writable, or'
      ' give another --workdir'
    ) from None
  with file:
    _flock(file, workdir)
    file.truncate(0)
    file.write(f'process {os.getpid()} on {socket.gethostname()}')
    file.flush()
    yield


def _flock(file: TextIO, workdir: pathlib.Path) -> None:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    holder = file.read() or 'another process'
    raise UserError(
      f'work directory {workdir} is in use by {holder}: wait for it, stop it,'
      ' or give another --workdir'
    ) from None
  except OSError as e:  # some network file systems have no locks
    logging.warning(
      'Cannot lock %s (%s): see to it that no other run uses it',
      workdir,
      e.strerror,
    )


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


def parse_metrics(line: str) -> dict[str, Any] | None:
  """Returns a line of metrics.jsonl; None where it is not whole.

  Args:
    line: With its end: without, the process was killed as it wrote.
  """
  if not line.endswith('\n'):
    return None
  try:
    values = parse_json(line)
  except ValueError:
    return None
  if not isinstance(values, dict) or type(values.get('step')) is not int:
    return None
  known = [values.get(key, 0) for key in ('epoch', 'time')]
  others = [x for x in values.values() if x is not None]
  fits = abs(values['step']) < 2**63 and all(map(_is_number, [*known, *others]))
  return values if fits else None


def _is_number(value: Any) -> bool:
  """Whether a value is a number that a float can hold."""
  if type(value) is float:
    return True  # a run that diverges writes what is near the largest, too
  return type(value) is int and abs(value) < 2**1000


def check_config(
  workdir: pathlib.Path, config: ml_collections.ConfigDict
) -> ml_collections.ConfigDict | None:
  """Compares a config with that of the run which is there, if there is one.

  Args:
    workdir: Of this run.
    config: The whole config; what data and checkpoint decide may be open.

  Returns:
    The config with what was decided then; None where no run is there.

  Raises:
    UserError: They differ in what a resumed run must not change.
  """
  stored = read_json(workdir / 'config.json')
  if stored is None:
    return None
  try:
    before = config_lib.from_dict(stored)
  except UserError as e:
    raise UserError(f'{workdir / "config.json"}: {e}') from None
  config = config_lib.fill(config, before)
  differences = config_lib.differences(before, config)
  if differences:
    raise UserError(
      f'{workdir} was begun with another config: {"; ".join(differences)}; run'
      ' with the old values to resume it, or give another --workdir'
    )
  return config


def prepare(
  workdir: pathlib.Path,
  config: ml_collections.ConfigDict,
  preprocess: Mapping[str, Any],
  data_fingerprint: str,
) -> None:
  """Writes config.json, preprocess.json and run.json, or compares with them.

  Args:
    workdir: Of this run; with several processes, the first alone calls this.
    config: The whole config.
    preprocess: What preprocess.json holds, `classes` among it.
    data_fingerprint: Of the training data.

  Raises:
    UserError: The run that is there had another config or other classes, or
      the files cannot be read or written.
  """
  check_config(workdir, config)
  before = read_json(workdir / 'preprocess.json')
  if before is not None and before['classes'] != list(preprocess['classes']):
    raise UserError(
      f'the data has other classes than when {workdir} began:'
      f' {_changes(before["classes"], preprocess["classes"])}; bring the data'
      ' back, or give another --workdir'
    )
  run = {**run_info(sys.orig_argv), 'data_fingerprint': data_fingerprint}
  _append_run(workdir, run)
  write_json(workdir / 'preprocess.json', preprocess)
  write_json(workdir / 'config.json', config_lib.to_dict(config))


def run_info(argv: Sequence[str]) -> dict[str, Any]:
  """Returns on what this process runs, for run.json.

  Args:
    argv: The command line.

  Returns:
    command, directory (where it was given), started (with the time zone), host,
    python, packages (versions), devices (platform, kind, count, processes),
    and, in a git checkout, git (commit, dirty).
  """
  import jax  # here, since commands that only read a run do without it

  device = jax.devices()[0]
  info = {
    'command': shlex.join(argv),
    'directory': os.getcwd(),
    'started': datetime.datetime.now().astimezone().isoformat('T', 'seconds'),
    'host': socket.gethostname(),
    'python': platform.python_version(),
    'packages': _versions(),
    'devices': {
      'platform': device.platform,
      'kind': device.device_kind,
      'count': jax.device_count(),
      'processes': jax.process_count(),
    },
  }
  git = _git()
  return {**info, 'git': git} if git else info


def _changes(old: Sequence[str], new: Sequence[str]) -> str:
  missing = [repr(name) for name in old if name not in new]
  added = [repr(name) for name in new if name not in old]
  parts = [
    f'{what} {config_lib.some(names)}'
    for what, names in (('without', missing), ('with', added))
    if names
  ]
  return ', '.join(parts) or 'their order changed'


def _append_run(workdir: pathlib.Path, run: Mapping[str, Any]) -> None:
  path = workdir / 'run.json'
  runs = (read_json(path) or {'runs': []})['runs']
  if runs and runs[-1].get('data_fingerprint') != run['data_fingerprint']:
    logging.warning(
      'warning: the data is not what it was when this run stopped, so it will'
      ' not go on exactly as it would have'
    )
  write_json(path, {'runs': [*runs, run]})


def _versions() -> dict[str, str]:
  versions = {}
  for name in _PACKAGES:
    with contextlib.suppress(metadata.PackageNotFoundError):
      versions[name] = metadata.version(name)
  return versions


def _git() -> dict[str, Any] | None:
  """Returns the commit of this code; None where it is not in a checkout."""
  package = pathlib.Path(__file__).parent

  def git(*arguments: str) -> str:
    return subprocess.run(
      ('git', '--no-optional-locks', '-C', str(package), *arguments),
      capture_output=True,
      text=True,
      check=True,
      timeout=20,
    ).stdout.strip()

  try:
    # Installed in a virtual environment inside a checkout of something else,
    # this file is not one of the checkout's.
    git('ls-files', '--error-unmatch', pathlib.Path(__file__).name)
    return {
      'commit': git('rev-parse', 'HEAD'),
      # Of tracked files alone: results and notes beside them change nothing.
      'dirty': bool(git('status', '--porcelain', '--untracked-files=no')),
    }
  except (OSError, subprocess.SubprocessError):
    return None
