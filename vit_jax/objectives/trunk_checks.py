"""Checks of the model of a config, for methods that read its patches."""

from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config import parts
from vit_jax.models import vit


def described_model(config: ConfigDict) -> models.Model | None:
  """Returns the trunk of a config; None where only a checkpoint knows it."""
  if config.model.name == config_lib.INIT_FROM:
    return None
  try:
    return models.from_config(config.model, 0)
  except ValueError:
    return None  # `models.check` tells what is wrong


def checked_vit(
  model: models.Model | None,
  config: ConfigDict,
  reason: str = 'reads the tokens of patches',
) -> vit.ViT:
  """Returns the trunk, if it is a ViT; `reason` says why it must be one."""
  if isinstance(model, vit.ViT):
    return model
  raise config_lib.UserError(
    f'config.model.name is {config.model.name!r}, but'
    f' config.objective.name={config.objective.name} {reason}: choose a ViT, as'
    ' --config.model.name=ViT-B/16'
  )


def check_patches(config: ConfigDict) -> None:
  """Checks that the model has a token in the place of each patch."""
  model = config.model
  block = parts.parse(model.block, 'model.block').name if model.block else ''
  removes = {
    'patch_dropout': (bool(model.patch_dropout), 'set it to 0'),
    'block': (block == 'merging', 'choose another'),
  }
  for key, (is_set, advice) in removes.items():
    if is_set:
      raise config_lib.UserError(
        f'config.model.{key} is {model[key]}, but'
        f' config.objective.name={config.objective.name} reads the token of'
        f' each patch in its place: {advice}'
      )


def check_head_norm(config: ConfigDict, moves_statistics: bool) -> None:
  """Checks that running statistics of the head are measured, and exactly.

  `moves_statistics` is that of the objective.
  """
  problem = ''
  if not moves_statistics:
    problem = (
      f'objective.name={config.objective.name} does not measure its statistics:'
      " leave norm='batch' out"
    )
  elif config_lib.num_microbatches(config) > 1:
    problem = (
      f'train.accumulation is {config.train.accumulation}, and its statistics'
      ' are of the whole batch: set it to 1'
    )
  elif config.model.distillation_token:
    problem = (
      'model.distillation_token is True: a model with two heads has none, leave'
      " norm='batch' out"
    )
  elif config.train.batch_size < 2:
    problem = 'train.batch_size is 1, which has no variance: make it at least 2'
  if problem:
    raise config_lib.UserError(
      f'config.model.head is {config.model.head!r}, but config.{problem}'
    )
