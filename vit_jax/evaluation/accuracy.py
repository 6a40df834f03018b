"""The metrics of the objective, such as accuracy and loss."""

from collections.abc import Iterable
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

  The objective has their directions: see `objectives.directions`.
  """

  metrics = None

  def run(self, context: base.Context) -> dict[str, Any]:
    """Returns the objective's metrics."""
    return total(context, context.apply(measure, self.spec.split))


def total(context: base.Context, parts: Iterable[Any]) -> dict[str, Any]:
  """Merges the metrics of batches, and returns their values by name.

  It raises an EvaluationError if a metric of the objective cannot be shown.
  """
  merged = functools.reduce(lambda total, x: total.merge(x), parts)
  numbers = dict(merged.compute())
  matrix = numbers.pop('confusion', None)
  lengths = {len(x.names) for x in context.features.values() if x.names}
  for name, x in numbers.items():
    if len(shape := np.shape(x)) > 1 or (shape and shape[0] not in lengths):
      raise base.EvaluationError(
        f'measure returns {name!r} of the shape {shape}: a metric is one'
        ' number, or one for each name of a feature'
      )
  scalars = metrics.scalars(numbers, context.features, context.target)
  if matrix is None:
    return scalars
  shape = np.shape(matrix)
  if len(shape) != 2 or shape[0] != shape[1]:
    raise base.EvaluationError(
      f"measure returns 'confusion' of the shape {shape}: a metric of that"
      ' name is a matrix [classes, classes], so give this another name'
    )
  return scalars | {'confusion': np.asarray(matrix)}
