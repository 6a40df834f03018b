"""Compares two or more runs from their records, without JAX."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import math
import os
import pathlib
import re
import statistics
from typing import Any
from typing import TYPE_CHECKING

from absl import logging

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.evaluation import intervals
from vit_jax.runs import records
from vit_jax.runs import reporting

if TYPE_CHECKING:
  from vit_jax.plots import curves

LOSS = 'train/loss'
_RATE = 'train/learning_rate'
# What any run writes; a method's own measures, as teacher_entropy, are others.
_COMMON = (
  LOSS,
  _RATE,
  'train/grad_norm',
  'train/param_norm',
  'train/skipped_steps',
)


@dataclasses.dataclass(frozen=True)
class Column:
  """A run; with --group, runs whose configs differ only in the seed."""

  name: str  # unique name of the column
  runs: Sequence[records.Record]  # all runs of the column

  @property
  def label(self) -> str:
    """The name, with the number of runs that count if there are several."""
    count = len(self.counted)
    return self.name if len(self.runs) == 1 else f'{self.name} (n={count})'

  @property
  def counted(self) -> Sequence[records.Record]:
    """The finished runs; all runs if none has finished."""
    return [run for run in self.runs if run.state == 'finished'] or self.runs


def read(paths: Sequence[str], group: bool = False) -> list[Column]:
  """Reads the runs to compare.

  Args:
    paths: Their work directories. A path that exists but holds no run is
      skipped with a warning, since shell patterns match other files, too.
    group: Whether to group runs that differ only in the seed.
  """
  running: list[pathlib.Path] = []
  resolved = [_local(path, running) for path in paths]
  twice = [x for x in resolved if resolved.count(x) > 1]
  if twice:
    raise UserError(f'{twice[0]} is given twice')
  if len(paths) < 2:
    raise UserError(
      'name two or more work directories, as in runs/digits runs/digits-2'
    )
  skipped = [x for x in resolved if x.exists() and not records.is_run(x)]
  resolved = [x for x in resolved if x not in skipped]
  if skipped and len(resolved) < 2:
    names = config_lib.join_first([str(x) for x in skipped])
    raise UserError(
      f'{len(resolved)} of these is the work directory of a run, and it takes'
      f' two to compare: there is no config.json, or no run.json, in {names}'
    )
  for folder in skipped:
    logging.warning('warning: %s is left out: it is no run', folder)
  runs = [
    dataclasses.replace(run, state='running') if run.path in running else run
    for run in map(records.read, resolved)
  ]
  for run in runs:
    if not run.curves:
      logging.warning('%s has no metrics yet', run.path)
  named = list(zip(records.short_names(resolved), runs, strict=True))
  if not group:
    return [Column(name, [run]) for name, run in named]
  groups: dict[str, list[tuple[str, records.Record]]] = {}
  for name, run in named:
    settings = {key: x for key, x in run.config.items() if key != 'seed'}
    key = json.dumps(settings, sort_keys=True)
    groups.setdefault(key, []).append((name, run))
  return _columns(list(groups.values()))


def _local(path: str, running: list[pathlib.Path]) -> pathlib.Path:
  """Returns the path of a run, or of its copy if it is in an object store.

  If a run in a store goes on, its copy is added to `running`.
  """
  address = config_lib.store_address(path, 'work directory')
  if address is None:
    config_lib.check_local(path, 'work directory')
    return pathlib.Path(path).resolve()
  fetch_record = config_lib.wing('vit_jax.downloads.copies:fetch_record')
  local, is_running = fetch_record(address)
  if is_running:
    running.append(local)
  return local


def _columns(
  groups: Sequence[Sequence[tuple[str, records.Record]]],
) -> list[Column]:
  """Returns columns; a group is named by the common prefix of its runs."""
  names = [
    os.path.commonprefix([name for name, _ in group]).rstrip('-_/.=')
    for group in groups
  ]
  columns = []
  for short, group in zip(names, groups, strict=True):
    members, runs = zip(*group, strict=True)
    is_clear = len(group) == 1 or (short and names.count(short) == 1)
    name = short if is_clear else config_lib.join_first(members, 2)
    columns.append(Column(members[0] if len(group) == 1 else name, runs))
    seeds = [run.config.get('seed') for run in runs]
    if len(set(seeds)) < len(seeds):
      logging.warning(
        'warning: %s: some have the same seed (%s): they are not independent,'
        ' and the interval is too narrow',
        config_lib.join_first(members),
        config_lib.join_first(list(map(str, seeds))),
      )
  return columns


def setting(run: records.Record) -> dict[str, str]:
  """Returns the versions, devices and data of a run's newest start."""
  if not run.starts:
    return {}
  start = run.starts[-1]
  return records.setting(start) | {'host': start.get('host', '-')}


def differences(
  columns: Sequence[Column],
  values_of: Callable[[records.Record], Mapping[str, Any]],
) -> dict[str, dict[str, list[Any]]]:
  """Returns the values that differ between runs.

  Args:
    columns: Columns with at least one run each.
    values_of: Returns the values of a run by key.

  Returns:
    The distinct values in each column, for each key that differs. A missing key
    counts as one that is not set.
  """
  tables = {c.name: [values_of(run) for run in c.runs] for c in columns}
  every = [values for table in tables.values() for values in table]
  differing: dict[str, dict[str, list[Any]]] = {}
  for key in sorted({key for values in every for key in values}):
    if all(values.get(key) == every[0].get(key) for values in every):
      continue
    differing[key] = {}
    for name, table in tables.items():
      distinct: list[Any] = []
      for values in table:
        if key in values and values[key] not in distinct:
          distinct.append(values[key])
      if distinct:
        differing[key][name] = distinct
  return differing


def report(column: Column) -> dict[str, Any]:
  """Returns the results of a run or a group, for --format=json."""
  runs = column.counted
  points = [run.last for run in runs]
  last = max((p for p in points if p is not None), default=None)
  names = {name for run in runs for name in run.curves}
  metrics = {}
  for name in sorted(names):
    if name == LOSS or records.is_evaluation(name):
      metrics[name] = _mean('last', [run.final(name) for run in runs])
    if records.is_evaluation(name):
      best = [run.best(name) for run in runs]
      metrics[name] |= _mean('best', [p and p.value for p in best])
      single = best[0] if len(runs) == 1 else None
      metrics[name]['best_step'] = single and single.step
  speeds = [
    [p.value for p in run.curves.get('train/images_per_second', ())]
    for run in runs
  ]
  costs = {
    'images_per_second': [statistics.median(x) if x else None for x in speeds],
    'seconds': [p and p.seconds for p in points],
    'useful_seconds': [run.final('train/useful_seconds') for run in runs],
  }
  for name, values in costs.items():
    if any(x is not None for x in values):
      metrics[name] = _mean('last', values)
  return {
    'name': column.name,
    'paths': [str(run.path) for run in column.runs],
    'states': [run.state for run in column.runs],
    'count': len(runs),
    'step': last and last.step,
    'epoch': last and last.epoch,
    'metrics': metrics,
  }


def _mean(name: str, values: Sequence[float | None]) -> dict[str, Any]:
  """Returns a mean, half its interval, and its range; None if unknown."""
  numbers = [x for x in values if x is not None]
  mean, half = (numbers[0] if numbers else math.nan), math.nan
  if len(numbers) > 1:
    mean, half = intervals.mean_interval(numbers)
  return {
    name: mean if math.isfinite(mean) else None,
    f'{name}_interval': half if math.isfinite(half) else None,
    f'{name}_range': [min(numbers), max(numbers)] if len(numbers) > 1 else None,
  }


def lines(
  columns: Sequence[Column], x: str
) -> tuple[str, dict[str, 'dict[str, curves.Line]']]:
  """Returns the label of the x axis, and each metric's lines by label.

  `x` is a value of --x.
  """
  ends = [run.last.seconds for c in columns for run in c.runs if run.last]
  unit, scale = 'seconds', 1.0
  for name, seconds in (('minutes', 60.0), ('hours', 3600.0)):
    if x == 'time' and max(ends) > 2 * seconds:
      unit, scale = name, seconds
  names = {name for c in columns for run in c.counted for name in run.curves}
  metrics = [n for n in (LOSS, _RATE) if n in names]
  # What a method measures of its own training.
  metrics += sorted(
    n
    for n in names - {*_COMMON}
    if not records.is_evaluation(n) and not reporting.is_timed(n)
  )
  metrics += sorted(
    n
    for n in names
    # Metrics of single classes, as val/iou/cat, are in the tables alone.
    if records.is_evaluation(n) and not re.search('/.*/|/examples$', n)
  )
  panels = {}
  for name in metrics:
    lines = {c.label: _line(c.counted, name, x, scale) for c in columns}
    panels[name] = {k: line for k, line in lines.items() if line is not None}
  return {'time': f'time ({unit})'}.get(x, x), panels


def is_noisy(name: str) -> bool:
  """Whether curves of a metric are smoothed: those measured on batches."""
  return not records.is_evaluation(name) and name != _RATE


def _line(
  runs: Sequence[records.Record], name: str, x: str, scale: float
) -> 'curves.Line | None':
  """Returns a metric's line over the steps that all runs have, or None."""
  import numpy as np

  from vit_jax.plots import curves

  tables = [{p.step: p for p in run.curves.get(name, ())} for run in runs]
  steps = sorted(set.intersection(*map(set, tables)))
  if not steps:
    return None
  points = [[table[step] for step in steps] for table in tables]
  places = []
  for row, run in zip(points, runs, strict=True):
    batch_size = run.config.get('train.batch_size', math.nan)
    axes = {
      'step': [p.step for p in row],
      'examples': [p.step * batch_size for p in row],
      'epoch': [p.epoch for p in row],
      'time': [p.seconds for p in row],
    }
    places.append([value / scale for value in axes[x]])
  at = np.mean(places, axis=0)
  values = np.array([[p.value for p in row] for row in points])  # [runs, N]
  if len(runs) == 1:
    return curves.Line(at, values[0])
  low, high = values.min(axis=0), values.max(axis=0)
  return curves.Line(at, values.mean(axis=0), low, high)
