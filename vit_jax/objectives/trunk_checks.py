"""Checks of the model of a config, for methods that read its patches."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config import parts


def described_model(config: ml_collections.ConfigDict) -> models.Model | None:
  """Returns the trunk of a config; None where only a checkpoint knows it."""
  if config.model.name == config_lib.INIT_FROM:
    return None
  try:
    return models.from_config(config.model, 0)
  except ValueError:
    return None  # `models.check` tells what is wrong


def check_patches(config: ml_collections.ConfigDict) -> None:
  """Checks that the model has a token in the place of each patch."""
  model = config.model
  block = parts.parse(model.block, 'model.block').name if model.block else ''
  removes = {
    'patch_dropout': bool(model.patch_dropout),
    'block': block == 'merging',
  }
  for key, is_set in removes.items():
    if is_set:
      advice = 'choose another' if key == 'block' else 'set it to 0'
      raise config_lib.UserError(
        f'config.model.{key} is {model[key]}, but'
        f' config.objective.name={config.objective.name} reads the token of'
        f' each patch in its place: {advice}'
      )
