"""Reports metrics to a file, to trackers and on the terminal.

metrics.jsonl has one JSON object per line: `step` (completed updates), `epoch`
(passes over the examples so far), `time` (seconds since 1970), and scalars by
name. Infinity and NaN, which JSON does not have, are null. Trackers, such as
TensorBoard (vit_jax/runs/events.py), get the same scalars, with NaN, and also
the config and a few images.

When a run resumes at a step, entries after that step are removed from the file,
and TensorBoard drops them, too. A metric that was already reported at that step
is not reported again.
"""

from collections.abc import Mapping
import contextlib
import dataclasses
import json
import math
import pathlib
import re
import time
from typing import Any
from typing import IO
from typing import Protocol
from typing import TYPE_CHECKING

from absl import logging
import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import number
from vit_jax.config import UserError
from vit_jax.runs import logs
from vit_jax.runs import safe_io

if TYPE_CHECKING:
  from vit_jax.runs import terminal

# Where metrics go beside metrics.jsonl: `config.reporting` names them.
_TRACKERS = {
  'tensorboard': 'vit_jax.runs.events:Events',
  'wandb': 'vit_jax.runs.trackers:Wandb',
  'mlflow': 'vit_jax.runs.trackers:Mlflow',
}
# Metrics that measure the machine; they always differ between runs.
_TIMED = re.compile(
  r'train/(\w*seconds\w*|images_per_second|data_wait|goodput|checkpoint_stall'
  r'|mfu)'
)


@dataclasses.dataclass(frozen=True)
class Start:
  """A start of a run, as trackers get it.

  Attributes:
    step: Completed updates.
    config: The value of each leaf by its dotted key.
    changed: The leaves that differ from the defaults.
    record: The entry of run.json: command, versions, devices; {}: not known.
  """

  step: int
  config: Mapping[str, Any]
  changed: Mapping[str, Any]
  record: Mapping[str, Any]


class Tracker(Protocol):
  """Takes the metrics of a run."""

  def write(self, step: int, now: float, scalars: Mapping[str, float]) -> None:
    """Takes scalars by name, and the seconds since 1970."""

  def write_start(self, start: Start) -> None:
    """Takes the config and the entry of run.json of a start."""

  def write_image(self, step: int, name: str, png: bytes) -> None:
    """Takes the content of a PNG file."""

  def close(self) -> None:
    """Ends the record; a later run may go on with it."""


def check_trackers(config: ml_collections.ConfigDict) -> None:
  """Checks that `config.reporting` names what is known and installed."""
  setting = f'config.reporting={config.reporting!r}'
  for name in _tracker_names(config.reporting):
    if name not in _TRACKERS:
      raise UserError(
        f'{setting}: {name!r} is not known: choose of {", ".join(_TRACKERS)},'
        ' with commas between'
      )
    if name != 'tensorboard':
      config_lib.check_package(setting, name, name)


def _tracker_names(reporting: str) -> list[str]:
  return [name.strip() for name in reporting.split(',') if name.strip()]


def duration(seconds: float) -> str:
  """Returns a time as '01:30', or '2:01:30'."""
  minutes, seconds_left = divmod(int(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  short = f'{minutes:02d}:{seconds_left:02d}'
  return f'{hours}:{short}' if hours else short


class Pace:
  """Estimates the remaining time from the speed since the first call."""

  def __init__(self) -> None:
    self._start: tuple[float, float] | None = None  # time, and what was done

  def left(self, done: float, total: float) -> float | None:
    """Returns seconds until `total`; None: the speed is not known yet."""
    now = time.perf_counter()
    if self._start is None:
      self._start = now, done
    begin, first = self._start
    if done <= first:
      return None
    return (now - begin) / (done - first) * (total - done)


class Reporter:
  """Reports the metrics of a run, from any step on.

  A UserError says which file cannot be written, or which tracker cannot begin.
  """

  def __init__(
    self,
    workdir: pathlib.Path | str,
    total_steps: int,
    start_step: int = 0,
    *,
    reports_to: str = 'tensorboard',
    directions: Mapping[str, str] | None = None,
    writes: bool = True,
  ):
    """Opens metrics.jsonl and the trackers, and cuts off later entries.

    Args:
      workdir: The work directory of the run.
      total_steps: Number of steps of the whole run.
      start_step: Number of updates that were completed before.
      reports_to: Where metrics go as well: `config.reporting`.
      directions: The better direction, 'max' or 'min', of metrics by name.
      writes: Whether this process reports. If not, all methods do nothing.
    """
    self._writes = writes
    self._before: dict[str, tuple[int, float | None]] = {}
    self._trackers: list[Tracker] = []
    self._screen: terminal.Screen | None = None
    self._total_steps = total_steps
    self._start_step = start_step
    self._path = pathlib.Path(workdir) / 'metrics.jsonl'
    self._pace = Pace()
    if not writes:
      return
    with safe_io.writing(self._path):
      if self._path.exists():
        cut_back = config_lib.wing('vit_jax.runs.metrics_file:cut_back')
        self._before = cut_back(self._path, start_step)
      self._metrics: IO[str] = self._path.open('a', encoding='utf-8')
      for name in _tracker_names(reports_to):
        begin = config_lib.wing(_TRACKERS[name])
        self._trackers.append(begin(self._path.parent, start_step))
    if logs.can_draw():
      earlier = config_lib.wing('vit_jax.runs.metrics_file:read')(self._path)
      make = config_lib.wing('vit_jax.runs.terminal:Screen')
      self._screen = make(total_steps, directions or {}, earlier)

  def __enter__(self) -> 'Reporter':
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def describe(
    self, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
  ) -> None:
    """Writes the config, and the newest entry of run.json, to the trackers.

    Args:
      config: The value of each leaf by its dotted key.
      defaults: The same of the default config; None: all keys are changed.
    """
    if self._writes:
      unset = object()
      changed = {
        key: value
        for key, value in config.items()
        if (defaults or {}).get(key, unset) != value
      }
      starts = safe_io.read_json(self._path.with_name('run.json')) or {}
      record = starts.get('runs', [{}])[-1]
      start = Start(self._start_step, config, changed, record)
      with safe_io.writing(self._path):
        for tracker in self._trackers:
          tracker.write_start(start)

  def show(self, step: int, name: str, png: bytes) -> None:
    """Writes an image, as 'train/images', from a PNG file to the trackers."""
    with safe_io.writing(self._path):
      for tracker in self._trackers:
        tracker.write_image(step, name, png)

  def write(
    self, step: int, epoch: float, scalars: Mapping[str, float]
  ) -> None:
    """Reports the metrics of a step, and flushes them in case of a kill.

    Args:
      step: Number of completed updates.
      epoch: Passes over the examples so far.
      scalars: Values by name, such as 'train/loss'.
    """
    if step == self._start_step:
      at = {name for name, (last, _) in self._before.items() if last == step}
      scalars = {k: v for k, v in scalars.items() if k not in at}
    if not scalars or not self._writes:
      return
    now = time.time()
    values = {name: float(value) for name, value in scalars.items()}
    line: dict[str, float | None] = {'step': step, 'epoch': epoch, 'time': now}
    for name, value in values.items():
      line[name] = value if math.isfinite(value) else None
    with safe_io.writing(self._path):
      self._metrics.write(json.dumps(line, allow_nan=False) + '\n')
      self._metrics.flush()
      for tracker in self._trackers:
        tracker.write(step, now, {'epoch': epoch, **values})

  def before(self, name: str) -> float | None:
    """Returns the newest value of a metric when this reporter was opened.

    It is of the start step or before; None if there is none, or if another
    process reports.
    """
    return self._before.get(name, (0, None))[1]

  def advance(self, step: int) -> None:
    """Moves the bar, if there is a terminal."""
    if self._screen is not None:
      self._screen.advance(step)

  def progress(
    self,
    step: int,
    fields: Mapping[str, float | str],
    next_evaluation: int | None = None,
  ) -> None:
    """Shows the metrics of a step: at a bar on a terminal, else as a line.

    The log file has the line in both cases.

    Args:
      step: Number of completed updates.
      fields: Values to show, such as {'loss': 0.5}.
      next_evaluation: Its step; None: at the end.
    """
    if not self._writes:
      return
    text = ', '.join(f'{k} {number(x)}' for k, x in fields.items())
    left = self._pace.left(step, self._total_steps)
    line = f'step {step}/{self._total_steps}: {text}'
    if left is not None:
      line += f', {duration(left)} left'
    if self._screen is None:
      logging.info('%s', line)
      return
    logs.FILE_ONLY.info('%s', line)
    self._screen.progress(step, text, next_evaluation or self._total_steps)

  def evaluated(
    self, step: int, epoch: float, results: Mapping[str, float]
  ) -> None:
    """Reports the results of evaluations, by name, and shows them."""
    self.write(step, epoch, results)
    line = f'evaluated at step {step}: {results_text(results)}'
    if self._screen is None:
      logging.info('%s', line)
      return
    logs.FILE_ONLY.info('%s', line)
    self._screen.evaluated(step, epoch, results)

  def close(self) -> None:
    """Closes the files and ends the bar."""
    if not self._writes:
      return
    if self._screen is not None:
      self._screen.close()
    # `write` has already reported write errors.
    with contextlib.suppress(OSError):
      self._metrics.close()
    for tracker in self._trackers:
      with contextlib.suppress(OSError):
        tracker.close()


def results_text(
  results: Mapping[str, float | None], most: int | None = None
) -> str:
  """Returns results as text for people, without the metrics of classes.

  Args:
    results: Values by name, such as 'val/accuracy'; None is not finite.
    most: Number of metrics to show; None: all.
  """
  names = [name for name in results if name.count('/') < 2][:most]
  texts = [
    f'{name} {"nan" if (x := results[name]) is None else number(x)}'
    for name in names
  ]
  if len(names) < len(results):
    texts.append(f'{len(results) - len(names)} more in metrics.jsonl')
  return ', '.join(texts) or 'nothing was evaluated'


def is_timed(name: str) -> bool:
  """Whether a metric measures the machine, not the model."""
  return bool(_TIMED.fullmatch(name))
