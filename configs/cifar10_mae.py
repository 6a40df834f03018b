r"""MAE on CIFAR-10, without its labels.

  python -m vit_jax.main --config=configs/cifar10_mae.py:EPOCHS

on TFDS' `cifar10`, or on a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 20 by default. Not run
by us.
"""

import ml_collections

from vit_jax.config import small_recipes


def get_config(arg: str = '20') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = small_recipes.cifar10_unlabelled(arg)
  config.data.crop = 'random_resized'
  config.data.crop_scale = (0.2, 1.0)

  config.model.position_embedding = 'sincos2d_mae'
  config.objective.name = 'mae'
  config.objective.options.decoder_width = 128
  config.objective.options.decoder_depth = 2
  config.objective.options.decoder_heads = 4

  config.optim.learning_rate = 1e-3
  config.optim.b2 = 0.95
  config.optim.weight_decay = 0.05
  return config
