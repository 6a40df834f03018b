"""The loop of a sweep: starts runs, watches them, and reports their results.

Each `sweep` process runs one loop. It takes over trials that other processes
leave unfinished, and ends when all trials have ended.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import os
import select
import signal

from absl import logging

from vit_jax.config import UserError
from vit_jax.sweep import board as board_lib
from vit_jax.sweep import runs
from vit_jax.sweep import study as study_lib
from vit_jax.sweep import trials as trials_lib

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
  study: study_lib.Study,
  launcher: runs.Launcher,
  config_flags: Sequence[str],
  jobs: int = 1,
  poll_s: float = 1.0,
  publish: Callable[[Sequence[study_lib.Row]], None] = lambda rows: None,
) -> int:
  """Runs trials until all have ended, or a signal arrives.

  Args:
    study: The open study.
    launcher: Starts the runs.
    config_flags: Flags of all runs: `--config=...` and `--config.KEY=VALUE`.
    jobs: Number of concurrent runs.
    poll_s: Seconds between two checks of the runs.
    publish: Called with all trials after each one that ends, by one process at
      a time.

  Returns:
    The exit status: 0, or 128 plus the number of the signal.
  """
  loop = _Loop(study, launcher, config_flags, jobs, publish)
  with _Signals() as signals, board_lib.Board(study.sweep) as board:
    try:
      while not signals.stop:
        loop.watch()
        loop.start(signals)
        if not loop.trials and not study.unfinished():
          return 0
        board.show(loop.rows())
        signals.wait(poll_s)
    except BaseException:  # such as a full disk: leave no run unwatched
      loop.stop()
      raise
    logging.info('stopping: %d run(s) save and end', loop.running())
    while loop.running():
      loop.stop()
      signals.wait(poll_s)
      loop.watch(stopping=True)
    loop.leave()
    return 128 + signals.stop


class _Loop:
  """The trials of this process.

  Attributes:
    trials: Trials in the order in which they were claimed.
  """

  def __init__(
    self,
    study: study_lib.Study,
    launcher: runs.Launcher,
    config_flags: Sequence[str],
    jobs: int,
    publish: Callable[[Sequence[study_lib.Row]], None],
  ):
    self.trials: list[trials_lib.Trial] = []
    self._study = study
    self._launcher = launcher
    self._flags = config_flags
    self._jobs = jobs
    self._publish = publish
    self._refusals: list[str] = []  # errors of the trials that have ended
    self._refused_values: dict[str, set[str]] = {}  # by keys of the space

  def running(self) -> int:
    """Returns the number of current runs."""
    return sum(len(trial.running()) for trial in self.trials)

  def watch(self, stopping: bool = False) -> None:
    """Checks the runs; reports the trials that have ended.

    Raises:
      UserError: All trials were refused alike so far, with at least two values
        of each key: so would be all.
    """
    ended = [trial for trial in self.trials if trial.watch(stopping)]
    self.trials = [trial for trial in self.trials if trial not in ended]
    if ended:
      with self._study.lock:  # one process writes at a time
        self._publish(self._study.rows())
    for trial in ended:
      self._refusals.append(trial.refusal())
      for key, value in trial.claim.point.items():
        self._refused_values.setdefault(key, set()).add(repr(value))
    if ended and not stopping:
      self._check_refusals()

  def _check_refusals(self) -> None:
    refusal, *other_refusals = set(self._refusals)
    # Trials that share a value may be refused for that value alone.
    varied = all(len(values) > 1 for values in self._refused_values.values())
    if refusal and not other_refusals and varied:
      raise UserError(
        f'the first {len(self._refusals)} trials failed alike, and so would'
        f' all: {refusal.removeprefix("seed 0: ")}'
      )

  def start(self, signals: '_Signals') -> None:
    """Starts runs up to the number of concurrent jobs."""
    while self.running() < self._jobs and not signals.stop:
      assignment = self._next()
      if assignment is None:
        return
      trial, seed = assignment
      trial.start(seed, self._launcher)

  def _next(self) -> tuple[trials_lib.Trial, trials_lib.Seed] | None:
    """Returns the next run; trials that have begun come first."""
    for trial in self.trials:
      if seed := trial.waiting():
        return trial, seed
    while claim := self._study.claim():
      trial = trials_lib.Trial(claim, self._study, self._flags)
      self.trials.append(trial)
      logging.info('%s', trial)
      if seed := trial.waiting():
        return trial, seed
    return None

  def stop(self) -> None:
    """Asks all runs to save and end."""
    for trial in self.trials:
      trial.stop()

  def leave(self) -> None:
    """Releases unfinished trials for other processes."""
    for trial in self.trials:
      trial.claim.lock.release()
    self.trials = []

  def rows(self) -> list[study_lib.Row]:
    """Returns the state of all trials; that of ours is up to date."""
    open_trials = {trial.claim.number: trial for trial in self.trials}
    rows = []
    for row in self._study.rows():
      if trial := open_trials.get(row.number):
        row = dataclasses.replace(row, state='running', step=trial.step())
      elif row.state == 'unfinished':
        row = dataclasses.replace(row, state='elsewhere')
      rows.append(row)
    return rows


class _Signals:
  """Records signals to stop, and ends `wait` when one arrives.

  Attributes:
    stop: Number of the first signal, or 0. A second one ends the process.
  """

  def __init__(self) -> None:
    self.stop = 0

  def __enter__(self) -> '_Signals':
    self._read, self._write = os.pipe()
    os.set_blocking(self._read, False)
    os.set_blocking(self._write, False)
    self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
    self._previous = {x: signal.signal(x, self._note) for x in _STOPS}
    # A handler is needed to be woken when a child ends; SIGCHLD is ignored by
    # default.
    self._previous[signal.SIGCHLD] = signal.signal(
      signal.SIGCHLD, lambda *_: None
    )
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)
    signal.set_wakeup_fd(self._wakeup)
    os.close(self._read)
    os.close(self._write)

  def wait(self, seconds: float) -> None:
    """Returns after `seconds`, or when a signal arrives or a child ends."""
    select.select([self._read], [], [], seconds)
    try:
      os.read(self._read, 4096)
    except BlockingIOError:  # no signal
      pass

  def _note(self, number: int, _: object) -> None:
    self.stop = self.stop or number
    for signal_number in _STOPS:
      signal.signal(signal_number, signal.SIG_DFL)
