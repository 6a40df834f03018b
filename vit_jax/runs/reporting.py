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
from collections.abc import Sequence
import contextlib
import json
import logging as python_logging
import math
import pathlib
import time
from typing import Any
from typing import IO

from absl import logging

from vit_jax.config import number
from vit_jax.config import UserError
from vit_jax.runs import records
from vit_jax.runs import safe_io
from vit_jax.runs import terminal
from vit_jax.runs import trackers

# Logs only to the file: a terminal shows these messages in another form.
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
  root = python_logging.getLogger()
  verbosity, level = logging.get_verbosity(), logger.level
  handlers = list(root.handlers)
  if all(map(_is_absls, handlers)):  # else the caller's handlers show messages
    handler = python_logging.StreamHandler()
    handler.setFormatter(python_logging.Formatter('%(message)s'))
    root.handlers[:] = [handler]
  logging.set_verbosity(logging.INFO)
  try:
    yield
  finally:
    root.handlers[:] = handlers
    logging.set_verbosity(verbosity)
    logger.setLevel(level)  # set_verbosity changes it, too


def _is_absls(handler: python_logging.Handler) -> bool:
  """Whether a handler of the root logger may be absl's, not the caller's.

  absl calls `logging.basicConfig()` at the first message, such as one of Orbax
  when it is imported. Lines of that handler begin with 'INFO:absl:'.
  """
  if type(handler) is not python_logging.StreamHandler:
    return False
  record = python_logging.makeLogRecord({'msg': 'text'})
  basic = python_logging.Formatter(python_logging.BASIC_FORMAT)
  untouched = python_logging.getLogger().level == python_logging.WARNING
  return untouched and handler.format(record) == basic.format(record)


def show_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
  """Shows named facts: in a frame on a terminal, else as lines of the log.

  The log file has the lines in both cases.
  """
  lines = '\n'.join(f'{name}: {value}' for name, value in facts)
  shows = logging.get_absl_logger().isEnabledFor(python_logging.INFO)
  if shows and terminal.can_draw():
    _FILE_ONLY.info('%s', lines)
    terminal.panel(title, facts)
  else:
    logging.info('%s', lines)


def show_details(text: str, verbose: bool) -> None:
  """Writes a text to the log file, and where `verbose` also to stderr."""
  (logging if verbose else _FILE_ONLY).info('%s', text)


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
    self._pace = terminal.Pace()
    with safe_io.writing(self._path):
      self._before = cut_back(self._path, start_step)
      self._metrics: IO[str] = self._path.open('a', encoding='utf-8')
      self._trackers = trackers.begin(
        reports_to, pathlib.Path(workdir), start_step
      )
    self._screen: terminal.Screen | None = None
    if terminal.can_draw():
      lines = safe_io.read_lines(self._path)
      earlier = filter(None, map(records.parse_metrics, lines))
      self._screen = terminal.Screen(total_steps, directions or {}, earlier)

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

    Raises:
      UserError: It cannot be written.
    """
    if self._writes:
      defaults = defaults or {}
      changed = {
        key: value
        for key, value in config.items()
        if key not in defaults or defaults[key] != value
      }
      starts = safe_io.read_json(self._path.with_name('run.json')) or {}
      record = starts.get('runs', [{}])[-1]
      start = records.Start(self._start_step, config, changed, record)
      with safe_io.writing(self._path):
        for tracker in self._trackers:
          tracker.write_start(start)

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
        tracker.write(step, now, {'epoch': epoch, **values})

  def before(self, name: str) -> float | None:
    """Returns the newest value of a metric when this reporter was opened.

    Args:
      name: Its name, such as 'train/loss'.

    Returns:
      The value at the start step or before; None if there is none, or if
      another process reports.
    """
    return self._before.get(name, (0, None))[1]

  def advance(self, step: int) -> None:
    """Moves the bar, if there is a terminal.

    Args:
      step: Number of completed updates.
    """
    if self._writes and self._screen is not None:
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
    shown = ', '.join(f'{k} {number(x)}' for k, x in fields.items())
    left = self._pace.left(step, self._total_steps)
    line = f'step {step}/{self._total_steps}: {shown}'
    if left is not None:
      line += f', {terminal.duration(left)} left'
    if self._screen is None:
      logging.info('%s', line)
      return
    _FILE_ONLY.info('%s', line)
    self._screen.progress(step, shown, next_evaluation or self._total_steps)

  def evaluated(
    self, step: int, epoch: float, results: Mapping[str, float]
  ) -> None:
    """Reports the results of evaluations, and shows them.

    Args:
      step: Number of completed updates.
      epoch: Passes over the examples so far.
      results: Values by name, such as 'val/accuracy'.

    Raises:
      UserError: They cannot be written.
    """
    self.write(step, epoch, results)
    line = f'evaluated at step {step}: {results_text(results)}'
    if not self._writes or self._screen is None:
      logging.info('%s', line)
      return
    _FILE_ONLY.info('%s', line)
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


def results_text(
  results: Mapping[str, float | None], most: int | None = None
) -> str:
  """Returns results as text for people, without the metrics of classes.

  Args:
    results: Values by name, such as 'val/accuracy'; None is not finite.
    most: Number of metrics to show; None: all.
  """
  names = [name for name in results if name.count('/') < 2][:most]
  shown = [
    f'{name} {"nan" if (x := results[name]) is None else number(x)}'
    for name in names
  ]
  if len(names) < len(results):
    shown.append(f'{len(results) - len(names)} more in metrics.jsonl')
  return ', '.join(shown) or 'nothing was evaluated'
