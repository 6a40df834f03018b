"""LiT on CIFAR-10: a text tower learns from a frozen image tower.

  vit-jax train --config=cifar10_lit:EPOCHS

The data is TFDS' `cifar10`, or a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 1 by default.

The image tower is that of runs/cifar10, a run of configs/cifar10.py.
--config.init_from.path selects another run. docs/images_and_text.md has
results.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = '1') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = recipes.cifar10_captioned(arg)
  config.init_from.path = 'runs/cifar10'
  config.model.positions = "sincos2d + rope(kind='rope_vit')"
  # As in LiT, both towers' outputs have the image tower's size.
  config.objective.options.update({'locked': 'image', 'dim': 0})
  return config
