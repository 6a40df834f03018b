"""An Optuna study in a journal that several processes share.

While a process runs a trial, it holds the trial's lock. A trial that Optuna
lists as running, but whose lock is free, was left behind by a killed process;
the next process that takes the lock continues it. Points are drawn one at a
time, under the study's lock.

  sweep.json            the sweep and the config of its trials
  journal.jsonl         Optuna's journal: points, values, states
  trials/0007/seed1     work directory of a run, with its output in seed1.log
  leaderboard.csv, sweep.png
"""

from collections.abc import Mapping
import dataclasses
import os
import pathlib
from typing import Any

import ml_collections
import numpy as np
import optuna
from optuna.storages import journal as optuna_journal

from vit_jax import config as config_lib
from vit_jax.config import resuming
from vit_jax.config import UserError
from vit_jax.runs import safe_io
from vit_jax.sweep import space as space_lib

_STATES = optuna.trial.TrialState
# Final states of a trial -> their names in Optuna.
_ENDS = {
  'complete': _STATES.COMPLETE,
  'pruned': _STATES.PRUNED,
  'failed': _STATES.FAIL,
}
_NAMES = {state: name for name, state in _ENDS.items()}


@dataclasses.dataclass(frozen=True)
class Row:
  """The state of a trial."""

  number: int  # number of the trial, from 0
  point: space_lib.Point  # values of the keys of the space that are known
  state: str  # 'complete', 'pruned', 'failed' or 'unfinished'
  step: int  # newest step with a value; -1: none
  # Mean over the seeds, or the newest value so far; None: no value.
  value: float | None
  seeds: Mapping[int, float]  # value of each seed that is done
  error: str  # why it failed, or ''


class Study:
  """A sweep's trials."""

  def __init__(
    self,
    workdir: pathlib.Path,
    sweep: space_lib.Sweep,
    config: ml_collections.ConfigDict,
  ):
    """Opens or creates the study in a directory.

    Several processes may have it open. The sweep was checked against the
    config, which is that of all trials, without the keys of the space.
    """
    self.workdir = workdir
    self.sweep = sweep
    self.total = sweep.total()
    with safe_io.writing(workdir):
      (workdir / 'trials').mkdir(parents=True, exist_ok=True)
    self.lock = safe_io.Lock(workdir / '.sweep.lock')
    with self.lock:
      _compare(workdir, sweep, config)
      self._study = _open(workdir / 'journal.jsonl', sweep)

  def claim(self) -> tuple[optuna.trial.Trial, safe_io.Lock] | None:
    """Returns a trial to run and its lock: one left behind, or else a new one.

    None if there is neither: other processes run all remaining trials.
    """
    with self.lock:
      trials = self.trials()
      for old in trials:
        lock = None
        if old.state == _STATES.RUNNING:
          lock = self._lock_trial(old.number)
        if lock is not None:
          self._study.sampler = _sampler(self.sweep, old.number)
          # It may lack a part of its point, which is drawn now.
          trial = optuna.trial.Trial(self._study, old._trial_id)
          return self._drawn(trial), lock
      number = len(trials)
      if number >= self.total:
        return None
      lock = self._lock_trial(number)
      assert lock is not None, 'a trial that did not begin is taken'
      self._study.sampler = _sampler(self.sweep, number)
      return self._drawn(self._study.ask()), lock

  def _lock_trial(self, number: int) -> safe_io.Lock | None:
    folder = self.folder(number)
    folder.mkdir(exist_ok=True)
    lock = safe_io.Lock(folder / '.lock')
    return lock if lock.acquire(wait=False) else None

  def _drawn(self, trial: optuna.trial.Trial) -> optuna.trial.Trial:
    """Returns a trial after its point is drawn."""
    for key, x in sorted(self.sweep.space.items()):
      if isinstance(x, space_lib.Choice):
        trial.suggest_categorical(key, _labels(x))
      elif x.is_integer:
        trial.suggest_int(key, int(x.low), int(x.high))
      else:
        trial.suggest_float(key, x.low, x.high, log=x.log)
    self._study.sampler = optuna.samplers.RandomSampler()
    return trial

  def point(self, suggested: Mapping[str, Any]) -> space_lib.Point:
    """Returns the values of the keys of the space for Optuna's labels."""
    point = {}
    for key, value in suggested.items():
      dimension = self.sweep.space[key]
      if isinstance(dimension, space_lib.Choice):
        value = dimension.values[_labels(dimension).index(value)]
      point[key] = value
    return point

  def folder(self, number: int) -> pathlib.Path:
    """Returns the directory of a trial."""
    return self.workdir / 'trials' / f'{number:04d}'

  def end(
    self, trial: optuna.trial.Trial, value: float | None, state: str
  ) -> None:
    """Records the value and the final state of a trial."""
    self._study.tell(trial, value, _ENDS[state])

  def unfinished(self) -> int:
    """Returns the number of trials that have not ended."""
    ended = sum(trial.state.is_finished() for trial in self.trials())
    return max(self.total - ended, 0)

  def rows(self) -> list[Row]:
    """Returns the state of each trial that has begun."""
    rows = []
    for trial in self.trials():
      step = max(trial.intermediate_values, default=-1)
      newest = trial.intermediate_values.get(step)
      seeds = trial.user_attrs.get('seeds', {})
      row = Row(
        number=trial.number,
        point=self.point(trial.params),
        state=_NAMES.get(trial.state, 'unfinished'),
        step=step,
        value=newest if trial.value is None else trial.value,
        seeds={int(seed): x for seed, x in seeds.items()},
        error=trial.user_attrs.get('error', ''),
      )
      rows.append(row)
    return rows

  def trials(self) -> list[optuna.trial.FrozenTrial]:
    """Returns Optuna's records of all trials that have begun."""
    return self._study.get_trials(deepcopy=False)


def _compare(
  workdir: pathlib.Path,
  sweep: space_lib.Sweep,
  config: ml_collections.ConfigDict,
) -> None:
  """Writes sweep.json, or refuses a sweep that differs from it."""
  path = workdir / 'sweep.json'
  described, total = sweep.describe(), sweep.total()
  stored = safe_io.read_json(path)
  if stored is None:
    if (workdir / 'config.json').exists():
      raise UserError(
        f'{workdir} is the work directory of a run: give another --workdir'
      )
  else:
    old = stored['sweep']
    differences = [
      f'{key}: {old.get(key)} -> {described.get(key)}'
      for key in sorted(old.keys() | described.keys())
      if old.get(key) != described.get(key)
    ]
    with config_lib.explained(str(path)):
      before = config_lib.from_dict(stored['config'])
    differences += resuming.differences(before, config)
    # Other keys may differ between hosts.
    free = resuming.differences(before, config, resumable=True)
    differences += [text for text in free if text.startswith('evals.')]
    if total < stored['trials']:
      differences.append(f'trials: {stored["trials"]} -> {total}')
    if differences:
      raise UserError(
        f'{workdir} was begun with another sweep: {"; ".join(differences)}; go'
        ' on with the old values, or give another --workdir (only the number of'
        ' trials may grow)'
      )
    if total == stored['trials']:
      return
  written = config_lib.to_dict(config)
  content = {'sweep': described, 'trials': total, 'config': written}
  safe_io.write_json(path, content)


def _open(path: pathlib.Path, sweep: space_lib.Sweep) -> optuna.Study:
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  path.touch()
  pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
  if sweep.pruner == 'median':
    pruner = optuna.pruners.MedianPruner(
      n_startup_trials=sweep.prune_after_trials,
      n_warmup_steps=sweep.prune_after_steps,
    )
  elif sweep.pruner == 'halving':
    pruner = optuna.pruners.SuccessiveHalvingPruner()
  try:
    lock: Any = _JournalLock(path)  # Optuna's own type is private
    backend = optuna_journal.JournalFileBackend(str(path), lock_obj=lock)
    return optuna.create_study(
      study_name='sweep',
      storage=optuna_journal.JournalStorage(backend),
      direction=optuna.study.StudyDirection[sweep.direction.upper()],
      pruner=pruner,
      load_if_exists=True,
    )
  except (ValueError, KeyError, AssertionError) as e:
    raise UserError(
      f'cannot read {path}: {config_lib.one_line(e)}; bring it back, or give'
      ' another --workdir'
    ) from e


def _sampler(
  sweep: space_lib.Sweep, number: int
) -> optuna.samplers.BaseSampler:
  """Returns a sampler for the point of one trial.

  Except for a grid, each trial has its own seed: a sampler shared by all trials
  would draw the same points again in another process or after a restart.
  """
  if sweep.sampler == 'grid':
    return optuna.samplers.GridSampler(
      {key: _labels(x) for key, x in sweep.space.items()},
      seed=sweep.sampler_seed,
    )
  sequence = np.random.SeedSequence((sweep.sampler_seed, number))
  seed = int(sequence.generate_state(1)[0])
  if sweep.sampler == 'random':
    return optuna.samplers.RandomSampler(seed=seed)
  return optuna.samplers.TPESampler(seed=seed)


def _labels(dimension: space_lib.Dimension) -> list[Any]:
  """Returns the labels of a finite dimension's values in Optuna.

  A choice has text labels, since its values may have types that Optuna cannot
  store.
  """
  values = space_lib.values(dimension)
  if isinstance(dimension, space_lib.Choice):
    return [space_lib.text(value) for value in values]
  return list(values)


class _JournalLock(safe_io.Lock):
  """The lock that Optuna takes before it appends to its journal.

  Optuna's own locks stay locked after their process is killed. It also appends
  to an incomplete line of a killed process, which makes the journal unreadable.
  """

  def __init__(self, journal: pathlib.Path):
    super().__init__(journal.with_name(f'.{journal.name}.lock'))
    self._journal = journal

  def acquire(self, wait: bool = True) -> bool:
    """Takes the lock, and cuts off an incomplete last line."""
    if not super().acquire(wait):
      return False
    with self._journal.open('rb+') as file:
      file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
      if file.read(1) not in (b'', b'\n'):
        file.seek(0)
        file.truncate(file.read().rfind(b'\n') + 1)
    return True
