"""Reports metrics to a file, to trackers and on the terminal.

metrics.jsonl has one JSON object per line: `step` (completed updates), `epoch`
(passes over the examples so far), `time` (seconds since 1970), and scalars by
name. Infinity and NaN, which JSON does not have, are null. Trackers, such as
TensorBoard (vit_jax/runs/trackers.py), get the same scalars, with NaN, and also
the config and a few images.

When a run resumes at a step, entries after that step are removed from the file,
and TensorBoard drops them, too. A metric that was already reported at that step
is not reported again.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import json
import logging as python_logging
import math
import pathlib
import sys
import time
from typing import Any
from typing import IO

from absl import logging
import tqdm

from vit_jax.config import UserError
from vit_jax.runs import records
from vit_jax.runs import safe_io
from vit_jax.runs import trackers

# Logs only to the file: the terminal shows these messages in another form.
_FILE_ONLY = python_logging.getLogger('vit_jax.file_only')


@contextlib.contextmanager
def shown() -> Iterator[None]:
  """Shows log messages on stderr, unless a command or the caller does so.

  Commands and callers set absl's verbosity: to INFO, or to ERROR in all
  processes but the first. In a notebook it usually has its default.
  """
  logger = logging.get_absl_logger()
  is_set = logging.get_verbosity() != logging.WARNING  # absl's default
  if is_set or logger.isEnabledFor(python_logging.INFO):
    yield
    return
  before, level = logging.get_verbosity(), logger.level
  handler = python_logging.StreamHandler()
  handler.setFormatter(python_logging.Formatter('%(message)s'))
  if not logger.hasHandlers():  # else the caller's handlers show messages
    logger.addHandler(handler)
  logging.set_verbosity(logging.INFO)
  try:
    yield
  finally:
    logger.removeHandler(handler)
    logging.set_verbosity(before)
    logger.setLevel(level)  # set_verbosity changes it, too


@contextlib.contextmanager
def log_to(path: pathlib.Path) -> Iterator[None]:
  """Appends log messages to a file as well, and the error that ends the run.

  Raises:
    UserError: The file cannot be written.
  """
  with safe_io.writing(path):
    handler = _LogFile(path, encoding='utf-8', errors='backslashreplace')
  handler.setFormatter(logging.PythonFormatter())
  _FILE_ONLY.setLevel(python_logging.INFO)
  _FILE_ONLY.propagate = False
  loggers = (python_logging.getLogger(), _FILE_ONLY)
  for logger in loggers:
    logger.addHandler(handler)
  try:
    yield
  except UserError as e:
    _FILE_ONLY.error('error: %s', e)
    raise
  finally:
    for logger in loggers:
      logger.removeHandler(handler)
    handler.close()


class _LogFile(python_logging.FileHandler):
  """A log file that ignores write errors.

  If the disk is full, metrics and checkpoints report that in one line; logging
  would print a traceback for every message.
  """

  def handleError(self, record: python_logging.LogRecord) -> None:
    del record

  def close(self) -> None:
    with contextlib.suppress(OSError):
      super().close()


class Reporter:
  """Reports the metrics of a run, from any step on."""

  def __init__(
    self,
    workdir: pathlib.Path | str,
    total_steps: int,
    start_step: int = 0,
    *,
    reports_to: str = 'tensorboard',
    writes: bool = True,
  ):
    """Opens metrics.jsonl and the trackers, and cuts off later entries.

    Args:
      workdir: The work directory of the run.
      total_steps: Number of steps of the whole run.
      start_step: Number of updates that were completed before.
      reports_to: Where metrics go as well: `config.reporting`.
      writes: Whether this process reports. If not, all methods do nothing.

    Raises:
      UserError: A file cannot be written, or a tracker cannot begin.
    """
    self._writes = writes
    self._before: dict[str, tuple[int, float | None]] = {}
    if not writes:
      return
    self._total_steps = total_steps
    self._start_step = start_step
    self._path = pathlib.Path(workdir) / 'metrics.jsonl'
    # Time and step from which the remaining time is estimated.
    self._since: tuple[float, int] | None = None
    with safe_io.writing(self._path):
      self._before = cut_back(self._path, start_step)
      self._metrics: IO[str] = self._path.open('a', encoding='utf-8')
      self._trackers = trackers.begin(
        reports_to, pathlib.Path(workdir), start_step
      )
    self._bar = _progress_bar(total_steps, start_step)
    if self._bar is not None:
      logging.get_absl_logger().addFilter(self._clear_bar)

  def __enter__(self) -> 'Reporter':
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def describe(self, config: Mapping[str, Any]) -> None:
    """Writes the config to the trackers.

    Args:
      config: The value of each leaf by its dotted key.

    Raises:
      UserError: It cannot be written.
    """
    if self._writes:
      with safe_io.writing(self._path):
        for tracker in self._trackers:
          tracker.write_config(self._start_step, config)

  def show(self, step: int, name: str, png: bytes) -> None:
    """Writes an image to the trackers.

    Args:
      step: Number of completed updates.
      name: Its name, such as 'train/images'.
      png: Content of a PNG file.

    Raises:
      UserError: It cannot be written.
    """
    if self._writes:
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

    Raises:
      UserError: They cannot be written.
    """
    if not self._writes:
      return
    if step == self._start_step:
      at = {name for name, (last, _) in self._before.items() if last == step}
      scalars = {k: v for k, v in scalars.items() if k not in at}
    if not scalars:
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
        tracker.write(step, now, values)

  def before(self, name: str) -> float | None:
    """Returns the newest value of a metric when this reporter was opened.

    Args:
      name: Its name, such as 'train/loss'.

    Returns:
      The value at the start step or before; None if there is none, or if
      another process reports.
    """
    return self._before.get(name, (0, None))[1]

  def progress(self, step: int, fields: Mapping[str, float | str]) -> None:
    """Shows the progress of the run: a bar on a terminal, else a line.

    The log file has the line in both cases.

    Args:
      step: Number of completed updates.
      fields: Values to show, such as {'loss': 0.5}.
    """
    if not self._writes:
      return
    shown = {name: text(value) for name, value in fields.items()}
    line = f'step {step}/{self._total_steps}: ' + ', '.join(
      [f'{name} {value}' for name, value in shown.items()] + self._left(step)
    )
    if self._bar is None:
      logging.info('%s', line)
      return
    _FILE_ONLY.info('%s', line)
    self._bar.set_postfix(shown, refresh=False)
    self._bar.update(step - self._bar.n)

  def close(self) -> None:
    """Closes the files and ends the bar."""
    if not self._writes:
      return
    if self._bar is not None:
      logging.get_absl_logger().removeFilter(self._clear_bar)
      self._bar.close()
    # `write` has already reported write errors.
    with contextlib.suppress(OSError):
      self._metrics.close()
    for tracker in self._trackers:
      with contextlib.suppress(OSError):
        tracker.close()

  def _left(self, step: int) -> list[str]:
    """Returns the remaining time, once the speed is known."""
    now = time.perf_counter()
    if self._since is None:  # the first steps compile
      self._since = (now, step)
    start, first = self._since
    if step == first:
      return []
    seconds = (now - start) / (step - first) * (self._total_steps - step)
    return [f'{tqdm.tqdm.format_interval(seconds)} left']

  def _clear_bar(self, record: python_logging.LogRecord) -> bool:
    """Clears the bar for a message; it is drawn again below the message."""
    del record
    if self._bar is not None:
      self._bar.clear()
    return True


def cut_back(
  path: pathlib.Path, step: int
) -> dict[str, tuple[int, float | None]]:
  """Removes lines after a step, and incomplete lines, from a file.

  Args:
    path: Path of metrics.jsonl, which need not exist.
    step: The last step to keep.

  Returns:
    Step and value of the newest entry of each metric that is kept.

  Raises:
    UserError: It cannot be written.
  """
  kept: dict[str, tuple[int, float | None]] = {}
  if not path.exists():
    return kept
  with safe_io.replacing(path) as new:
    for line in safe_io.read_lines(path):
      values = records.parse_metrics(line)
      if values is None or values['step'] > step:
        continue
      new.write(line)
      kept |= {name: (values['step'], x) for name, x in values.items()}
  return kept


def _progress_bar(total_steps: int, start_step: int) -> tqdm.tqdm | None:
  if not sys.stderr.isatty():
    return None
  return tqdm.tqdm(
    total=total_steps,
    initial=start_step,
    file=sys.stderr,
    unit='step',
    dynamic_ncols=True,
  )


def text(value: float | str) -> str:
  """Formats a metric for people: '0.9833', '10,000'."""
  if isinstance(value, str):
    return value
  return f'{value:,.0f}' if 1000 <= abs(value) < 1e9 else f'{value:.4g}'
