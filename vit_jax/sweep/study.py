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
_STATE_OF = {
  'complete': _STATES.COMPLETE,
  'pruned': _STATES.PRUNED,
  'failed': _STATES.FAIL,
}
_NAMES = {state: name for name, state in _STATE_OF.items()}


@dataclasses.dataclass
class Claim:
  """A trial that this process has claimed.

  Attributes:
    number: Number of the trial, from 0.
    point: Values of the keys of the space.
    path: Directory of the trial.
    reported: Steps whose values were reported to Optuna.
    pruned: Whether it was already to be pruned when its process was killed.
  """

  number: int
  point: space_lib.Point
  path: pathlib.Path
  reported: set[int]
  pruned: bool
  trial: optuna.trial.Trial
  lock: safe_io.Lock


@dataclasses.dataclass(frozen=True)
class Row:
  """The state of a trial.

  Attributes:
    number: Number of the trial, from 0.
    point: Values of the keys of the space that are known.
    state: 'complete', 'pruned', 'failed' or 'unfinished'.
    step: Newest step with a value; -1: none.
    value: Mean over the seeds, or the newest value so far; None: no value.
    seeds: Value of each seed that is done.
    error: Why it failed, or ''.
  """

  number: int
  point: space_lib.Point
  state: str
  step: int
  value: float | None
  seeds: Mapping[int, float]
  error: str


class Study:
  """A sweep's trials."""

  def __init__(
    self,
    workdir: pathlib.Path,
    sweep: space_lib.Sweep,
    config: ml_collections.ConfigDict,
  ):
    """Opens or creates the study in a directory.

    Args:
      workdir: Directory of the sweep; several processes may have it open.
      sweep: The sweep, checked against the config.
      config: The config of all trials, without the keys of the space.

    Raises:
      UserError: The directory has a different study, or cannot be used.
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

  def claim(self) -> Claim | None:
    """Returns a trial to run: one that was left behind, or else a new one.

    None if there is neither: other processes run all remaining trials.
    """
    with self.lock:
      trials = self._trials()
      for trial in trials:
        if trial.state == _STATES.RUNNING:
          lock = self._lock_trial(trial.number)
          if lock is not None:
            return self._claim(trial.number, lock, trial)
      if len(trials) >= self.total:
        return None
      lock = self._lock_trial(len(trials))
      assert lock is not None, 'a trial that did not begin is taken'
      return self._claim(len(trials), lock)

  def _lock_trial(self, number: int) -> safe_io.Lock | None:
    folder = self.folder(number)
    folder.mkdir(exist_ok=True)
    lock = safe_io.Lock(folder / '.lock')
    return lock if lock.acquire(wait=False) else None

  def _claim(
    self,
    number: int,
    lock: safe_io.Lock,
    old: optuna.trial.FrozenTrial | None = None,
  ) -> Claim:
    self._study.sampler = _sampler(self.sweep, number)
    # A trial that was left behind may lack a part of its point: draw it now.
    trial = (
      self._study.ask()
      if old is None
      else optuna.trial.Trial(self._study, old._trial_id)
    )
    suggested = {
      key: _suggest(trial, key, dimension)
      for key, dimension in sorted(self.sweep.space.items())
    }
    self._study.sampler = optuna.samplers.RandomSampler()
    return Claim(
      number=trial.number,
      point=_point(self.sweep.space, suggested),
      path=self.folder(trial.number),
      reported=set(old.intermediate_values) if old else set(),
      pruned=bool(old and old.user_attrs.get('pruned')),
      trial=trial,
      lock=lock,
    )

  def folder(self, number: int) -> pathlib.Path:
    """Returns the directory of a trial."""
    return self.workdir / 'trials' / f'{number:04d}'

  def report(self, claim: Claim, step: int, value: float) -> bool:
    """Reports a trial's value at a step; returns whether to prune the trial."""
    if step in claim.reported:
      return False
    claim.reported.add(step)
    claim.trial.report(value, step)
    claim.pruned = claim.trial.should_prune()
    if claim.pruned:
      claim.trial.set_user_attr('pruned', True)
    return claim.pruned

  def finish(
    self,
    claim: Claim,
    state: str,
    seeds: Mapping[int, float],
    value: float | None = None,
    error: str = '',
  ) -> None:
    """Records how a trial ended, and releases it.

    Args:
      claim: Claim of the trial.
      state: 'complete', 'pruned' or 'failed'.
      seeds: Value of each seed that is done.
      value: The metric of a complete trial.
      error: The error of a failed one.
    """
    claim.trial.set_user_attr('seeds', {str(k): x for k, x in seeds.items()})
    if error:
      claim.trial.set_user_attr('error', error)
    self._study.tell(claim.trial, value, _STATE_OF[state])
    claim.lock.release()

  def unfinished(self) -> int:
    """Returns the number of trials that have not ended."""
    ended = sum(trial.state.is_finished() for trial in self._trials())
    return max(self.total - ended, 0)

  def rows(self) -> list[Row]:
    """Returns the state of each trial that has begun."""
    return [self._row(trial) for trial in self._trials()]

  def _row(self, trial: optuna.trial.FrozenTrial) -> Row:
    step = max(trial.intermediate_values, default=-1)
    value = trial.value
    if value is None:
      value = trial.intermediate_values.get(step)
    seeds = trial.user_attrs.get('seeds', {})
    return Row(
      number=trial.number,
      point=_point(self.sweep.space, trial.params),
      state=_NAMES.get(trial.state, 'unfinished'),
      step=step,
      value=value,
      seeds={int(seed): x for seed, x in seeds.items()},
      error=trial.user_attrs.get('error', ''),
    )

  def _trials(self) -> list[optuna.trial.FrozenTrial]:
    return self._study.get_trials(deepcopy=False)


def _compare(
  workdir: pathlib.Path,
  sweep: space_lib.Sweep,
  config: ml_collections.ConfigDict,
) -> None:
  """Writes sweep.json, or compares the sweep with it.

  Raises:
    UserError: The directory has a different sweep; lists the differences.
  """
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
    differences += _config_differences(path, stored['config'], config)
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
  safe_io.write_json(
    path,
    {
      'sweep': described,
      'trials': total,
      'config': config_lib.to_dict(config),
    },
  )


def _config_differences(
  path: pathlib.Path,
  stored: Mapping[str, Any],
  config: ml_collections.ConfigDict,
) -> list[str]:
  """Lists different keys, except those that may differ between hosts."""
  with config_lib.explained(str(path)):
    before = config_lib.from_dict(stored)
  free = resuming.differences(before, config, resumable=True)
  return resuming.differences(before, config) + [
    text for text in free if text.startswith('evals.')
  ]


def _open(path: pathlib.Path, sweep: space_lib.Sweep) -> optuna.Study:
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  path.touch()
  try:
    lock: Any = _JournalLock(path)  # Optuna's own type is private
    backend = optuna_journal.JournalFileBackend(str(path), lock_obj=lock)
    return optuna.create_study(
      study_name='sweep',
      storage=optuna_journal.JournalStorage(backend),
      direction=optuna.study.StudyDirection[sweep.direction.upper()],
      pruner=_pruner(sweep),
      load_if_exists=True,
    )
  except (ValueError, KeyError, AssertionError) as e:
    raise UserError(
      f'cannot read {path}: {config_lib.one_line(e)}; bring it back, or give'
      ' another --workdir'
    ) from e


def _pruner(sweep: space_lib.Sweep) -> optuna.pruners.BasePruner:
  if sweep.pruner == 'median':
    return optuna.pruners.MedianPruner(
      n_startup_trials=sweep.prune_after_trials,
      n_warmup_steps=sweep.prune_after_steps,
    )
  if sweep.pruner == 'halving':
    return optuna.pruners.SuccessiveHalvingPruner()
  return optuna.pruners.NopPruner()


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


def _suggest(
  trial: optuna.trial.Trial, key: str, dimension: space_lib.Dimension
) -> Any:
  if isinstance(dimension, space_lib.Choice):
    return trial.suggest_categorical(key, _labels(dimension))
  if dimension.is_integer:
    return trial.suggest_int(key, int(dimension.low), int(dimension.high))
  return trial.suggest_float(
    key, dimension.low, dimension.high, log=dimension.log
  )


def _point(
  space: Mapping[str, space_lib.Dimension], suggested: Mapping[str, Any]
) -> space_lib.Point:
  """Returns the values for Optuna's labels."""
  point = {}
  for key, value in suggested.items():
    dimension = space[key]
    if isinstance(dimension, space_lib.Choice):
      value = dimension.values[_labels(dimension).index(value)]
    point[key] = value
  return point


class _JournalLock(safe_io.Lock):
  """The lock that Optuna takes before it appends to its journal.

  Optuna's own locks stay locked after their process is killed. It also appends
  to an incomplete line of a killed process, which makes the journal unreadable.
  """

  def __init__(self, journal: pathlib.Path):
    """Does not take the lock yet.

    Args:
      journal: The file that Optuna appends to.
    """
    super().__init__(journal.with_name(f'.{journal.name}.lock'))
    self._journal = journal

  def acquire(self, wait: bool = True) -> bool:
    """Takes the lock, and cuts off an incomplete last line."""
    is_locked = super().acquire(wait)
    if is_locked:
      _cut_torn_line(self._journal)
    return is_locked


def _cut_torn_line(path: pathlib.Path) -> None:
  with path.open('rb+') as file:
    size = file.seek(0, os.SEEK_END)
    if not size:
      return
    file.seek(size - 1)
    if file.read(1) == b'\n':
      return
    file.seek(0)
    file.truncate(file.read().rfind(b'\n') + 1)
