"""Checks `config.augment`, where it asks for anything."""

from collections.abc import Mapping
import inspect
import re
from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import augmentations
from vit_jax.data import features as features_lib
from vit_jax.data.host import geometry


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.augment`, but for what clips and sounds get."""
  augment = config.augment
  _check_syntax(augment.policy)
  for key in augmentations.CHOICES:
    augmentations.make(config_lib.value_at(config, key), key)
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
  batch_size = config.train.batch_size
  if not 1 <= augment.repeats <= batch_size:
    raise UserError(
      f'config.augment.repeats is {augment.repeats}: it must be from 1 to'
      f' config.train.batch_size={batch_size}'
    )
  # Both images of a mixed pair are in one microbatch.
  parts = config_lib.num_microbatches(config)
  if augmentations.mixes(augment) and batch_size % (2 * parts):
    in_parts = ''
    if parts > config_lib.accumulation(config):
      in_parts = f' in each of {parts} groups of config.optim.sam'
    elif parts > 1:
      in_parts = f' in each of config.train.accumulation={parts} parts'
    raise UserError(
      f'config.augment mixes pairs of images{in_parts}: make'
      f' config.train.batch_size={batch_size} a multiple of {2 * parts}, or set'
      ' config.augment.mixup=0 and config.augment.cutmix=0'
    )


def _check_syntax(policy: Any) -> None:
  """Raises a UserError that translates a policy in the syntax of timm.

  Where an option or its value is not known, it lists the options.
  """
  if not isinstance(policy, str) or not policy.startswith('rand-'):
    return
  pairs = [x for x in policy.split('-')[1:] if x]
  matches = [re.fullmatch(r'([a-z]+)(\d+(?:\.\d+)?)', x) for x in pairs]
  translated = f'rand({", ".join(f"{x[1]}={x[2]}" for x in matches if x)})'
  advice = f'write {translated!r}'
  try:
    augmentations.make(translated, 'augment.policy')
    works = all(matches)
  except UserError:
    works = False
  if not works:
    rand = config_lib.wing(augmentations.CHOICES['augment.policy']['rand'])
    options = ', '.join(inspect.signature(rand).parameters)
    advice = f"write it as 'rand(m=9, mstd=0.5)', of the options {options}"
  raise UserError(
    f'config.augment.policy is {policy!r}, as timm writes it: {advice}'
  )


def check_inputs(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  views: Mapping[str, geometry.View],
) -> None:
  """Checks that inputs, and what belongs to them, can be changed as asked."""
  augment, data_name = config.augment, config.data.name
  image, maps = features_lib.image(features), features_lib.maps(features)
  objective = f'config.objective.name={config.objective.name}'
  mixing = 'config.augment.mixup and config.augment.cutmix'
  mixes = augmentations.mixes(augment)
  changes = [*augmentations.RECOLORING, 'erase'] if image.device else []
  if mixes and not image.can_mix:
    changes += ['mixup', 'cutmix']
  for key in changes:
    if augment[key]:
      hint = (
        ', and see config.augment.volume' if image.inputs == 'volumes' else ''
      )
      raise UserError(
        f'config.augment.{key} changes images, but the examples of {data_name}'
        f' are {image.inputs}: leave it out{hint}'
      )
  count = sum(view.count or 1 for view in views.values())
  for key in ('gray', 'blur', 'solarize'):
    probabilities = tuple(augment[key])
    if len(probabilities) > count:
      raise UserError(
        f'config.augment.{key} is {probabilities}, of {len(probabilities)}'
        f' crops, but {objective} takes {count} of an image: give at most one'
        ' probability for each'
      )
  policy = augmentations.make(augment.policy, 'augment.policy')
  if maps and policy and policy.moves:
    raise UserError(
      f'config.augment.policy={augment.policy} moves pixels of images'
      f' ({", ".join(policy.moves)}), but not of the {", ".join(maps)} of'
      f" {data_name}: set it to '3augment' or ''"
    )
  if mixes and not geometry.is_single(views):
    raise UserError(
      f'{mixing} mix single crops, but {objective} takes several of an image:'
      ' set both to 0'
    )
  unmixable = [name for name, x in features.items() if not x.can_mix]
  if mixes and unmixable:
    raise UserError(
      f'{mixing} mix {image.inputs}, but not the {", ".join(unmixable)} of'
      f' {data_name}: set both to 0'
    )
