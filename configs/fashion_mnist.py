"""A small ViT from scratch on Fashion-MNIST, 28x28 grey.

vit-jax train --config=fashion_mnist:4

The argument is the patch size, 4 or 7. The data is TFDS' `fashion_mnist`. The
model is that of configs/mnist.py, trained for longer and with more
augmentation. Not run by us.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = '4') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Patch size, 4 or 7.
  """
  config = recipes.grey_28('fashion_mnist', arg)
  config.data.mean = (0.2860,)
  config.data.std = (0.3530,)
  config.augment.erase = 'erase(0.25)'

  config.model.stochastic_depth = 0.1
  config.train.duration = '50 epochs'
  return config
