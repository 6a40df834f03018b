"""Reports on a classifier, with confidence intervals, as JSON and as text."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import numpy as np

from vit_jax import tables
from vit_jax.config import number
from vit_jax.evaluation import calibration
from vit_jax.evaluation import intervals
from vit_jax.evaluation import metrics as metrics_lib
from vit_jax.evaluation.base import Evaluator
from vit_jax.evaluation.predictions import Predictions

_MOST_CONFUSED = 2000  # classes; the matrix grows with the square
_WORST = 10  # examples that are listed
_MOST_SHOWN = 20  # classes in a table
_TITLES = {'iou': 'IoU', 'class_dice': 'Dice'}  # of metrics of a class


def summarize(
  results: Mapping[str, float], predictions: Predictions, names: Sequence[str]
) -> dict[str, Any]:
  """Returns what `--format=json` prints.

  The results are what the objective measures: accuracy and loss, and metrics of
  its own. The names are of the model's classes. There is at least one example.
  """
  total, k = predictions.top.shape
  hits = predictions.top == predictions.label[:, None]
  correct = hits[:, 0]
  right = np.bincount(predictions.label[correct], minlength=len(names)).tolist()
  count = np.bincount(predictions.label, minlength=len(names)).tolist()
  accuracy = results.get('accuracy', correct.mean())
  matrix = None
  if len(names) <= _MOST_CONFUSED:
    best = predictions.top[:, 0]
    counts = metrics_lib.confusion(predictions.label, best, len(names))
    matrix = counts.tolist()
  summary = {
    'examples': total,
    **_rate('accuracy', round(accuracy * total), total),
    'k': k,
    **_rate('top_k_accuracy', int(hits.sum()), total),
    'loss': _finite(results.get('loss', predictions.loss.mean())),
    'calibration_error': _finite(
      calibration.calibration_error(predictions.probability[:, 0], correct)
    ),
    'classes': [
      {'name': name, 'examples': n, **_rate('accuracy', hits, n)}
      for name, hits, n in zip(names, right, count, strict=True)
    ],
    'confusion': matrix,
  }
  measures = {k: _finite(x) for k, x in results.items() if k not in summary}
  return summary | measures


def _rate(name: str, correct: int, total: int) -> dict[str, Any]:
  rate = correct / total if total else None
  return {name: rate, f'{name}_interval': intervals.wilson(correct, total)}


def _finite(x: float) -> float | None:
  return float(x) if math.isfinite(x) else None  # JSON has no NaN


def summarize_probe(
  evaluator: Evaluator, train_examples: int | None, results: Mapping[str, float]
) -> dict[str, Any]:
  """Returns what `--probe` with `--format=json` prints.

  The results are numbers. The evaluator learned from `train_examples`, if any.
  """
  summary: dict[str, Any] = {'probe': evaluator.kind}
  if (k := getattr(evaluator, 'k', None)) is not None:
    summary['k'] = k
  if train_examples is not None:
    summary['train_examples'] = train_examples
  if 'examples' in results:
    summary['examples'] = int(results['examples'])
  bounds = evaluator.intervals(results)
  hidden = {'examples', *(f'{name}_margin' for name in bounds)}
  for name, x in results.items():
    if name in hidden:
      continue
    summary[name] = _finite(x)
    if name in bounds:
      summary[f'{name}_interval'] = bounds[name]
  return summary


def probe_as_text(summary: Mapping[str, Any]) -> str:
  """Returns what `--probe` with `--format=table` prints."""
  rows = [
    (name.replace('_', ' '), *_measured(summary, name))
    for name in summary
    if not name.endswith('_interval')
  ]
  return tables.Table((), rows).text()


def as_text(summary: Mapping[str, Any]) -> str:
  """Returns what `--format=table` prints: a summary for people."""
  labels = {
    'examples': 'examples',
    'accuracy': 'accuracy',
    'top_k_accuracy': f'top-{summary["k"]}',
    'loss': 'loss',
    'calibration_error': 'calibration error',
  }
  rates = [(x, *_measured(summary, name)) for name, x in labels.items()]
  rates += [
    (name.replace('_', ' '), *_measured(summary, name))
    for name, x in summary.items()
    if isinstance(x, float | None) and name not in (*labels, 'confusion')
  ]
  parts = [tables.Table((), rates).text()]
  classes = list(enumerate(summary['classes']))
  few = len(classes) <= _MOST_SHOWN
  if not few:
    measured = [(i, x) for i, x in classes if x['examples']]
    classes = sorted(measured, key=lambda c: c[1]['accuracy'])[:_MOST_SHOWN]
  rows = [
    (i, x['name'], x['examples'], *_measured(x, 'accuracy')) for i, x in classes
  ]
  names = 'index', 'class', 'examples', 'accuracy', '95% interval'
  table = tables.Table(names, rows).text(tables.room())
  if few:
    matrix = summary['confusion']
    numbers = ['', *map(str, range(len(matrix)))]
    counts = tables.Table(numbers, [(i, *x) for i, x in enumerate(matrix)])
    head = 'confusion: a row is a true class, a column a predicted one'
    parts += [table, f'{head}\n{counts.text(tables.room())}']
  else:
    head = f'the {_MOST_SHOWN} worst classes (--format=json has all)'
    parts.append(f'{head}\n{table}')
  return '\n\n'.join(parts)


def _measured(summary: Mapping[str, Any], name: str) -> tuple[Any, str]:
  """Returns the cells of a metric: its value, and its 95% interval."""
  value = summary[name]
  if value is None or (isinstance(value, float) and math.isnan(value)):
    return 'nan', ''
  if isinstance(value, float):
    is_usual = not value or 1e-3 <= abs(value) < 10
    value = f'{value:.4f}' if is_usual else number(value)
  low, high = summary.get(f'{name}_interval') or (None, None)
  return value, '' if low is None else f'({low:.4f} to {high:.4f})'


def metrics_as_text(summary: Mapping[str, Any]) -> str:
  """Returns a table of metrics, a table of classes, and the worst examples."""
  numbers = {k: x for k, x in summary.items() if isinstance(x, float | int)}
  rows = [
    (name.replace('_', ' '), *_measured(summary, name))
    for name in numbers
    if '/' not in name
  ]
  names = 'metric', 'value', '95% interval'
  parts = [tables.Table(names, rows).text(tables.room())]
  parts += _metrics_of_classes(summary, [x for x in numbers if '/' in x])
  for name, examples in summary.get('worst', {}).items():
    worst_rows = [(x['index'], x[name], x['file']) for x in examples]
    table = tables.Table(('index', name, 'file'), worst_rows, {name: '.4f'})
    parts.append(
      f'the examples with the lowest {name}\n{table.text(tables.room())}'
    )
  return '\n\n'.join(parts)


def _metrics_of_classes(
  summary: Mapping[str, Any], keys: Sequence[str]
) -> list[str]:
  """Returns a table with a row for each class; [] without such metrics.

  `keys` are metrics of a class, such as 'iou/road'.
  """
  metrics = list(dict.fromkeys(key.partition('/')[0] for key in keys))
  classes = list(dict.fromkeys(key.partition('/')[2] for key in keys))
  if not classes:
    return []
  names = ['class']
  columns: list[Sequence[Any]] = [classes]
  for metric in metrics:
    by_class = [f'{metric}/{name}' for name in classes]
    cells = [
      _measured(summary, x) if x in summary else ('', '') for x in by_class
    ]
    values, bounds = zip(*cells, strict=True)
    names.append(_TITLES.get(metric, metric.replace('_', ' ')))
    columns.append(values)
    if any(bounds):
      names.append('95% interval')
      columns.append(bounds)
  if len(matrix := summary.get('confusion') or ()) == len(classes):
    names.append('pixels')
    columns.append([sum(row) for row in matrix])
  rows = list(zip(*columns, strict=True))
  return [tables.Table(names, rows).text(tables.room())]


def worst(
  rows: Mapping[str, np.ndarray], files: Sequence[str | None]
) -> dict[str, list[dict[str, Any]]]:
  """Returns the examples with the lowest value of each measure.

  Args:
    rows: `index` and measures of single examples, [N] each.
    files: Path of each example; None where it has none.
  """
  columns = {}
  for name, values in rows.items():
    if name == 'index':
      continue
    order = np.argsort(values, kind='stable')[:_WORST]
    columns[name] = [
      {
        'index': int(rows['index'][i]),
        name: float(values[i]),
        'file': files[i],
      }
      for i in order
      if np.isfinite(values[i])
    ]
  return columns


def class_columns(
  predictions: Predictions,
  files: Sequence[str | None],
  names: Sequence[str],
) -> dict[str, list[Any]]:
  """Returns the columns of `--predictions` for a classifier."""
  label, top = predictions.label.tolist(), predictions.top.tolist()
  probability = predictions.probability.tolist()
  return {
    'index': predictions.index.tolist(),
    'file': files,
    'label': label,
    'label_name': [names[i] for i in label],
    'prediction': [row[0] for row in top],
    'prediction_name': [names[row[0]] for row in top],
    'probability': [row[0] for row in probability],
    'loss': predictions.loss.tolist(),
    'top': top,
    'top_probability': probability,
  }
