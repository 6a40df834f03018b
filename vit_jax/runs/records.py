"""Reads the record of a run from its work directory, without JAX.

The run may be finished, stopped or still running.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import fcntl
import math
import os
import pathlib
from typing import Any
from typing import NamedTuple

from absl import logging

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.runs import metrics_file
from vit_jax.runs import safe_io

# The end of a commit's name if the checkout had uncommitted changes.
CHANGED = ' with changes'


class Point(NamedTuple):
  """One value of a metric."""

  step: int  # completed updates
  epoch: float
  seconds: float  # since the run began, without the time when it was stopped
  value: float  # nan where it was not finite


@dataclasses.dataclass(frozen=True)
class Record:
  """The record of a run.

  Attributes:
    path: The work directory, absolute.
    config: The leaves of config.json by dotted key.
    starts: The entries of run.json, the newest last.
    curves: The points of each metric by name, in order of the steps.
    state: 'finished', 'running' or 'stopped'.
    directions: The better direction, 'max' or 'min', of each metric, from
      run.json; a name that ends with '/' stands for several metrics.
  """

  path: pathlib.Path
  config: Mapping[str, Any]
  starts: Sequence[Mapping[str, Any]]
  curves: Mapping[str, Sequence[Point]]
  state: str
  directions: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def last(self) -> Point | None:
    """The newest point of all metrics; None if there are none yet."""
    newest = [points[-1] for points in self.curves.values()]
    return max(newest, key=lambda p: (p.step, p.seconds), default=None)

  def final(self, name: str) -> float | None:
    """Returns the newest value of a metric; None if there is none."""
    return self.curves[name][-1].value if name in self.curves else None

  def best(self, name: str) -> Point | None:
    """Returns a metric's best point; None if no value is finite."""
    points = [p for p in self.curves.get(name, ()) if math.isfinite(p.value)]
    sign = -1 if is_better_low(name, self.directions) else 1
    return max(points, key=lambda p: sign * p.value, default=None)


def is_better_low(name: str, directions: Mapping[str, str]) -> bool:
  """Whether lower values of a metric, as 'val/loss', are better.

  Where the directions of a `Record` do not have the metric, lower is better if
  its name ends like that of a loss or an error.
  """
  for key, direction in directions.items():
    if name == key or (key.endswith('/') and name.startswith(key)):
      return direction == 'min'
  return name.endswith(('loss', 'error'))


def is_evaluation(name: str) -> bool:
  """Whether a metric comes from an evaluation, like 'val/accuracy'."""
  return not name.startswith('train/')


def is_run(path: pathlib.Path) -> bool:
  """Whether a path is the work directory of a run that began.

  A config.json alone is not enough, since converted models have one.
  """
  return (path / 'config.json').is_file() and (path / 'run.json').is_file()


def read(path: pathlib.Path) -> Record:
  """Reads a work directory."""
  path = path.absolute()
  if not path.is_dir():
    hint = config_lib.nearby(str(path), os.path.isdir)
    raise UserError(f'there is no work directory {path}{hint}')
  config = _read_json(path / 'config.json')
  if config is None:
    raise UserError(
      f'{path} is not the work directory of a run that began: it has no'
      ' config.json'
    )
  starts = (_read_json(path / 'run.json') or {}).get('runs', [])
  if not isinstance(starts, list) or not all(map(_is_start, starts)):
    raise UserError(
      f'{path / "run.json"} does not hold what a run writes: repair it, or'
      ' leave this run out'
    )
  state = 'stopped'
  if (path / 'DONE').exists():
    state = 'finished'
  elif _is_held(path / '.lock'):
    state = 'running'
  return Record(
    path=path,
    config=dict(config_lib.flatten(config)),
    starts=starts,
    curves=_read_curves(path / 'metrics.jsonl', _times(starts)),
    state=state,
    directions={
      name: direction
      for start in starts
      for name, direction in (start.get('metrics') or {}).items()
    },
  )


def _read_json(path: pathlib.Path) -> dict[str, Any] | None:
  value = safe_io.read_json(path, 'repair it, or leave this run out')
  if value is not None and not isinstance(value, dict):
    raise UserError(f'{path} does not hold what a run writes')
  return value


def _is_start(start: Any) -> bool:
  """Whether an entry of run.json has the types that `run_info` gives it."""
  if not isinstance(start, dict):
    return False
  kinds = {'started': str} | dict.fromkeys(
    ('packages', 'devices', 'git', 'metrics'), dict
  )
  entries = {key: start[key] for key in kinds if start.get(key) is not None}
  if not all(isinstance(x, kinds[key]) for key, x in entries.items()):
    return False
  git = entries.get('git', {'commit': '', 'dirty': False})
  if not isinstance(git.get('commit'), str) or 'dirty' not in git:
    return False
  try:
    _times([start])
  except ValueError:
    return False
  return True


def _times(starts: Sequence[Mapping[str, Any]]) -> list[float]:
  texts = [start['started'] for start in starts if start.get('started')]
  return [datetime.datetime.fromisoformat(text).timestamp() for text in texts]


def _read_curves(
  path: pathlib.Path, starts: Sequence[float]
) -> dict[str, list[Point]]:
  curves: dict[str, list[Point]] = {}
  if not path.exists():
    return curves
  damaged = []
  clock = _Clock(starts)
  for number, line in enumerate(metrics_file.read_lines(path), 1):
    values = metrics_file.parse_metrics(line)
    if values is None:
      if line.endswith('\n'):  # else the line is still being written, or cut
        damaged.append(number)
      continue
    step, epoch = values.pop('step'), values.pop('epoch', math.nan)
    seconds = clock.seconds(values.pop('time', 0.0))
    for name, x in values.items():
      point = Point(step, epoch, seconds, math.nan if x is None else x)
      curves.setdefault(name, []).append(point)
  if damaged:
    logging.warning(
      'warning: %s: %d damaged line(s) left out, the first is line %d',
      *(path, len(damaged), damaged[0]),
    )
  return curves


class _Clock:
  """Converts clock time to run time, without the time between starts."""

  def __init__(self, starts: Sequence[float]):
    self._starts = list(starts)
    self._offset = 0.0
    self._last: float | None = None

  def seconds(self, now: float) -> float:
    """Returns seconds since the run began; call it in order of time."""
    if self._last is None:
      self._last = self._offset = self._starts.pop(0) if self._starts else now
    while self._starts and self._starts[0] <= now:
      start = self._starts.pop(0)
      self._offset += max(0.0, start - self._last)
      self._last = max(start, self._last)
    self._last = max(now, self._last)
    return max(0.0, now - self._offset)


def setting(start: Mapping[str, Any]) -> dict[str, str]:
  """Returns versions, code, devices and data of an entry of run.json."""
  devices, git = start.get('devices') or {}, start.get('git')
  values = {
    'python': start.get('python'),
    **(start.get('packages') or {}),
    'git': git and git['commit'][:10] + (CHANGED if git['dirty'] else ''),
    'devices': devices and f'{devices.get("count")} x {devices.get("kind")}',
    'processes': devices.get('processes'),
    'data': start.get('data_fingerprint'),
  }
  return {name: str(value) for name, value in values.items() if value}


def short_names(paths: Sequence[pathlib.Path]) -> list[str]:
  """Returns the shortest unique ends of absolute paths, all different.

  Parts at the end that all paths share are left out.
  """
  parts = [path.parts for path in paths]
  while min(map(len, parts)) > 1 and len({p[-1] for p in parts}) == 1:
    parts = [p[:-1] for p in parts]
  names = parts
  for size in range(1, max(map(len, parts)) + 1):
    names = [p[-size:] for p in parts]
    if len(set(names)) == len(names):
      break
  return ['/'.join(name) for name in names]


def _is_held(path: pathlib.Path) -> bool:
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
