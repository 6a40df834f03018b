"""Intervals for what was measured several times, as with several seeds."""

from collections.abc import Sequence
import math
import statistics

_LEVEL = 0.95


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
  """Returns the mean, and half the width of its 95% interval.

  Student's, for independent values with a normal spread: the mean of all seeds
  lies within mean - half to mean + half with a probability of 95%.

  Args:
    values: At least one.

  Returns:
    The mean, and half the width: nan where there is a single value, which says
    nothing of the spread.
  """
  from scipy import special  # it takes its time to import

  count = len(values)
  mean = statistics.fmean(values)
  if count == 1 or not math.isfinite(mean):
    return mean, math.nan
  t = float(special.stdtrit(count - 1, (1 + _LEVEL) / 2))
  return mean, t * statistics.stdev(values) / math.sqrt(count)
