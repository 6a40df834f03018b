"""Intervals of rates, and of repeated measurements such as runs of seeds."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
import statistics

_LEVEL = 0.95
_Z = 1.959963984540054  # 95% of a normal distribution lie within +-z


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
  """Returns the mean of values, and half the width of its 95% interval.

  It is Student's interval, for independent, normally distributed values: the
  true mean is within mean +- half with a probability of 95%. The half is nan
  for a single value, which does not show the spread.
  """
  from scipy import special  # here, since its import is slow

  count = len(values)
  mean = statistics.fmean(values)
  if count == 1 or not math.isfinite(mean):
    return mean, math.nan
  t = float(special.stdtrit(count - 1, (1 + _LEVEL) / 2))
  return mean, t * statistics.stdev(values) / math.sqrt(count)


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
