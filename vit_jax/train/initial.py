"""What a run starts from: random parameters, or a checkpoint.

`vit_jax.weights.initial` has the checkpoint at `config.init_from.path`.
"""

from typing import Any
from typing import TYPE_CHECKING

import ml_collections

from vit_jax import config as config_lib
from vit_jax import models

if TYPE_CHECKING:
  from vit_jax.weights.initial import Start

_CHECKPOINTS = 'vit_jax.weights.initial'


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.init_from` without opening the checkpoint."""
  wrong = ''
  if config.model.name == config_lib.INIT_FROM:
    wrong = f'model.name is {config.model.name!r}'
  elif config.init_from.trunk_only:
    wrong = 'init_from.trunk_only is True'
  if wrong and not config.init_from.path:
    raise config_lib.UserError(
      f'config.{wrong}, but config.init_from.path is empty: say which'
      ' checkpoint'
    )
  if config.init_from.resize:
    config_lib.wing(_CHECKPOINTS).check(config)


def fill_from_checkpoint(config: ml_collections.ConfigDict) -> Any:
  """Sets open keys of a config from the checkpoint, a `weights.Loaded`."""
  checkpoints = config_lib.wing(_CHECKPOINTS)
  loaded = checkpoints.load(config)
  checkpoints.fill(config, loaded)
  return loaded


def fill(config: ml_collections.ConfigDict) -> None:
  """Sets keys that are still open: mean and std, and keys of the model."""
  mean, std = config_lib.normalization(config)
  config.data.mean = config.data.mean or mean
  config.data.std = config.data.std or std
  fill_model(config)


def fill_model(config: ml_collections.ConfigDict) -> None:
  """Sets the open keys of `config.model` to the values in force."""
  if config.model.name == config_lib.INIT_FROM:
    return
  with config_lib.explained('config.model', ValueError):
    values = models.values_in_force(config.model)
  for key, value in values.items():
    if config.model[key] is None and key != 'num_classes':
      config_lib.set_value(config, f'model.{key}', value)


def start(
  config: ml_collections.ConfigDict,
  classes: tuple[str, ...],
  loaded: Any,
  objective: Any,
) -> 'Start | None':
  """Returns where the parameters come from; None: they are random.

  The config has no open keys, and `classes` are the data's, in order.
  `loaded` is from `fill_from_checkpoint`; None: it is loaded when it is needed.
  """
  if not config.init_from.path:
    return None
  make = config_lib.wing(f'{_CHECKPOINTS}:Start')
  start: Start = make(config, classes, loaded, objective)
  return start
