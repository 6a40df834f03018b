"""Compares runs: their configs, their results and their curves.

  python -m vit_jax.compare runs/digits runs/digits-2
  python -m vit_jax.compare runs/* --group --out=seeds.png --x=epoch

Tables show config keys that differ, other differences (versions, commit,
devices, data), and the results: for each metric of the evaluations the last and
the best value with its step, the last loss, the images per second (median) and
the time. A run may be unfinished or still running. The time is from its first
start to its last metrics, without pauses between starts; the useful time is
that of its steps up to the last checkpoint. Files and folders that are not runs
are skipped, with a warning. A run may be in an object store (gs://, s3://).

--out is a picture (.png, .pdf or .svg) of curves: the loss, the learning rate,
what the method measures of its training, as teacher_entropy of DINO, and the
evaluations, except metrics of single classes; --out='' draws none.

--group combines runs whose configs differ only in the seed. Tables then show
the mean, and curves the mean and a band from the smallest to the largest value.
After the mean comes half of its 95% interval (Student's t) or, for two runs,
both values: an interval of two says little. If some runs of a group are
finished, only these count.

--format=json is one object: config and setting (for each key that differs, the
values by name of the run) and runs. A run has name, paths, states, count (the
number of runs that count), step, epoch, and metrics. Each metric, by name, has
last, best and best_step; seconds, useful_seconds and images_per_second are
metrics, too. If several runs count, last and best are means, last_interval and
best_interval are half of their intervals, and last_range and best_range are
the smallest and the largest value; otherwise these are null.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import json
import os
import pathlib
from typing import Any

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax import tables
from vit_jax.compare import comparison
from vit_jax.config import number
from vit_jax.runs import records

USAGE = 'compare RUN ...'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
_OUT = cli.define_path(
  'out', 'compare.png', "The picture. '': none.", flag_values=FLAGS
)
_X = flags.DEFINE_enum(
  'x',
  'step',
  ['step', 'epoch', 'examples', 'time'],
  'Horizontal axis of the curves.',
  flag_values=FLAGS,
)
_GROUP = flags.DEFINE_bool(
  'group',
  False,
  'Combine runs that differ only in the seed.',
  flag_values=FLAGS,
)
_FORMAT = cli.define_format(FLAGS)

_LONGEST = 40  # maximum letters of a value to show
_ABSENT = '-'


def main(argv: list[str]) -> None:
  """Compares runs, prints the tables and draws the picture."""
  from vit_jax.plots import curves

  out = pathlib.Path(_OUT.value) if _OUT.value else None
  if out is not None:
    curves.check(out)
  columns = comparison.read(argv[1:], _GROUP.value)
  config = comparison.differences(columns, lambda run: run.config)
  setting = comparison.differences(columns, comparison.setting)
  reports = [comparison.report(column) for column in columns]
  labels = [column.label for column in columns]
  if _FORMAT.value == 'json':
    print(json.dumps({'config': config, 'setting': setting, 'runs': reports}))
  else:
    names = [column.name for column in columns]
    for title, rows in (
      ('config', _difference_rows(names, config)),
      ('setting', _difference_rows(names, setting)),
      ('results', _result_rows(reports)),
    ):
      if rows:
        table = tables.Table([title, *labels], rows)
        print(table.text(tables.room()), end='\n\n')
      else:
        print(f'{title}: no differences\n')
  if out is not None and any(run.curves for c in columns for run in c.runs):
    x_label, panels = comparison.lines(columns, _X.value)
    smooth = [x for x in panels if comparison.is_noisy(x)]
    curves.draw(panels, labels, out, x_label=x_label, smooth=smooth)
    logging.info('the curves are in %s', out)


def _difference_rows(
  names: Sequence[str], values: Mapping[str, Mapping[str, list[Any]]]
) -> list[list[str]]:
  """Returns a row for each key; texts begin where they begin to differ."""
  rows = []
  for key, by_name in values.items():
    texts = {
      name: ', '.join(map(_show_value, values_of_runs))
      for name, values_of_runs in by_name.items()
    }
    distinct = list(set(texts.values()))
    start = 0
    if max(map(len, distinct)) > _LONGEST and len(distinct) > 1:
      start = max(0, len(os.path.commonprefix(distinct)) - 8)
    for name, text in texts.items():
      text = f'...{text[start:]}' if start > 3 else text
      is_long = len(text) > _LONGEST
      texts[name] = f'{text[: _LONGEST - 3]}...' if is_long else text
    rows.append([key, *(texts.get(name, _ABSENT) for name in names)])
  return rows


def _show_value(value: Any) -> str:
  """Returns a value of a config; 2_700 steps becomes 2,700 steps."""
  if not isinstance(value, str) or not value:
    return repr(value)
  number, _, unit = value.partition(' ')
  is_length = unit.isalpha() and number.replace('_', '').isdecimal()
  return f'{int(number):,} {unit}' if is_length else value


def _result_rows(reports: Sequence[Mapping[str, Any]]) -> list[list[str]]:
  """Returns a row for each result, with a cell for each run."""
  rows = [
    ['state', *(_show_states(r['states']) for r in reports)],
    ['step', *(_show(r['step']) for r in reports)],
    ['epoch', *(_show(r['epoch']) for r in reports)],
  ]
  metrics = [r['metrics'] for r in reports]
  for name in sorted({x for values in metrics for x in values if '/' in x}):
    is_count = name.endswith('/examples')
    finals = {values[name]['last'] for values in metrics if name in values}
    if not is_count or len(finals) > 1:
      rows.append([name, *(_show_mean(r, name, 'last') for r in reports)])
    if not is_count and records.is_evaluation(name):
      rows.append(['  best', *(_show_mean(r, name, 'best') for r in reports)])
  speeds = [_show_mean(r, 'images_per_second', 'last') for r in reports]
  rows.append(['images/s', *speeds])
  for title, name in (('time', 'seconds'), ('useful time', 'useful_seconds')):
    times = [
      str(datetime.timedelta(seconds=round(values[name]['last'])))
      if name in values
      else _ABSENT
      for values in metrics
    ]
    if set(times) != {_ABSENT}:
      rows.append([title, *times])
  return rows


def _show_states(states: Sequence[str]) -> str:
  if len(states) == 1:
    return states[0]
  counts = {state: states.count(state) for state in sorted(set(states))}
  return ', '.join(f'{count} {state}' for state, count in counts.items())


def _show(value: float | None) -> str:
  return _ABSENT if value is None else number(value)


def _show_mean(report: Mapping[str, Any], name: str, statistic: str) -> str:
  metric = report['metrics'].get(name)
  if metric is None:
    return _ABSENT
  if metric[statistic] is None:
    return 'nan'
  text = _show(metric[statistic])
  half, ends = metric[f'{statistic}_interval'], metric[f'{statistic}_range']
  if report['count'] == 2 and ends is not None:
    return f'{text} ({" and ".join(map(_show, ends))})'
  if half is not None:
    return f'{text} ± {half:.0f}' if half > 10 else f'{text} ± {half:.2g}'
  step = metric.get('best_step') if statistic == 'best' else None
  return text if step is None else f'{text} (step {step})'


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE, computes=False)
