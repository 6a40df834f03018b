"""An objective's metrics on a whole split, outside of training."""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import functools
from typing import Any

import jax
import ml_collections
import numpy as np

from vit_jax import data
from vit_jax.data import features as features_lib
from vit_jax.data.device import views
from vit_jax.evaluation import applied
from vit_jax.evaluation import metrics
from vit_jax.objectives import base


def measure(
  objective: base.Objective,
  params: base.Params,
  source: data.Source,
  config: ml_collections.ConfigDict,
  progress: Callable[[int], object],
) -> tuple[dict[str, float], dict[str, list[Any]]]:
  """Applies an objective's model to each example of a split once.

  Args:
    objective: Made for the features of the source.
    params: Of the objective.
    source: The split.
    config: Says how it is read; `train.batch_size` at a time.
    progress: Is called with the number of examples that were measured.

  Returns:
    The metrics by name, and columns with the true and the predicted value of
    each name of the target.

  Raises:
    UserError: An image cannot be read.
  """
  prepare = views.eval_transform(config, source.image_shape)

  def apply(params: Any, batch: Mapping[str, jax.Array]) -> Any:
    prepared = {**batch, 'image': prepare(batch['image'])}
    outputs = objective.outputs(params, prepared)
    return outputs, objective.measure(outputs, prepared)

  size = config.train.batch_size
  run = applied.Applied(apply, params, size)
  totals, parts = [], []
  with contextlib.closing(
    data.eval_batches(source, config, batch_size=size)
  ) as batches:
    for batch, (outputs, total) in run((x, x) for x in batches):
      totals.append(total)
      parts.append(_columns(objective, source, batch, outputs))
      progress(int(batch['valid'].sum()))
  total = functools.reduce(lambda total, x: total.merge(x), totals)
  columns: dict[str, list[Any]] = {
    name: np.concatenate([part[name] for part in parts]).tolist()
    for name in parts[0]
  }
  columns['file'] = [source.file(i) for i in range(len(source))]
  return metrics.scalars(total.compute(), source.features), columns


def _columns(
  objective: base.Objective,
  source: data.Source,
  batch: Mapping[str, np.ndarray],
  outputs: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns true and predicted values of a batch, by the names of columns."""
  real = batch['valid']
  columns = {'index': batch['index'][real]}
  if objective.target is None:
    return columns
  name, _ = objective.target
  predicted = outputs.get('numbers')
  if predicted is None:  # of classes
    predicted = 1 / (1 + np.exp(-np.asarray(outputs['logits'], np.float64)))
  truth = batch[name]
  assert isinstance(source.features[name], features_lib.Target)
  for i, each in enumerate(source.features[name].names):
    columns[each] = truth[real, i]
    columns[f'{each}_predicted'] = predicted[real, i]
  return columns
