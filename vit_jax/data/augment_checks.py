"""Checks `config.augment`, where it asks for anything."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import augmentations
from vit_jax.data.device import policies


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.augment`, but for what clips and sounds get.

  Raises:
    UserError: A value cannot be used.
  """
  augment = config.augment
  if augment.policy:
    with config_lib.explained('config.augment.policy'):
      policies.make(augment.policy)
  augmentations.make(augment.jitter, 'augment.jitter')
  augmentations.make(augment.erase, 'augment.erase')
  for key in ('gray', 'blur', 'solarize'):
    config_lib.within(config, f'augment.{key}', '(-inf, inf)')
    if not all(0 <= x <= 1 for x in augment[key]):
      raise UserError(
        f'config.augment.{key} is {tuple(augment[key])}: write probabilities,'
        ' from 0 to 1: one for each crop of an image, or one for all'
      )
  single = ('mix_probability', 'cutmix_share')
  for key in (*single, *(f'volume.{key}' for key in augment.volume)):
    config_lib.within(config, f'augment.{key}', '[0, 1]')
  config_lib.within(config, 'augment.mixup', '[0, inf)')
  config_lib.within(config, 'augment.cutmix', '[0, inf)')
  if not 1 <= augment.repeats <= config.train.batch_size:
    raise UserError(
      f'config.augment.repeats is {augment.repeats}: it must be from 1 to'
      f' config.train.batch_size={config.train.batch_size}'
    )
  _check_pairs(config)


def _check_pairs(config: ml_collections.ConfigDict) -> None:
  """Checks that both images of a mixed pair are in one microbatch."""
  augment, batch_size = config.augment, config.train.batch_size
  parts = config_lib.num_microbatches(config)
  mixes = (augment.mixup or augment.cutmix) and augment.mix_probability
  if mixes and batch_size % (2 * parts):
    in_parts = f' in each of config.train.accumulation={parts} parts'
    if parts > config_lib.accumulation(config):
      in_parts = f' in each of {parts} groups of config.optim.sam'
    in_parts = in_parts if parts > 1 else ''
    raise UserError(
      f'config.augment mixes pairs of images{in_parts}: make'
      f' config.train.batch_size={batch_size} a multiple of {2 * parts}, or set'
      ' config.augment.mixup=0 and config.augment.cutmix=0'
    )
