r"""A small iGPT on CIFAR-10, without its labels.

  python -m vit_jax.main --config=configs/cifar10_igpt.py:EPOCHS

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
  config.data.image_size = 16  # 256 pixels
  config.data.crop = 'center'
  config.data.mean = (0.5,)
  config.data.std = (0.5,)

  config.objective.name = 'igpt'
  config.model.name = 'iGPT-S'
  config.model.colours = 64
  config.model.hidden_size = 128
  config.model.mlp_dim = 512
  config.model.num_heads = 4
  config.model.depth = 6
  config.model.pool = None  # it has features of its own
  config.model.scan = True  # compiles sooner

  config.train.batch_size = 64
  config.optim.learning_rate = 3e-3
  config.optim.b2 = 0.95
  config.evals.val.split = 'train[45000:]'
  config.evals.val.every = '1 epochs'
  return config
