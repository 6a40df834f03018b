"""What is learned: the object that `config.objective` stands for."""

import math
from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax.evaluation import probes
from vit_jax.objectives import distillation
from vit_jax.objectives import losses
from vit_jax.objectives.base import Batch
from vit_jax.objectives.base import Objective
from vit_jax.objectives.base import Params
from vit_jax.objectives.base import Scalars
from vit_jax.objectives.classification import Classification

__all__ = [
  'Batch',
  'Objective',
  'Params',
  'Scalars',
  'check',
  'create',
]

_OBJECTIVES = {
  'classification': Classification,
  'distillation': distillation.Distillation,
}


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.objective`, and the metric that the best is chosen by.

  Raises:
    UserError: A value cannot work, or there is no such metric.
  """
  config_lib.one_of(config, 'objective.name', tuple(_OBJECTIVES))
  config_lib.one_of(config, 'objective.loss', losses.NAMES)
  objective = config.objective
  _check_class_weights(config)
  for key in ('label_smoothing', 'teacher_weight'):
    if not 0 <= objective[key] <= 1:
      raise config_lib.UserError(
        f'config.objective.{key} is {objective[key]}: it must be in [0, 1]'
      )
  if not objective.temperature > 0:
    raise config_lib.UserError(
      f'config.objective.temperature is {objective.temperature}: it must be'
      ' more than 0'
    )
  if objective.name == 'distillation':
    distillation.check(config)
  elif objective.teacher:
    raise config_lib.UserError(
      f'config.objective.teacher is {objective.teacher!r}, but nobody listens:'
      " set config.objective.name to 'distillation'"
    )
  elif config.model.distillation_token and not config.init_from.path:
    raise config_lib.UserError(
      'config.model.distillation_token is True, but nobody teaches: set'
      " config.objective.name to 'distillation', and its teacher"
    )
  best = config.checkpoint.best
  name, _, metric = best.partition('/')
  metrics: tuple[str, ...] = _OBJECTIVES[objective.name].metric_names
  if best and config.evals[name].kind != 'accuracy':
    metrics = probes.metric_names(config.evals[name])
  if best and metric not in metrics:
    raise config_lib.UserError(
      f'config.checkpoint.best is {best!r}: choose one of'
      f' {", ".join(f"{name}/{metric}" for metric in metrics)}'
    )


def _check_class_weights(config: ml_collections.ConfigDict) -> None:
  given = config.objective.class_weights
  words = isinstance(given, str) and given
  if words and given not in losses.WEIGHTS:
    raise config_lib.UserError(
      f'config.objective.class_weights is {given!r}: write a number for each'
      f' class, or one of {", ".join(map(repr, losses.WEIGHTS))}'
    )
  numbers = given if isinstance(given, tuple | list) else ()
  is_number = all(isinstance(x, int | float) for x in numbers)
  if not isinstance(given, str | tuple | list) or not (
    is_number and all(0 < x < math.inf for x in numbers)
  ):
    raise config_lib.UserError(
      f'config.objective.class_weights is {given!r}: it must hold numbers that'
      ' are more than 0, one for each class'
    )
  if words and config.data.balance:
    raise config_lib.UserError(
      f'config.objective.class_weights={given!r} and'
      f' config.data.balance={config.data.balance!r} both make up for rare'
      ' classes, which would then count too much: set one of them'
    )
  counts = config.objective.class_counts
  if counts is not None and not (
    counts
    and all(isinstance(x, int) and x >= 0 for x in counts)
    and any(counts)
  ):
    raise config_lib.UserError(
      f'config.objective.class_counts is {counts}: it must hold the number of'
      ' images of each class, some more than 0'
    )


def create(config: ml_collections.ConfigDict, *args: Any) -> Objective:
  """Returns the objective of a config.

  Args:
    config: The full config, with the number of classes.
    *args: Passed on: the transforms of images.
  """
  return _OBJECTIVES[config.objective.name](config, *args)
