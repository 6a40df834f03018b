r"""LiT on CIFAR-10: a text tower learns from an image tower that is locked.

  python -m vit_jax.main --config=configs/cifar10_lit.py:EPOCHS

on TFDS' `cifar10`, or on a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 1 by default. The image
tower is that of runs/cifar10, a run of configs/cifar10.py;
--config.init_from.path names another.
"""

import ml_collections

from vit_jax.config import small_recipes


def get_config(arg: str = '1') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = small_recipes.cifar10_captioned(arg)
  config.init_from.path = 'runs/cifar10'
  config.model.rotary = 'rope_vit'
  # As in LiT, both towers' outputs have the image tower's size.
  config.objective.options.update({'locked': 'image', 'dim': 0})
  return config
