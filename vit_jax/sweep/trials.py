"""A trial: the runs of one point, one for each seed."""

from collections.abc import Sequence
import math
import os
import pathlib
import statistics
import typing

from absl import logging

from vit_jax import config as config_lib
from vit_jax.evaluation import intervals
from vit_jax.runs import metrics_file
from vit_jax.runs import safe_io
from vit_jax.sweep import runs
from vit_jax.sweep import space as space_lib

if typing.TYPE_CHECKING:
  import optuna

  from vit_jax.sweep import study as study_lib


class Seed:
  """One run of a trial, and the metric of the trial in its metrics.jsonl."""

  def __init__(self, number: int, workdir: pathlib.Path, metric: str):
    self.number = number  # the value of `config.seed`
    self.workdir = workdir
    self.run: runs.Run | None = None  # the current process or job
    self._path = workdir / 'metrics.jsonl'
    self._metric = metric
    self._file = 0  # inode: a run that resumes writes a new file
    self._clear()
    self.read()
    self.done = self.has_ended()

  def has_ended(self) -> bool:
    """Whether the run said that it is finished."""
    return (self.workdir / 'DONE').exists()

  def _clear(self) -> None:
    self._offset = 0
    self.values: dict[int, float] = {}  # by step; nan if it was not finite
    self.step = 0  # the newest step of all metrics; 0: none
    self._names: set[str] = set()  # of all metrics

  def read(self) -> None:
    """Reads the new lines of the file."""
    try:
      file = safe_io.open_regular(self._path)
    except FileNotFoundError:
      return
    with file:
      status = os.fstat(file.fileno())
      if status.st_ino != self._file or status.st_size < self._offset:
        self._clear()
        self._file = status.st_ino
      file.seek(self._offset)
      for line in file:
        if not line.endswith(b'\n'):  # still being written
          break
        self._offset += len(line)
        entry = metrics_file.parse_metrics(line.decode(errors='replace'))
        if entry is None:
          continue
        self.step = max(self.step, entry['step'])
        self._names |= entry.keys() - {'step', 'epoch', 'time'}
        if self._metric in entry:
          value = entry[self._metric]
          self.values[entry['step']] = math.nan if value is None else value

  def result(self, sweep: space_lib.Sweep) -> float:
    """Returns the value of a run that is done, as `sweep.pick` says, or nan."""
    self.read()
    series = [self.values[step] for step in sorted(self.values)]
    if not series:
      raise config_lib.UserError(
        f'{self._path} has no {self._metric}: it has'
        f' {config_lib.join_first(sorted(self._names), 20)}'
      )
    if sweep.pick == 'best':
      best = max if sweep.direction == 'maximize' else min
      return best((x for x in series if math.isfinite(x)), default=math.nan)
    return series[-1]

  def started(self) -> bool:
    """Whether its values are part of the trial's."""
    return self.done or self.run is not None


class Trial:
  """A trial of this process, with its runs."""

  def __init__(
    self,
    study: 'study_lib.Study',
    trial: 'optuna.trial.Trial',
    lock: safe_io.Lock,
    config_flags: Sequence[str],
  ):
    self.number = trial.number  # from 0
    self.point = study.point(trial.params)  # values of the keys of the space
    self.error = ''  # why it failed
    self._study, self._trial, self._lock = study, trial, lock
    # Steps whose values Optuna knows.
    self._reported = {*study.trials()[trial.number].intermediate_values}
    # Perhaps it was to be pruned when its process was killed.
    self._pruned = bool(trial.user_attrs.get('pruned'))
    self._flags = [*config_flags, *space_lib.point_flags(self.point)]
    path, metric = study.folder(trial.number), study.sweep.metric
    self._seeds = [
      Seed(seed, path / f'seed{seed}', metric) for seed in study.sweep.seeds
    ]

  def __str__(self) -> str:
    begun = any(seed.step or seed.done for seed in self._seeds)
    continues = ' goes on' if begun else ''
    point = space_lib.show(self.point)
    return f'trial {self.number}{continues}: {point}'

  def refusal(self) -> str:
    """Returns why no run made its folder, as of a wrong config; '': one did."""
    begun = any(seed.workdir.exists() for seed in self._seeds)
    return '' if begun else self.error

  def step(self) -> int:
    """Returns the step of the current runs, or of all if none is running."""
    return max(seed.step for seed in self.running() or self._seeds)

  def running(self) -> list[Seed]:
    """Returns the current runs."""
    return [seed for seed in self._seeds if seed.run is not None]

  def waiting(self) -> Seed | None:
    """Returns the next run to start, or None."""
    if self.error or self._pruned:
      return None
    return next((seed for seed in self._seeds if not seed.started()), None)

  def start(self, launcher: runs.Launcher) -> None:
    """Starts the next run."""
    seed = self.waiting()
    assert seed is not None
    flags = [*self._flags, f'--config.seed={seed.number}']
    seed.run = launcher.start(flags, seed.workdir)

  def stop(self) -> None:
    """Asks all runs to save and end."""
    for seed in self.running():
      assert seed.run is not None
      seed.run.stop()

  def watch(self, stopping: bool = False) -> bool:
    """Checks the runs; returns whether the trial has ended.

    Runs that are `stopping` were asked to end, to be resumed another time.
    """
    for seed in self.running():
      assert seed.run is not None
      ended = seed.run.poll()
      seed.read()
      if ended is None:
        continue
      seed.run, seed.done = None, seed.has_ended()
      is_refused = ended.status is not None and not seed.done
      if is_refused and not (stopping or self._pruned or self.error):
        error = ended.error or f'it ended with status {ended.status}, undone'
        self.error = f'seed {seed.number}: {error}'
    # The steps that all started runs have reached.
    started = [seed.values for seed in self._seeds if seed.started()]
    steps = set.intersection(*map(set, started)) if started else set()
    for step in sorted(steps - self._reported):
      if self.error or self._pruned:
        break
      value = statistics.fmean(values[step] for values in started)
      self._reported.add(step)
      self._trial.report(value, step)
      self._pruned = self._trial.should_prune()
      if self._pruned:
        self._trial.set_user_attr('pruned', True)
    if all(seed.done for seed in self._seeds):
      self._finish('complete')
      return True
    if self.error or self._pruned:
      self.stop()
      if not self.running():
        self._finish('failed' if self.error else 'pruned')
        return True
    return False

  def release(self) -> None:
    """Lets other processes go on with it."""
    self._lock.release()

  def _finish(self, state: str) -> None:
    """Records that it is 'complete', 'pruned' or 'failed'."""
    results, sweep, value = {}, self._study.sweep, None
    try:
      done = [seed for seed in self._seeds if seed.done]
      results = {seed.number: seed.result(sweep) for seed in done}
    except config_lib.UserError as e:
      state, self.error = 'failed', str(e)
    if state == 'complete':
      value, _ = intervals.mean_interval(list(results.values()))
      if not math.isfinite(value):
        state, value = 'failed', None
        self.error = f'{sweep.metric} is not finite'
    stored = {str(number): x for number, x in results.items()}
    self._trial.set_user_attr('seeds', stored)
    if self.error:
      self._trial.set_user_attr('error', self.error)
    self._study.end(self._trial, value, state)
    self.release()
    name, seeds = f'trial {self.number}', ''
    if state == 'failed':
      logging.info('%s failed: %s', name, self.error)
    elif state == 'pruned':
      if results:
        seeds = f', after {len(results)} of {len(self._seeds)} seeds'
      step = max(self._reported)
      logging.info('%s pruned at step %d%s', name, step, seeds)
    else:
      mean, half = intervals.mean_interval(list(results.values()))
      spread = f' ± {half:.4g}' if math.isfinite(half) else ''
      if len(results) > 1:
        seeds = f' ({len(results)} seeds)'
      logging.info('%s done: %.5g%s%s', name, mean, spread, seeds)
