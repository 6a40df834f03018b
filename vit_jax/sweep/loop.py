"""The loop of a sweep: starts runs, watches them, and reports their results.

Each `sweep` process runs one loop. It takes over trials that other processes
leave unfinished, and ends when all trials have ended.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import dataclasses
import queue
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

  `jobs` runs are concurrent, with the flags of the config, and are looked at
  every `poll_s` seconds. `publish` gets all trials after each one that ends, by
  one process at a time. The exit status is 0, or 128 plus the signal's number.
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
    for trial in loop.trials:
      trial.release()
    return 128 + signals.stop


@dataclasses.dataclass
class _Loop:
  """The trials of this process."""

  study: study_lib.Study
  launcher: runs.Launcher
  flags: Sequence[str]
  jobs: int
  publish: Callable[[Sequence[study_lib.Row]], None]
  # In the order in which they were claimed.
  trials: list[trials_lib.Trial] = dataclasses.field(default_factory=list)
  # Errors of the trials that have ended.
  refusals: list[str] = dataclasses.field(default_factory=list)
  # Their values, by keys of the space.
  refused_values: dict[str, set[str]] = dataclasses.field(default_factory=dict)

  def running(self) -> int:
    return sum(len(trial.running()) for trial in self.trials)

  def watch(self, stopping: bool = False) -> None:
    """Checks the runs; reports the trials that have ended.

    It is an error if all trials were refused alike so far, with at least two
    values of each key: so would be all.
    """
    ended = [trial for trial in self.trials if trial.watch(stopping)]
    self.trials = [trial for trial in self.trials if trial not in ended]
    if ended:
      with self.study.lock:  # one process writes at a time
        self.publish(self.study.rows())
    for trial in ended:
      self.refusals.append(trial.refusal())
      for key, value in trial.point.items():
        self.refused_values.setdefault(key, set()).add(repr(value))
    if not ended or stopping:
      return
    refusal, *other_refusals = set(self.refusals)
    # Trials that share a value may be refused for that value alone.
    varied = all(len(values) > 1 for values in self.refused_values.values())
    if refusal and not other_refusals and varied:
      raise UserError(
        f'the first {len(self.refusals)} trials failed alike, and so would'
        f' all: {refusal.removeprefix("seed 0: ")}'
      )

  def start(self, signals: '_Signals') -> None:
    """Starts runs up to the number of jobs; begun trials come first."""
    while self.running() < self.jobs and not signals.stop:
      trial = next((x for x in self.trials if x.waiting()), None)
      if trial is not None:
        trial.start(self.launcher)
      elif claim := self.study.claim():
        self.trials.append(trials_lib.Trial(self.study, *claim, self.flags))
        logging.info('%s', self.trials[-1])
      else:
        return

  def stop(self) -> None:
    for trial in self.trials:
      trial.stop()

  def rows(self) -> list[study_lib.Row]:
    """Returns the state of all trials; that of ours is up to date."""
    open_trials = {trial.number: trial for trial in self.trials}
    rows = []
    for row in self.study.rows():
      if trial := open_trials.get(row.number):
        row = dataclasses.replace(row, state='running', step=trial.step())
      elif row.state == 'unfinished':
        row = dataclasses.replace(row, state='elsewhere')
      rows.append(row)
    return rows


class _Signals:
  """Records signals to stop, and ends `wait` when one arrives."""

  def __init__(self) -> None:
    self.stop = 0  # the first signal; a second one ends the process
    # Unlike an event, it may be woken while it is waited for.
    self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()

  def __enter__(self) -> '_Signals':
    # SIGCHLD, when a run ends, is ignored by default.
    numbers = (*_STOPS, signal.SIGCHLD)
    self._previous = {x: signal.signal(x, self._note) for x in numbers}
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def wait(self, seconds: float) -> None:
    """Returns after `seconds`, or when a signal arrives or a child ends."""
    with contextlib.suppress(queue.Empty):
      self._woken.get(timeout=seconds)

  def _note(self, number: int, _: object) -> None:
    if number in _STOPS:
      self.stop = self.stop or number
      for signal_number in _STOPS:
        signal.signal(signal_number, signal.SIG_DFL)
    self._woken.put(None)
