"""The metrics of the objective, such as accuracy and loss."""

from collections.abc import Callable
from collections.abc import Iterable
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

    def both(objective: Any, params: Any, batch: dict[str, jax.Array]) -> Any:
      outputs = objective.outputs(params, batch)
      rows = {'index': batch['index']} | objective.of_each(outputs, batch)
      rows |= head.read(outputs, batch) if head else {}
      maps = (batch['map'], outputs['segments']) if on_host else ()
      return objective.measure(outputs, batch), rows, batch['valid'], maps

    found = []
    for total, rows, valid, maps in context.apply(both, self.spec.split):
      further = on_host(*maps) if on_host else {}
      found.append((total, rows | further, valid))
    columns = {
      name: np.concatenate([rows[name][valid] for _, rows, valid in found])
      for name in found[0][1]
    }
    return _total(context, (total for total, *_ in found)), columns


def _total(context: base.Context, parts: Iterable[Any]) -> dict[str, Any]:
  """Merges the metrics of batches, and returns their values by name."""
  merged = functools.reduce(lambda total, x: total.merge(x), parts)
  found = dict(merged.compute())
  shown = {k: np.asarray(found.pop(k)) for k in ('confusion',) if k in found}
  return metrics.scalars(found, context.features, context.target) | shown
