"""The trials as tables: in the terminal, on stdout, and in leaderboard.csv."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
import pathlib
import statistics
from typing import Any

from vit_jax import tables
from vit_jax.evaluation import intervals
from vit_jax.runs import logs
from vit_jax.runs import safe_io
from vit_jax.runs import terminal
from vit_jax.sweep import space as space_lib
from vit_jax.sweep import study as study_lib

_ORDER = ('complete', 'running', 'elsewhere', 'unfinished', 'pruned', 'failed')
_LONGEST = 30  # maximum letters of a value to show


def ranked(
  rows: Sequence[study_lib.Row], sweep: space_lib.Sweep
) -> list[study_lib.Row]:
  """Returns trials with the best first, and failed ones last."""
  sign = -1 if sweep.direction == 'maximize' else 1

  def key(row: study_lib.Row) -> tuple[int, float, int]:
    is_finite = row.value is not None and math.isfinite(row.value)
    value = sign * (row.value or 0.0) if is_finite else math.inf
    return _ORDER.index(row.state), value, row.number

  return sorted(rows, key=key)


def spread(row: study_lib.Row) -> float:
  """Returns half the width of the 95% interval of a trial's mean, or nan."""
  values = list(row.seeds.values())
  if row.state != 'complete' or not values:
    return math.nan
  return intervals.mean_interval(values)[1]


def entry(
  row: study_lib.Row, sweep: space_lib.Sweep, workdir: pathlib.Path
) -> dict[str, Any]:
  """Returns a trial's row in leaderboard.csv and `--format=json`.

  It has trial, state, mean (of the metric over the seeds; the last value of an
  incomplete trial), low and high (ends of the mean's 95% interval, Student's
  t), deviation (over the seeds), seeds (number of values), step, the keys of
  the space, seedN (each value), error and path. Unknown numbers are None.
  """
  values = list(row.seeds.values())
  half = spread(row)
  mean = math.nan if row.value is None else row.value
  deviation = statistics.stdev(values) if len(values) > 1 else None
  seeds = {f'seed{seed}': row.seeds.get(seed) for seed in sweep.seeds}
  return {
    'trial': row.number,
    'state': row.state,
    'mean': _finite(mean),
    'low': _finite(mean - half),
    'high': _finite(mean + half),
    'deviation': _finite(deviation),
    'seeds': len(values),
    'step': row.step if row.step >= 0 else None,
    # Values of the space may be infinite.
    **{key: row.point.get(key) for key in sorted(sweep.space)},
    **{name: _finite(x) for name, x in seeds.items()},
    'error': row.error,
    'path': str(workdir / 'trials' / f'{row.number:04d}'),
  }


def _finite(x: float | None) -> float | None:
  return x if x is not None and math.isfinite(x) else None


def write_csv(
  rows: Sequence[study_lib.Row], sweep: space_lib.Sweep, workdir: pathlib.Path
) -> None:
  """Writes leaderboard.csv; replaces an old one atomically."""
  entries = [entry(row, sweep, workdir) for row in ranked(rows, sweep)]
  empty = study_lib.Row(0, {}, 'unfinished', -1, None, {}, '')
  with safe_io.replacing(workdir / 'leaderboard.csv') as file:
    names = list(entry(empty, sweep, workdir))
    tables.Table(names, [[*x.values()] for x in entries]).write_csv(file)


def table(
  rows: Sequence[study_lib.Row], sweep: space_lib.Sweep
) -> tables.Table:
  """Returns a row for each trial, without the errors."""
  keys = sorted(sweep.space)
  # The last parts of keys, or whole keys if these are not unique.
  names = [key.rpartition('.')[2] for key in keys]
  if len(set(names)) < len(keys):
    names = keys
  measures = 'state', 'step', sweep.metric, '± 95%', 'seeds'
  lines = []
  for row in rows:
    half = spread(row)
    lines.append(
      [
        row.number,
        *(_cell(row.point, key) for key in keys),
        row.state,
        row.step if row.step >= 0 else None,
        '' if row.value is None else f'{row.value:.5g}',
        f'{half:.2g}' if math.isfinite(half) else '',
        len(row.seeds) or None,
      ]
    )
  return tables.Table(['trial', *names, *measures], lines)


def _cell(point: Mapping[str, Any], key: str) -> str:
  text = space_lib.show_value(point[key]) if key in point else ''
  return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'


class Board:
  """A table in the terminal that is updated as trials run.

  Messages appear above it. If stderr is not a terminal, only these are shown.
  """

  def __init__(self, sweep: space_lib.Sweep):
    self._sweep = sweep
    self._region = terminal.Region() if logs.can_draw() else None

  def __enter__(self) -> 'Board':
    return self

  def __exit__(self, *_: object) -> None:
    if self._region is not None:
      self._region.close()

  def show(self, rows: Sequence[study_lib.Row]) -> None:
    """Redraws the table."""
    if self._region is None:
      return
    rows = ranked(rows, self._sweep)
    most = max(self._region.console.height - 4, 1)
    # If not all fit: the running ones, then the best.
    by_need = sorted(rows, key=lambda row: row.state != 'running')
    numbers = {row.number for row in by_need[:most]}
    visible_rows = [row for row in rows if row.number in numbers]
    text = table(visible_rows, self._sweep).text()
    if len(visible_rows) < len(rows):
      text += f'\n... and {len(rows) - len(visible_rows)} more'
    self._region.draw(self._region.render(text))
