"""Optimizers, SAM, learning-rate schedules and per-parameter rules."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.optim import optimizers
from vit_jax.optim import rules
from vit_jax.optim import schedules
from vit_jax.optim.optimizers import make_optimizer
from vit_jax.optim.optimizers import Optimizer
from vit_jax.optim.schedules import check_lengths
from vit_jax.optim.schedules import half_cosine
from vit_jax.optim.schedules import Lengths
from vit_jax.optim.schedules import make_decay
from vit_jax.optim.schedules import make_schedule

__all__ = [
  'Lengths',
  'Optimizer',
  'check',
  'check_lengths',
  'half_cosine',
  'make_decay',
  'make_optimizer',
  'make_schedule',
]


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the values of `config.optim`.

  Raises:
    UserError: One of them cannot work.
  """
  optimizers.check(config)
  schedules.check(config)
  rules.check(config)
  _check_sam(config)


def _check_sam(config: ml_collections.ConfigDict) -> None:
  """Checks `config.optim.sam`; raises a UserError."""
  sam, train = config.optim.sam, config.train
  for key in ('rho', 'rho_min', 'alpha'):
    config_lib.at_least(config, f'optim.sam.{key}', 0)
  if sam.rho_min is not None and sam.rho_min > sam.rho:
    raise config_lib.UserError(
      f'config.optim.sam.rho_min is {sam.rho_min}: it must be at most'
      f' config.optim.sam.rho, {sam.rho}'
    )
  if sam.alpha and not sam.rho:
    raise config_lib.UserError(
      f'config.optim.sam.alpha is {sam.alpha}, but config.optim.sam.rho is 0,'
      ' so that there is no perturbation: set rho, or alpha=0'
    )
  config_lib.at_least(config, 'optim.sam.groups', 1)
  if not sam.rho:
    return
  parts = config_lib.accumulation(config)
  if sam.groups % parts or train.batch_size % sam.groups:
    raise config_lib.UserError(
      f'config.optim.sam.groups is {sam.groups}: it must be a multiple of'
      f' config.train.accumulation={parts} and divide'
      f' config.train.batch_size={train.batch_size}'
    )
