"""Checks of a config whose head has a batch norm."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.objectives import base


def check(config: ml_collections.ConfigDict, cls: type[base.Objective]) -> None:
  """Checks that running statistics of the head are measured, and exactly.

  Args:
    config: The full config.
    cls: Class of the objective.
  """
  problem = f'config.model.head is {config.model.head!r}, but config.{{}}'
  if not cls.moves_statistics:
    raise config_lib.UserError(
      problem.format(f'objective.name={config.objective.name}')
      + " does not measure its statistics: leave norm='batch' out"
    )
  if config_lib.num_microbatches(config) > 1:
    raise config_lib.UserError(
      problem.format(f'train.accumulation is {config.train.accumulation}')
      + ', and its statistics are those of the whole batch: set it to 1'
    )
  if config.model.distillation_token:
    raise config_lib.UserError(
      problem.format('model.distillation_token is True')
      + ": a model with two heads has none, leave norm='batch' out"
    )
  if config.train.batch_size < 2:
    raise config_lib.UserError(
      problem.format('train.batch_size is 1')
      + ', which has no variance: make it at least 2'
    )
