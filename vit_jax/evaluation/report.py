"""Reports on a classifier, with confidence intervals, as JSON and as text."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import numpy as np

from vit_jax import tables
from vit_jax.config import number
from vit_jax.evaluation.base import Evaluator
from vit_jax.evaluation.predictions import Predictions

_Z = 1.959963984540054  # 95% of a normal distribution lie within +-z
_BINS = 15  # bins of the confidence, as in arXiv:1706.04599
_MOST_CONFUSED = 2000  # classes; the matrix grows with the square
_WORST = 10  # examples that are listed
_MOST_SHOWN = 20  # classes in a table
_TITLES = {'iou': 'IoU', 'class_dice': 'Dice'}  # of metrics of a class


def wilson(correct: int, total: int) -> tuple[float, float]:
  """Returns Wilson's 95% interval of a rate; (0, 1) without any trial."""
  if not total:
    return 0.0, 1.0
  rate, weight = correct / total, _Z**2 / total
  middle = (rate + weight / 2) / (1 + weight)
  spread = math.sqrt(rate * (1 - rate) * weight + weight**2 / 4) / (1 + weight)
  # With none or all correct, an end is exactly 0 or 1; avoid rounding errors.
  low = middle - spread if correct else 0.0
  return low, middle + spread if correct < total else 1.0


def accuracy_intervals(
  results: Mapping[str, float],
) -> dict[str, tuple[float, float] | None]:
  """Returns Wilson's intervals of accuracies over `examples`; None for nan."""
  total = int(results['examples'])
  return {
    name: wilson(round(x * total), total) if math.isfinite(x) else None
    for name, x in results.items()
    if name.endswith('accuracy')
  }


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
  """Returns the expected calibration error over 15 bins of equal width.

  That is the difference between accuracy and mean confidence in each bin,
  averaged over the examples (arXiv:1706.04599, equation 3).

  confidence: float [N], the probability of the predicted class.
  correct: bool [N], whether the prediction is correct.
  """
  # Bin m is ((m - 1) / M, m / M].
  bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
  gaps = np.bincount(bins, correct.astype(np.float64) - confidence, _BINS)
  return float(np.abs(gaps).sum() / len(confidence))


def confusion(
  label: np.ndarray, prediction: np.ndarray, num_classes: int
) -> np.ndarray:
  """Counts examples, int64 [true class, predicted class].

  label: int [N].
  prediction: int [N].
  """
  pairs = label.astype(np.int64) * num_classes + prediction
  counts = np.bincount(pairs, minlength=num_classes**2)
  return counts.reshape(num_classes, num_classes)


def summarize(
  results: Mapping[str, float], predictions: Predictions, names: Sequence[str]
) -> dict[str, Any]:
  """Returns what `--format=json` prints."""
  total, k = predictions.top.shape
  hits = predictions.top == predictions.label[:, None]
  correct = hits[:, 0]
  right = np.bincount(predictions.label[correct], minlength=len(names)).tolist()
  count = np.bincount(predictions.label, minlength=len(names)).tolist()
  matrix = None
  if len(names) <= _MOST_CONFUSED:
    best = predictions.top[:, 0]
    matrix = confusion(predictions.label, best, len(names)).tolist()
  return {
    'examples': total,
    **_rate('accuracy', round(results['accuracy'] * total), total),
    'k': k,
    **_rate('top_k_accuracy', int(hits.sum()), total),
    'loss': _finite(results['loss']),
    'calibration_error': _finite(
      calibration_error(predictions.probability[:, 0], correct)
    ),
    'classes': [
      {'name': name, 'examples': n, **_rate('accuracy', hits, n)}
      for name, hits, n in zip(names, right, count, strict=True)
    ],
    'confusion': matrix,
  }


def _rate(name: str, correct: int, total: int) -> dict[str, Any]:
  rate = correct / total if total else None
  return {name: rate, f'{name}_interval': wilson(correct, total)}


def _finite(x: float) -> float | None:
  return float(x) if math.isfinite(x) else None  # JSON has no NaN


def summarize_probe(
  evaluator: Evaluator, train_examples: int | None, results: Mapping[str, float]
) -> dict[str, Any]:
  """Returns what `--probe` with `--format=json` prints."""
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
  return tables.Table((), rows).text() + '\n'


def as_text(summary: Mapping[str, Any]) -> str:
  """Returns what `--format=table` prints: a summary for people."""
  labels = {
    'examples': 'examples',
    'accuracy': 'accuracy',
    'top_k_accuracy': f'top-{summary["k"]}',
    'loss': 'loss',
    'calibration_error': 'calibration error',
  }
  rows = [(x, *_measured(summary, name)) for name, x in labels.items()]
  parts = [tables.Table((), rows).text(), *_class_parts(summary)]
  return '\n\n'.join(parts) + '\n'


def _class_parts(summary: Mapping[str, Any]) -> list[str]:
  """Returns tables of classes: their accuracy, and what is confused."""
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
  if not few:
    return [f'the {_MOST_SHOWN} worst classes (--format=json has all)\n{table}']
  matrix = summary['confusion']
  counts = tables.Table(
    ('', *map(str, range(len(matrix)))),
    [(i, *row) for i, row in enumerate(matrix)],
  )
  return [
    table,
    'confusion: a row is a true class, a column a predicted one\n'
    + counts.text(tables.room()),
  ]


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
  """Returns metrics as a table, those of classes and the worst examples."""
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
  return '\n\n'.join(parts) + '\n'


def _metrics_of_classes(
  summary: Mapping[str, Any], keys: Sequence[str]
) -> list[str]:
  """Returns a table with a row for each class; [] without such metrics."""
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

  rows: `index` and measures of single examples, [N] each.
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
