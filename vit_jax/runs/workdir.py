"""The work directory of a run: its lock, and the files that describe the run.

config.json      the whole config, from `config.to_dict`
preprocess.json  what prediction needs in addition to the parameters
run.json         {"runs": [...]}: the `run_info` of each start, the newest last
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import datetime
from importlib import metadata
import os
import pathlib
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from typing import Any

from absl import logging
import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.runs import safe_io

# Packages whose versions can change the results of a run.
_PACKAGES = (
  *('vit_jax', 'jax', 'jaxlib', 'jax-cuda12-plugin', 'jax-cuda13-plugin'),
  *('libtpu', 'flax', 'optax', 'orbax-checkpoint', 'clu', 'ml_collections'),
  *('grain', 'tensorflow-datasets', 'opencv-python-headless', 'simplejpeg'),
  *('scikit-learn', 'numpy'),
)

LOG = 'train.log'
# In tasks/NAME/, of one task of a run of several: its name, `task`, and where
# its parameters lie in the run, `params`.
PART = 'part.json'
# Files that only the process with the lock replaces.
_LOCKED_FILES = (
  *('config.json', 'preprocess.json', 'run.json'),
  *('metrics.jsonl', 'trackers.json', 'DONE'),
)


@contextlib.contextmanager
def lock(workdir: pathlib.Path | str) -> Iterator[None]:
  """Locks a work directory, which is created if it does not exist.

  The kernel releases the lock when the process ends, even after a crash. With
  several processes, only the first calls this.

  If a UserError leaves the context, a new directory without files of a run is
  removed again: the run was refused.
  """
  workdir = pathlib.Path(workdir)
  if workdir.is_file():
    raise UserError(
      f'cannot use work directory {workdir}: it is a file; give another'
      ' --workdir'
    )
  held = safe_io.Lock(workdir / '.lock', 'run')
  is_new = not workdir.exists()
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    is_locked = held.acquire(wait=False)
  except OSError as e:
    raise UserError(
      f'cannot use work directory {workdir}: {e.strerror}; make it writable, or'
      ' give another --workdir'
    ) from None
  if not is_locked:
    holder = held.path.read_text('utf-8', 'replace') or 'another process'
    raise UserError(
      f'work directory {workdir} is in use by {holder}: wait for it, stop it,'
      ' or give another --workdir'
    )
  try:
    held.write(f'process {os.getpid()} on {socket.gethostname()}')
    for name in _LOCKED_FILES:
      safe_io.remove_strays(workdir / name)
    yield
  except UserError:
    if is_new:
      _remove_refused(workdir)
    raise
  finally:
    held.release()


def _remove_refused(workdir: pathlib.Path) -> None:
  """Removes the folder of a run that was refused before it wrote anything."""
  files = [workdir / name for name in (LOG, '.lock')]
  # NFS keeps a file that is open under another name; then the folder stays.
  with contextlib.suppress(OSError):
    if set(workdir.iterdir()) <= set(files):
      for file in files:
        file.unlink(missing_ok=True)
      workdir.rmdir()


def newest_first(directory: pathlib.Path) -> list[pathlib.Path]:
  """Lists the folders STEP of `checkpoints` or `best`, the newest first."""
  if not directory.is_dir():
    return []
  paths = [path for path in directory.iterdir() if path.name.isdecimal()]
  return sorted(paths, key=lambda path: int(path.name), reverse=True)


def discard_untrained(workdir: pathlib.Path) -> None:
  """Removes what describes a run that no update was kept of.

  Such a run was stopped or killed before its first checkpoint, or failed in its
  first step. Nothing is left to resume, so the next start in its directory may
  have any config, data and classes. train.log and the trackers' files stay.
  """
  is_task = (workdir / PART).exists()  # checkpoints are in the whole run
  is_fresh = not (workdir / 'config.json').exists()
  if is_task or is_fresh or (workdir / 'DONE').exists():
    return
  checkpoints = [
    path
    for name in ('checkpoints', 'best')
    for path in newest_first(workdir / name)
  ]
  if any(int(path.name) for path in checkpoints):
    return
  logging.info('no step of an earlier run was saved here: it begins anew')
  tasks = [path.parent for path in workdir.glob(f'tasks/*/{PART}')]
  for folder in checkpoints + tasks:
    shutil.rmtree(folder)
  for name in ('run.json', 'preprocess.json', 'config.json'):
    (workdir / name).unlink(missing_ok=True)


def run_folder(task_folder: pathlib.Path) -> pathlib.Path:
  """Returns the work directory that holds a folder `tasks/NAME`."""
  return task_folder.absolute().parents[1]


def check_config(
  workdir: pathlib.Path,
  config: ml_collections.ConfigDict,
  align: Callable[
    [ml_collections.ConfigDict, ml_collections.ConfigDict],
    ml_collections.ConfigDict,
  ]
  | None = None,
) -> ml_collections.ConfigDict | None:
  """Compares a config with that of the run in the work directory.

  Returns it with values that come from the data and the checkpoint filled from
  the run; None if there is no run. `align` maps the config and that of the run
  to the config written as the run's, as far as it means the same; None: it is.
  """
  if (workdir / PART).exists():
    raise UserError(
      f'{workdir} is the task {workdir.name} of a run, which trains all its'
      f' tasks: give --workdir={run_folder(workdir)}'
    )
  stored = safe_io.read_json(workdir / 'config.json')
  if stored is None:
    return None
  with config_lib.explained(f'{workdir / "config.json"}'):
    before = config_lib.from_dict(stored)
  resuming = config_lib.wing('vit_jax.config.resuming')
  config = resuming.fill(config, before)
  if align is not None:
    config = align(config, before)
  if differences := resuming.differences(before, config):
    refusal = config_lib.wing('vit_jax.runs.refusals:other_config')
    raise refusal(workdir, before, differences)
  return config


def prepare(
  workdir: pathlib.Path,
  config: ml_collections.ConfigDict,
  preprocess: Mapping[str, Any],
  data_fingerprint: str,
  metrics: Mapping[str, str] | None = None,
  files: Mapping[str, Any] | None = None,
) -> None:
  """Writes config.json, preprocess.json and run.json, or compares with them.

  Args:
    workdir: The work directory. With several processes only the first calls
      this.
    config: The whole config.
    preprocess: The content of preprocess.json, with `classes`.
    data_fingerprint: Fingerprint of the training data.
    metrics: The better direction, 'max' or 'min', of each metric.
    files: Content of further JSON files, by path in the work directory.
  """
  check_config(workdir, config)
  written = {**(files or {}), 'preprocess.json': preprocess}
  for name, content in written.items():
    stored = safe_io.read_json(workdir / name)
    if name.endswith('preprocess.json') and stored is not None:
      folder = (workdir / name).parent
      _compare(folder, stored['classes'], content['classes'])
  run = {**run_info(sys.orig_argv), 'data_fingerprint': data_fingerprint}
  if metrics:
    run['metrics'] = dict(metrics)
  if has_other_data(workdir, data_fingerprint):
    logging.warning(
      'warning: the data is not what it was when this run stopped, so it will'
      ' not go on exactly as it would have'
    )
  safe_io.write_json(workdir / 'run.json', {'runs': [*_runs(workdir), run]})
  for name, content in written.items():
    (workdir / name).parent.mkdir(parents=True, exist_ok=True)
    safe_io.write_json(workdir / name, content)
  safe_io.write_json(workdir / 'config.json', config_lib.to_dict(config))


def check_names(
  workdir: pathlib.Path, names: Mapping[str, Sequence[str]]
) -> None:
  """Compares the classes of the data with the run's, before it is built.

  Args:
    workdir: The work directory, or the folder in it of a task.
    names: Names of the classes or quantities of each feature.
  """
  stored = safe_io.read_json(workdir / 'preprocess.json') or {}
  for feature, kind in stored.get('features', {}).items():
    before = kind.get('classes', kind.get('quantities'))
    if before is not None and feature in names:
      _compare(workdir, before, names[feature])


def _compare(
  folder: pathlib.Path, before: Sequence[str], names: Sequence[str]
) -> None:
  if list(before) != list(names):
    refusal = config_lib.wing('vit_jax.runs.refusals:other_classes')
    raise refusal(folder, before, names)


def has_other_data(workdir: pathlib.Path, fingerprint: str) -> bool:
  """Whether a run that began had other data when it was last started."""
  runs = _runs(workdir)
  return bool(runs) and runs[-1].get('data_fingerprint') != fingerprint


def _runs(workdir: pathlib.Path) -> list[dict[str, Any]]:
  stored = safe_io.read_json(workdir / 'run.json')
  return stored['runs'] if stored else []


def run_info(argv: Sequence[str]) -> dict[str, Any]:
  """Describes this process for run.json: versions, code, devices.

  Returns:
    command, directory (where it was given), started (with the time zone), host,
    python, packages (versions), devices (platform, kind, count, processes),
    and, in a git checkout, git (commit, dirty).
  """
  import jax  # here, since commands that only read a run do not need it

  device = jax.devices()[0]
  versions = {}
  for name in _PACKAGES:
    with contextlib.suppress(metadata.PackageNotFoundError):
      versions[name] = metadata.version(name)
  info = {
    'command': shlex.join(argv),
    'directory': os.getcwd(),
    'started': datetime.datetime.now().astimezone().isoformat('T', 'seconds'),
    'host': socket.gethostname(),
    'python': platform.python_version(),
    'packages': versions,
    'devices': {
      'platform': device.platform,
      'kind': device.device_kind,
      'count': jax.device_count(),
      'processes': jax.process_count(),
    },
  }
  git = _git()
  return {**info, 'git': git} if git else info


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
    # Fails if this file is in a virtual environment inside another project's
    # checkout, since it is then not a file of that checkout.
    git('ls-files', '--error-unmatch', pathlib.Path(__file__).name)
    return {
      'commit': git('rev-parse', 'HEAD'),
      # Untracked files, such as results and notes, change nothing.
      'dirty': bool(git('status', '--porcelain', '--untracked-files=no')),
    }
  except (OSError, subprocess.SubprocessError):
    return None
