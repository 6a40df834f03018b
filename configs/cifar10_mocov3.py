r"""MoCo v3 on CIFAR-10, without its labels; a linear probe measures it.

  python -m vit_jax.main --config=configs/cifar10_mocov3.py:EPOCHS

on TFDS' `cifar10`, or on a folder, as configs/cifar10.py, whose model it has.
EPOCHS is 100 by default. Not run by us.
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
      ' configs/cifar10_mocov3.py:100'
    )
  config = recipes.cifar10()
  config.data.crop = 'random_resized'
  config.data.crop_scale = (0.2, 1.0)
  # Images of 32 px are too small to be blurred.
  config.augment.jitter = (0.4, 0.4, 0.2, 0.1)
  config.augment.jitter_probability = 0.8
  config.augment.gray = (0.2,)
  config.augment.solarize = (0.0, 0.2)

  config.model.name = 'ViT-Ti/4'
  config.model.hidden_size = 256
  config.model.mlp_dim = 512
  config.model.num_heads = 8
  config.model.depth = 6
  config.model.position_embedding = 'sincos2d_moco'
  config.model.initializers = 'moco'
  config.objective.name = 'mocov3'
  config.objective.options = {'width': 1024, 'dim': 128}

  config.train.duration = f'{int(arg)} epochs'
  config.train.batch_size = 256
  config.optim.learning_rate = 5e-4
  config.optim.weight_decay = 0.1
  config.optim.warmup = f'{int(arg) / 10} epochs'

  config.evals.val.split = ''
  config.evals.test.split = ''
  config.evals.linear = config_lib.evaluation(
    'test', '', kind='linear', train_split='train[:45000]'
  )
  config.evals.knn = config_lib.evaluation(
    'train[45000:]', '5 epochs', kind='knn', train_split='train[:45000]'
  )
  config.checkpoint.every = '1 epochs'
  return config
