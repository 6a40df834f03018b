r"""BEiT on CIFAR-10, without its labels.

  python -m vit_jax.main --config=configs/cifar10_beit.py:EPOCHS

on TFDS' `cifar10`, or on a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 10 by default. Not run
by us.
"""

import ml_collections

from vit_jax.config import small_recipes


def get_config(arg: str = '10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = small_recipes.cifar10_unlabelled(arg)
  config.data.crop = 'pad'
  config.data.pad = 4

  config.objective.name = 'beit'
  config.objective.options.tokens = 512
  config.objective.options.masked = 32  # of 8 x 8
  config.objective.options.block_least = 6

  config.model.pool = 'token+gap'
  config.model.initializers = 'lecun'
  config.model.mask_token = True
  config.model.key_bias = False
  config.model.relative_positions = 'shared'
  config.model.layer_scale = 0.1

  config.optim.learning_rate = 1.5e-3
  config.optim.b2 = 0.98
  config.optim.weight_decay = 0.05
  config.optim.clip_norm = 3.0
  return config
