r"""CLIP on CIFAR-10, with captions made of the names of the classes.

  python -m vit_jax.main --config=configs/cifar10_clip.py:EPOCHS

on TFDS' `cifar10`, or on a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 2 by default. The image
tower and its schedule are those of configs/cifar10.py, without its RoPE and
mimetic initialization.
"""

import ml_collections

from vit_jax.config import small_recipes


def get_config(arg: str = '2') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = small_recipes.cifar10_captioned(arg)
  config.objective.options.update({'dim': 128})
  return config
