"""The metrics of an objective, with measures of single examples."""

from collections.abc import Callable
from typing import Any
from typing import Protocol
from typing import runtime_checkable

import jax
import numpy as np

from vit_jax.evaluation import accuracy
from vit_jax.evaluation import base
from vit_jax.evaluation import predictions


@runtime_checkable
class MeasuresExamples(Protocol):
  """An objective with measures of single examples."""

  def example_measures(
    self, outputs: dict[str, jax.Array], batch: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    """Returns measures of single examples, [B] each, for reports.

    Those with further axes are for intervals, and in no table.
    """


def measure(
  context: base.Context,
  split: str,
  head: predictions.Head | None,
  on_host: Callable[[np.ndarray, np.ndarray], Any] | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Returns the metrics of a split, and the predictions for each example.

  head: Interprets the outputs; None: they predict no feature.
  on_host: Maps labels and predicted classes of places, int [B, ...], to further
  columns by name.
  The metrics, and columns of N rows in the order of the split: `index`, what
  `Head.read` returns, and the measures of the objective.
  """

  def measured(objective: Any, params: Any, batch: dict[str, jax.Array]) -> Any:
    outputs = objective.outputs(params, batch)
    rows = {'index': batch['index']}
    if isinstance(objective, MeasuresExamples):
      rows |= objective.example_measures(outputs, batch)
    rows |= head.read(outputs, batch) if head else {}
    maps = (batch['map'], outputs['segments']) if on_host else ()
    return objective.measure(outputs, batch), rows, batch['valid'], maps

  parts = []
  for total, rows, valid, maps in context.apply(measured, split):
    map_columns = on_host(*maps) if on_host else {}
    parts.append((total, rows | map_columns, valid))
  columns = {
    name: np.concatenate([rows[name][valid] for _, rows, valid in parts])
    for name in parts[0][1]
  }
  return accuracy.total(context, (total for total, *_ in parts)), columns
