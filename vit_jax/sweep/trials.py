"""A trial: the runs of one point, one for each seed."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import os
import pathlib
import statistics
import typing

from absl import logging

from vit_jax import config as config_lib
from vit_jax.evaluation import intervals
from vit_jax.runs import reporting
from vit_jax.runs import safe_io
from vit_jax.sweep import runs
from vit_jax.sweep import space as space_lib

if typing.TYPE_CHECKING:
  from vit_jax.sweep import study as study_lib


class Metrics:
  """The values of one metric in a growing metrics.jsonl.

  Attributes:
    values: Value by step; nan if it was not finite.
    step: Newest step of all metrics; 0: none.
    names: Names of all metrics.
  """

  def __init__(self, path: pathlib.Path, name: str):
    self._path = path
    self._name = name
    self._file = 0  # inode: a run that resumes writes a new file
    self._clear()

  def _clear(self) -> None:
    self._offset = 0
    self.values: dict[int, float] = {}
    self.step = 0
    self.names: set[str] = set()

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
        self._take(line.decode(errors='replace'))

  def _take(self, line: str) -> None:
    entry = reporting.parse_metrics(line)
    if entry is None:
      return
    self.step = max(self.step, entry['step'])
    self.names |= entry.keys() - {'step', 'epoch', 'time'}
    if self._name in entry:
      value = entry[self._name]
      self.values[entry['step']] = math.nan if value is None else value

  def result(self, sweep: space_lib.Sweep) -> float:
    """Returns the value of a run that is done, as `sweep.pick` says.

    Raises:
      UserError: There is none, or it is not finite.
    """
    self.read()
    series = [self.values[step] for step in sorted(self.values)]
    if not series:
      raise config_lib.UserError(
        f'{self._path} has no {self._name}: it has'
        f' {config_lib.join_first(sorted(self.names), 20)}'
      )
    if sweep.pick == 'best':
      best = max if sweep.direction == 'maximize' else min
      return best((x for x in series if math.isfinite(x)), default=math.nan)
    return series[-1]


@dataclasses.dataclass
class Seed:
  """One run of a trial.

  Attributes:
    number: The value of `config.seed`.
    workdir: The work directory of the run.
    metrics: The metrics of the run.
    run: The current process or job; None if it is not running.
    done: Whether it is finished.
  """

  number: int
  workdir: pathlib.Path
  metrics: Metrics
  run: runs.Run | None = None
  done: bool = False

  def started(self) -> bool:
    """Whether its values are part of the trial's."""
    return self.done or self.run is not None


class Trial:
  """A trial of this process, with its runs.

  Attributes:
    claim: Claim of the trial.
    seeds: Its runs.
    error: Why it failed, or ''.
  """

  def __init__(
    self,
    claim: 'study_lib.Claim',
    study: 'study_lib.Study',
    config_flags: Sequence[str],
  ):
    """Reads the state of its runs.

    Args:
      claim: The claim of the trial.
      study: The study, which receives the values.
      config_flags: The flags of all runs.
    """
    self.claim = claim
    self.error = ''
    self._study = study
    self._flags = [*config_flags, *space_lib.point_flags(claim.point)]
    self.seeds = []
    for number in study.sweep.seeds:
      workdir = claim.path / f'seed{number}'
      metrics = Metrics(workdir / 'metrics.jsonl', study.sweep.metric)
      self.seeds.append(Seed(number, workdir, metrics))
      metrics.read()
      self.seeds[-1].done = (workdir / 'DONE').exists()

  def __str__(self) -> str:
    begun = any(seed.metrics.step or seed.done for seed in self.seeds)
    continues = ' goes on' if begun else ''
    point = space_lib.show(self.claim.point)
    return f'trial {self.claim.number}{continues}: {point}'

  def refusal(self) -> str:
    """Returns why no run made its folder, as of a wrong config; '': one did."""
    begun = any(seed.workdir.exists() for seed in self.seeds)
    return '' if begun else self.error

  def step(self) -> int:
    """Returns the step of the current runs, or of all if none is running."""
    return max(seed.metrics.step for seed in self.running() or self.seeds)

  def running(self) -> list[Seed]:
    """Returns the current runs."""
    return [seed for seed in self.seeds if seed.run is not None]

  def waiting(self) -> Seed | None:
    """Returns the next run to start, or None."""
    if self.error or self.claim.pruned:
      return None
    return next((seed for seed in self.seeds if not seed.started()), None)

  def start(self, seed: Seed, launcher: runs.Launcher) -> None:
    """Starts a run."""
    flags = [*self._flags, f'--config.seed={seed.number}']
    seed.run = launcher.start(flags, seed.workdir)

  def stop(self) -> None:
    """Asks all runs to save and end."""
    for seed in self.running():
      assert seed.run is not None
      seed.run.stop()

  def watch(self, stopping: bool = False) -> bool:
    """Checks the runs; returns whether the trial has ended.

    Args:
      stopping: Whether its runs were asked to end, to be resumed another time.
    """
    for seed in self.running():
      assert seed.run is not None
      ended = seed.run.poll()
      seed.metrics.read()
      if ended is not None:
        seed.run = None
        self._note(seed, ended, stopping)
    self._report()
    if all(seed.done for seed in self.seeds):
      self._finish('complete')
      return True
    if self.error or self.claim.pruned:
      self.stop()
      if not self.running():
        self._finish('failed' if self.error else 'pruned')
        return True
    return False

  def _note(self, seed: Seed, ended: runs.Ended, stopping: bool) -> None:
    """Records how a run ended."""
    seed.done = (seed.workdir / 'DONE').exists()
    if seed.done or stopping or self.claim.pruned or ended.status is None:
      return
    if not self.error:
      error = ended.error or f'it ended with status {ended.status}, undone'
      self.error = f'seed {seed.number}: {error}'

  def _report(self) -> None:
    """Reports the steps that all started runs have reached to the study."""
    started = [seed.metrics.values for seed in self.seeds if seed.started()]
    if not started or self.error or self.claim.pruned:
      return
    for step in sorted(set.intersection(*map(set, started))):
      if step in self.claim.reported:
        continue
      value = statistics.fmean(values[step] for values in started)
      if self._study.report(self.claim, step, value):
        return

  def _finish(self, state: str) -> None:
    results, sweep = {}, self._study.sweep
    try:
      results = {
        s.number: s.metrics.result(sweep) for s in self.seeds if s.done
      }
    except config_lib.UserError as e:
      state, self.error = 'failed', str(e)
    value = None
    if state == 'complete':
      value, _ = intervals.mean_interval(list(results.values()))
      if not math.isfinite(value):
        state = 'failed'
        self.error = f'{sweep.metric} is not finite'
        value = None
    self._study.finish(self.claim, state, results, value, self.error)
    logging.info('%s', _ending(self, state, results))


def _ending(trial: Trial, state: str, results: Mapping[int, float]) -> str:
  """Returns a line of text about how a trial ended."""
  name = f'trial {trial.claim.number}'
  if state == 'failed':
    return f'{name} failed: {trial.error}'
  if state == 'pruned':
    seeds = f', after {len(results)} of {len(trial.seeds)} seeds'
    step = max(trial.claim.reported)
    return f'{name} pruned at step {step}{seeds if results else ""}'
  mean, half = intervals.mean_interval(list(results.values()))
  spread = f' ± {half:.4g}' if math.isfinite(half) else ''
  seeds = f' ({len(results)} seeds)' if len(results) > 1 else ''
  return f'{name} done: {mean:.5g}{spread}{seeds}'
