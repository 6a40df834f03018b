r"""DINO on CIFAR-10, without its labels.

  python -m vit_jax.main --config=configs/cifar10_dino.py:EPOCHS

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
  config.data.crop = 'random_resized'
  config.data.crop_scale = (0.4, 1.0)
  config.augment.jitter = (0.4, 0.4, 0.2, 0.1)
  config.augment.jitter_probability = 0.8
  config.augment.gray = (0.2,)
  config.augment.solarize = (0.0, 0.2, 0.0)

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

  config.optim.learning_rate = 1e-3
  config.optim.weight_decay = 0.04
  config.optim.final_weight_decay = 0.4
  config.optim.clip_each = 3.0
  return config
