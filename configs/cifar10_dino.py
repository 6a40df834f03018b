r"""DINO on CIFAR-10, without labels.

  python -m vit_jax.main --config=configs/cifar10_dino.py:EPOCHS

on TFDS' `cifar10`, or on a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 10 by default.

The ViT of configs/cifar10.py. Not run by us.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = '10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  if not arg.isdecimal() or not int(arg):
    raise config_lib.UserError(
      f'{arg!r} after the colon: write a number of epochs, 1 or more, as in'
      ' configs/cifar10_dino.py:10'
    )
  config = recipes.cifar10()
  config.data.crop = 'random_resized'
  config.data.crop_scale = (0.4, 1.0)
  config.augment.jitter = (0.4, 0.4, 0.2, 0.1)
  config.augment.jitter_probability = 0.8
  config.augment.gray = (0.2,)
  config.augment.solarize = (0.0, 0.2, 0.0)

  config.model.name = 'ViT-Ti/4'
  config.model.hidden_size = 256
  config.model.mlp_dim = 512
  config.model.num_heads = 8
  config.model.depth = 6
  config.model.pool = 'gap'
  config.model.position_embedding = 'sincos2d'

  config.objective.name = 'dino'
  options = config.objective.options
  options.local_crops = 4
  options.local_size = 16
  options.prototypes = 4_096
  options.head_hidden = 512
  options.bottleneck = 128
  options.batch_norm = True
  options.momentum = 0.99

  config.train.duration = f'{arg} epochs'
  config.train.batch_size = 128
  config.optim.learning_rate = 1e-3
  config.optim.warmup = '200 steps'
  config.optim.weight_decay = 0.04
  config.optim.final_weight_decay = 0.4
  config.optim.clip_each = 3.0

  config.evals.val.split = ''
  config.evals.test.split = ''
  for kind in ('linear', 'knn'):
    config.evals[kind] = config_lib.evaluation(
      kind=kind, split='train[45000:]', train_split='train[:45000]'
    )
  config.checkpoint.every = '1 epochs'
  return config
