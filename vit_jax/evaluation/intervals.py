"""Intervals of repeated measurements, such as runs with several seeds."""

from collections.abc import Sequence
import math
import statistics

_LEVEL = 0.95


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
  """Returns the mean, and half the width of its 95% interval.

  It is Student's interval, for independent, normally distributed values: the
  true mean is within mean +- half with a probability of 95%.

  The mean, and half the width; the latter is nan for a single value, which does
  not show the spread.
  """
  from scipy import special  # here, since its import is slow

  count = len(values)
  mean = statistics.fmean(values)
  if count == 1 or not math.isfinite(mean):
    return mean, math.nan
  t = float(special.stdtrit(count - 1, (1 + _LEVEL) / 2))
  return mean, t * statistics.stdev(values) / math.sqrt(count)
