"""What is learned: the object that `config.objective` stands for."""

from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax.objectives.base import Batch
from vit_jax.objectives.base import Objective
from vit_jax.objectives.base import Params
from vit_jax.objectives.base import Scalars
from vit_jax.objectives.classification import Classification

__all__ = ['Batch', 'Objective', 'Params', 'Scalars', 'check', 'create']

_OBJECTIVES = {'classification': Classification}


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.objective`, and the metric that the best is chosen by.

  Raises:
    UserError: There is no such objective or metric.
  """
  config_lib.one_of(config, 'objective.name', tuple(_OBJECTIVES))
  metrics = _OBJECTIVES[config.objective.name].metric_names
  best = config.checkpoint.best
  if best and best.partition('/')[2] not in metrics:
    name = best.partition('/')[0]
    raise config_lib.UserError(
      f'config.checkpoint.best is {best!r}: choose one of'
      f' {", ".join(f"{name}/{metric}" for metric in metrics)}'
    )


def create(config: ml_collections.ConfigDict, *args: Any) -> Objective:
  """Returns the objective of a config.

  Args:
    config: The full config, with the number of classes.
    *args: Passed on: the transforms of images.
  """
  return _OBJECTIVES[config.objective.name](config, *args)
