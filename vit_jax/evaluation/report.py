"""Reports on a classifier, with confidence intervals, as JSON and as text."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import numpy as np

from vit_jax.config import tables
from vit_jax.evaluation.base import Evaluator
from vit_jax.evaluation.predictions import Predictions

_Z = 1.959963984540054  # 95% of a normal distribution lie within +-z
_BINS = 15  # bins of the confidence, as in arXiv:1706.04599
_MOST_CONFUSED = 2000  # classes; the matrix grows with the square
_WORST = 10  # examples that are listed
_MOST_SHOWN = 20  # classes in a table


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
  found: Mapping[str, float],
) -> dict[str, tuple[float, float] | None]:
  """Returns Wilson's intervals of accuracies over `examples`; None for nan."""
  total = int(found['examples'])
  return {
    name: wilson(round(x * total), total) if math.isfinite(x) else None
    for name, x in found.items()
    if name.endswith('accuracy')
  }


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
  """Returns the expected calibration error over 15 bins of equal width.

  That is the difference between accuracy and mean confidence in each bin,
  averaged over the examples (arXiv:1706.04599, equation 3).

  Args:
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

  Args:
    label: int [N].
    prediction: int [N].
    num_classes: K.
  """
  pairs = label.astype(np.int64) * num_classes + prediction
  counts = np.bincount(pairs, minlength=num_classes**2)
  return counts.reshape(num_classes, num_classes)


def summarize(
  found: Mapping[str, float], predictions: Predictions, names: Sequence[str]
) -> dict[str, Any]:
  """Returns what `--format=json` prints.

  Args:
    found: accuracy and loss, as measured by the objective.
    predictions: Predicted classes of at least one example.
    names: Names of the model's classes.
  """
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
    **_rate('accuracy', round(found['accuracy'] * total), total),
    'k': k,
    **_rate('top_k_accuracy', int(hits.sum()), total),
    'loss': _finite(found['loss']),
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
  evaluator: Evaluator, train_examples: int | None, found: Mapping[str, float]
) -> dict[str, Any]:
  """Returns what `--probe` with `--format=json` prints.

  Args:
    evaluator: The evaluator that was run.
    train_examples: Number of examples that it learned from, if any.
    found: Its results, only numbers.
  """
  summary: dict[str, Any] = {'probe': evaluator.spec.kind}
  if 'k' in evaluator.keys:
    summary['k'] = evaluator.spec.k
  if train_examples is not None:
    summary['train_examples'] = train_examples
  if 'examples' in found:
    summary['examples'] = int(found['examples'])
  bounds = evaluator.intervals(found)
  hidden = {'examples', *(f'{name}_margin' for name in bounds)}
  for name, x in found.items():
    if name in hidden:
      continue
    summary[name] = _finite(x)
    if name in bounds:
      summary[f'{name}_interval'] = bounds[name]
  return summary


def probe_as_text(summary: Mapping[str, Any]) -> str:
  """Returns what `--probe` with `--format=table` prints."""
  shown = {
    name: x for name, x in summary.items() if not name.endswith('_interval')
  }
  rows = []
  for name, x in shown.items():
    value = x
    if summary.get(f'{name}_interval'):
      value = _show_rate(summary, name)
    elif x is None or isinstance(x, float):
      value = 'nan' if x is None else f'{x:.4g}'
    rows.append((name.replace('_', ' '), str(value)))
  return '\n'.join([*tables.aligned(rows), ''])


def as_text(summary: Mapping[str, Any]) -> str:
  """Returns what `--format=table` prints: a summary for people."""
  lines = tables.aligned(
    [
      ('examples', str(summary['examples'])),
      ('accuracy', _show_rate(summary, 'accuracy')),
      (f'top-{summary["k"]}', _show_rate(summary, 'top_k_accuracy')),
      ('loss', _show(summary['loss'])),
      ('calibration error', _show(summary['calibration_error'])),
    ]
  )
  return '\n'.join([*lines, '', *_class_lines(summary), ''])


def _class_lines(summary: Mapping[str, Any]) -> list[str]:
  classes = list(enumerate(summary['classes']))
  few = len(classes) <= _MOST_SHOWN
  if not few:
    seen = [(i, x) for i, x in classes if x['examples']]
    classes = sorted(seen, key=lambda c: c[1]['accuracy'])[:_MOST_SHOWN]
  rows = [
    (str(i), x['name'], str(x['examples']), _show_rate(x, 'accuracy'))
    for i, x in classes
  ]
  header = '', 'class', 'examples', 'accuracy'
  lines = tables.aligned([header, *rows], right=(0, 2))
  if not few:
    return [f'the {_MOST_SHOWN} worst classes (--format=json has all)', *lines]
  matrix = summary['confusion']
  counts = [['', *map(str, range(len(matrix)))]]
  counts += [[str(i), *map(str, row)] for i, row in enumerate(matrix)]
  return [
    *lines,
    '',
    'confusion: a row is a true class, a column a predicted one',
    *tables.aligned(counts, right=range(len(counts))),
  ]


def _show(x: float | None) -> str:
  return 'nan' if x is None else f'{x:.4f}'


def _show_rate(summary: Mapping[str, Any], name: str) -> str:
  low, high = summary[f'{name}_interval']
  return f'{_show(summary[name])}  (95%: {low:.4f} to {high:.4f})'


def metrics_as_text(summary: Mapping[str, Any]) -> str:
  """Returns metrics by name, a line each, and the worst examples."""
  numbers = {k: x for k, x in summary.items() if isinstance(x, float | int)}
  cells = []
  for name, x in numbers.items():
    low, high = summary.get(f'{name}_interval', (None, None))
    shown = '' if low is None else f'  (95%: {low:.4g} to {high:.4g})'
    cells.append((name, f'{x:.6g}{shown}'))
  lines = tables.aligned(cells)
  for name, rows in summary.get('worst', {}).items():
    lines += ['', f'the examples with the lowest {name}']
    lines += tables.aligned(
      [(str(x['index']), f'{x[name]:.4f}', x['file'] or '') for x in rows],
      right=(0, 1),
    )
  return ''.join(f'{line}\n' for line in lines)


def worst(
  rows: Mapping[str, np.ndarray], files: Sequence[str | None]
) -> dict[str, list[dict[str, Any]]]:
  """Returns the examples with the lowest value of each measure.

  Args:
    rows: `index` and measures of single examples, [N] each.
    files: Path of each example, None where it has none.
  """
  found = {}
  for name, values in rows.items():
    if name == 'index':
      continue
    order = np.argsort(values, kind='stable')[:_WORST]
    found[name] = [
      {
        'index': int(rows['index'][i]),
        name: float(values[i]),
        'file': files[i],
      }
      for i in order
      if np.isfinite(values[i])
    ]
  return found


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
