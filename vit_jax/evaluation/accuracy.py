"""The metrics of the objective, such as accuracy and loss."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import functools
from typing import Any

import jax
import numpy as np

from vit_jax.evaluation import base
from vit_jax.evaluation import metrics
from vit_jax.evaluation import predictions


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
    return _total(context, context.apply(measure, self.spec.split))

  def run_with_predictions(
    self,
    context: base.Context,
    head: predictions.Head | None,
    on_host: Callable[[np.ndarray, np.ndarray], Any] | None = None,
  ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the metrics, and the predictions for each example.

    Args:
      context: As for `run`.
      head: Interprets the outputs; None: they predict no feature.
      on_host: Maps labels and predicted classes of places, int [B, ...], to
        further columns by name.

    Returns:
      The metrics, and columns of N rows in the order of the split: `index` and
      what the objective's `of_each` and `Head.read` return.
    """

    def measure_with_rows(
      objective: Any, params: Any, batch: dict[str, jax.Array]
    ) -> Any:
      outputs = objective.outputs(params, batch)
      rows = {'index': batch['index']} | objective.of_each(outputs, batch)
      rows |= head.read(outputs, batch) if head else {}
      maps = (batch['map'], outputs['segments']) if on_host else ()
      return objective.measure(outputs, batch), rows, batch['valid'], maps

    batches = []
    for total, rows, valid, maps in context.apply(
      measure_with_rows, self.spec.split
    ):
      host_rows = on_host(*maps) if on_host else {}
      batches.append((total, rows | host_rows, valid))
    columns = {
      name: np.concatenate([rows[name][valid] for _, rows, valid in batches])
      for name in batches[0][1]
    }
    return _total(context, (total for total, *_ in batches)), columns


def _total(context: base.Context, parts: Iterable[Any]) -> dict[str, Any]:
  """Merges the metrics of batches, and returns their values by name."""
  merged = functools.reduce(lambda total, x: total.merge(x), parts)
  values = dict(merged.compute())
  arrays = {k: np.asarray(values.pop(k)) for k in ('confusion',) if k in values}
  _check_shapes(context, values, arrays)
  return metrics.scalars(values, context.features, context.target) | arrays


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
