r"""BEiT on CIFAR-10: pre-training without labels.

  python -m vit_jax.main --config=configs/cifar10_beit.py:EPOCHS

on TFDS' `cifar10`, or on a folder as configs/cifar10.py has it. EPOCHS is 20 by
default. The model is that of configs/cifar10.py, with BEiT's parts; tokens are
k-means of the patches of 4 x 4 pixels. At the end, a linear probe is fitted.
Not run by us.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = '20') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  if not arg.isdecimal() or not int(arg):
    raise config_lib.UserError(
      f'{arg!r} after the colon: write a number of epochs, 1 or more, as in'
      ' configs/cifar10_beit.py:20'
    )
  config = recipes.cifar10()
  config.data.crop = 'pad'
  config.data.pad = 4

  config.objective.name = 'beit'
  config.objective.options.tokens = 512
  config.objective.options.masked = 32  # of 8 x 8
  config.objective.options.block_least = 6

  config.model.name = 'ViT-Ti/4'
  config.model.hidden_size = 256
  config.model.mlp_dim = 512
  config.model.num_heads = 8
  config.model.depth = 6
  config.model.pool = 'token+gap'
  config.model.initializers = 'lecun'
  config.model.mask_token = True
  config.model.key_bias = False
  config.model.relative_positions = 'shared'
  config.model.layer_scale = 0.1
  config.model.scan = True  # compiles sooner

  config.train.duration = f'{arg} epochs'
  config.train.batch_size = 128
  config.optim.learning_rate = 1.5e-3
  config.optim.b2 = 0.98
  config.optim.warmup = '1 epochs'
  config.optim.weight_decay = 0.05
  config.optim.clip_norm = 3.0

  config.evals.linear = config_lib.evaluation(
    kind='linear', split='train[45000:]', train_split='train[:45000]'
  )
  config.checkpoint.every = '1 epochs'
  return config
