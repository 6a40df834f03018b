"""Checks `config.augment`, where it asks for anything."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import checks
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
  for key in ('jitter', 'erase_area', 'erase_ratio'):
    config_lib.check_numbers(config, f'augment.{key}')
  jitter = augment.jitter
  if len(jitter) not in (0, 4) or min(jitter, default=0) < 0:
    raise UserError(
      f'config.augment.jitter is {tuple(jitter)}: write the strengths of'
      ' brightness, contrast, saturation and hue, each at least 0; or () for'
      ' none'
    )
  if jitter and jitter[3] > 0.5:
    raise UserError(
      f'config.augment.jitter is {tuple(jitter)}: the last, of the hue, must be'
      ' at most 0.5, half of the circle'
    )
  for key in ('gray', 'blur', 'solarize'):
    config_lib.check_numbers(config, f'augment.{key}')
    if not all(0 <= x <= 1 for x in augment[key]):
      raise UserError(
        f'config.augment.{key} is {tuple(augment[key])}: write probabilities,'
        ' from 0 to 1: one for each crop of an image, or one for all'
      )
  single = ('jitter_probability', 'erase', 'mix_probability', 'cutmix_share')
  for key in (*single, *(f'volume.{key}' for key in augment.volume)):
    config_lib.share(config, f'augment.{key}')
  checks.check_range('augment.erase_area', augment.erase_area, most=1)
  checks.check_range('augment.erase_ratio', augment.erase_ratio)
  config_lib.at_least(config, 'augment.mixup', 0)
  config_lib.at_least(config, 'augment.cutmix', 0)
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
  is_sam = parts > config_lib.accumulation(config)
  key = 'optim.sam.groups' if is_sam else 'train.accumulation'
  mixes = (augment.mixup or augment.cutmix) and augment.mix_probability
  if mixes and batch_size % (2 * parts):
    in_parts = f' in each of config.{key}={parts} parts' if parts > 1 else ''
    raise UserError(
      f'config.augment mixes pairs of images{in_parts}: make'
      f' config.train.batch_size={batch_size} a multiple of {2 * parts}, or set'
      ' config.augment.mixup=0 and config.augment.cutmix=0'
    )
