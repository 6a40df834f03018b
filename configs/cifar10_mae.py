r"""MAE on CIFAR-10, without its labels.

  python -m vit_jax.main --config=configs/cifar10_mae.py:EPOCHS

on TFDS' `cifar10`, or on a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 100 by default. The model
is that of configs/cifar10.py, which can go on from the run's parameters, with
--config.init_from.path. Not run by us.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = '100') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  if not arg.isdecimal() or not int(arg):
    raise config_lib.UserError(
      f'{arg!r} after the colon: write a number of epochs, 1 or more, as in'
      ' configs/cifar10_mae.py:100'
    )
  config = recipes.cifar10()
  config.data.crop = 'random_resized'
  config.data.crop_scale = (0.2, 1.0)

  config.model.name = 'ViT-Ti/4'
  config.model.hidden_size = 256
  config.model.mlp_dim = 512
  config.model.num_heads = 8
  config.model.depth = 6
  config.model.pool = 'gap'
  config.model.position_embedding = 'sincos2d_mae'
  config.objective.name = 'mae'
  config.objective.options.decoder_width = 128
  config.objective.options.decoder_depth = 2
  config.objective.options.decoder_heads = 4

  config.train.duration = f'{arg} epochs'
  config.train.batch_size = 256
  config.optim.learning_rate = 1e-3
  config.optim.b2 = 0.95
  config.optim.weight_decay = 0.05
  config.optim.warmup = '5 epochs' if int(arg) > 50 else '1 epochs'

  config.evals.val.every = '1 epochs'
  config.evals.linear = config_lib.evaluation(
    kind='linear', split='train[45000:]', train_split='train[:10000]'
  )
  config.evals.knn = config_lib.evaluation(
    kind='knn',
    split='train[45000:]',
    train_split='train[:45000]',
    every='10 epochs',
  )
  return config
