"""Optimizers, SAM, learning-rate schedules and per-parameter rules."""

from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.optim import optimizers
from vit_jax.optim import rules
from vit_jax.optim import schedules
from vit_jax.optim.optimizers import make_optimizer as make_optimizer
from vit_jax.optim.optimizers import Optimizer as Optimizer
from vit_jax.optim.schedules import check_lengths as check_lengths
from vit_jax.optim.schedules import half_cosine as half_cosine
from vit_jax.optim.schedules import Lengths as Lengths
from vit_jax.optim.schedules import make_decay as make_decay
from vit_jax.optim.schedules import make_schedule as make_schedule
from vit_jax.optim.schedules import schedule as schedule


def check(config: ConfigDict) -> None:
  """Checks the values of `config.optim`."""
  optimizers.check(config)
  schedules.check(config)
  rules.check(config)
  sam, train = config_lib.sam(config), config.train
  parts = config_lib.accumulation(config)
  if sam and (sam.groups % parts or train.batch_size % sam.groups):
    raise config_lib.UserError(
      f'config.optim.sam={config.optim.sam}: groups is {sam.groups}: it must be'
      f' a multiple of config.train.accumulation={parts} and divide'
      f' config.train.batch_size={train.batch_size}'
    )
