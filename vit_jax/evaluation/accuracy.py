"""The metrics of the objective, such as accuracy and loss."""

from collections.abc import Iterable
from collections.abc import Mapping
import functools
from typing import Any

import jax
import numpy as np

from vit_jax.evaluation import base
from vit_jax.evaluation import metrics


def measure(objective: Any, params: Any, batch: dict[str, jax.Array]) -> Any:
  """Returns the objective's metrics of a batch, a `clu.metrics.Collection`."""
  return objective.measure(objective.outputs(params, batch), batch)


class Accuracy(base.Evaluator):
  """The metrics of the objective; each example counts once.

  `metrics` are those of the objective: see `objectives.directions`.
  """

  metrics = None

  def run(self, context: base.Context) -> dict[str, Any]:
    """Returns the objective's metrics."""
    return total(context, context.apply(measure, self.spec.split))


def total(context: base.Context, parts: Iterable[Any]) -> dict[str, Any]:
  """Merges the metrics of batches, and returns their values by name."""
  merged = functools.reduce(lambda total, x: total.merge(x), parts)
  numbers = dict(merged.compute())
  matrices = {
    name: np.asarray(numbers.pop(name))
    for name in ('confusion',)
    if name in numbers
  }
  _check_shapes(context, numbers, matrices)
  return metrics.scalars(numbers, context.features, context.target) | matrices


def _check_shapes(
  context: base.Context,
  numbers: Mapping[str, Any],
  matrices: Mapping[str, np.ndarray],
) -> None:
  """Raises an EvaluationError if a metric of the objective cannot be shown."""
  lengths = {len(x.names) for x in context.features.values() if x.names}
  for name, x in numbers.items():
    if len(shape := np.shape(x)) > 1 or (shape and shape[0] not in lengths):
      raise base.EvaluationError(
        f'measure returns {name!r} of the shape {shape}: a metric is one'
        ' number, or one for each name of a feature'
      )
  for name, x in matrices.items():
    if x.ndim != 2 or x.shape[0] != x.shape[1]:
      raise base.EvaluationError(
        f'measure returns {name!r} of the shape {x.shape}: a metric of that'
        ' name is a matrix [classes, classes], so give this another name'
      )
