"""The loop of a sweep: starts runs, watches them, and says what comes of them.

Each `sweep` process has one. It ends when all trials have ended, those of other
processes too: what these leave behind, it takes over.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses

from absl import logging

from vit_jax.sweep import board as board_lib
from vit_jax.sweep import runs
from vit_jax.sweep import signals as signals_lib
from vit_jax.sweep import study as study_lib
from vit_jax.sweep import trials as trials_lib


def run(
  study: study_lib.Study,
  launcher: runs.Launcher,
  config_flags: Sequence[str],
  jobs: int = 1,
  poll_s: float = 1.0,
  publish: Callable[[Sequence[study_lib.Row]], None] = lambda rows: None,
) -> int:
  """Runs trials until all have ended, or a signal comes.

  Args:
    study: Open.
    launcher: Starts the runs.
    config_flags: Flags of all runs: `--config=...` and `--config.KEY=VALUE`.
    jobs: Runs at once.
    poll_s: Seconds between two looks at the runs.
    publish: Called with all trials after each that ends, by one process at a
      time.

  Returns:
    The exit status: 0, or 128 plus the number of the signal.
  """
  loop = _Loop(study, launcher, config_flags, jobs, publish)
  with signals_lib.Signals() as signals, board_lib.Board(study.sweep) as board:
    try:
      while not signals.stop:
        loop.watch()
        loop.start(signals)
        if not loop.trials and not study.unfinished():
          return 0
        board.show(loop.rows())
        signals.wait(poll_s)
    except BaseException:  # the disk is full, say: nobody would watch the runs
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
  """The trials that are ours.

  Attributes:
    trials: In the order in which they became ours.
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

  def running(self) -> int:
    """Returns the number of runs that go on."""
    return sum(len(trial.running()) for trial in self.trials)

  def watch(self, stopping: bool = False) -> None:
    """Looks at the runs; tells of the trials that have ended."""
    ended = [trial for trial in self.trials if trial.watch(stopping)]
    self.trials = [trial for trial in self.trials if trial not in ended]
    if ended:
      with self._study.lock:  # one process writes at a time
        self._publish(self._study.rows())

  def start(self, signals: signals_lib.Signals) -> None:
    """Starts as many runs as are to go on at once."""
    while self.running() < self._jobs and not signals.stop:
      found = self._next()
      if found is None:
        return
      trial, seed = found
      trial.start(seed, self._launcher)

  def _next(self) -> tuple[trials_lib.Trial, trials_lib.Seed] | None:
    """Returns the next run: of the trials that have begun, if there is one."""
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
    """Leaves what is unfinished to whoever takes it."""
    for trial in self.trials:
      trial.claim.lock.release()
    self.trials = []

  def rows(self) -> list[study_lib.Row]:
    """Returns what is known of all trials; of ours, the latest."""
    ours = {trial.claim.number: trial for trial in self.trials}
    rows = []
    for row in self._study.rows():
      if trial := ours.get(row.number):
        row = dataclasses.replace(row, state='running', step=trial.step())
      elif row.state == 'unfinished':
        row = dataclasses.replace(row, state='elsewhere')
      rows.append(row)
    return rows
