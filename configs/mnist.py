"""A small ViT from scratch on MNIST, 28x28 grey.

vit-jax train --config=mnist:4

The argument is the patch size, 4 or 7. The data is TFDS' `mnist`. The model has
206,000 parameters, as small as in teaching material: hidden size 64, MLP 128, 4
heads, 6 layers. Not run by us. configs/digits.py needs no download.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = '4') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Patch size, 4 or 7.
  """
  config = recipes.grey_28('mnist', arg)
  config.data.mean = (0.1307,)
  config.data.std = (0.3081,)
  config.data.flip = False  # a mirrored digit is another sign

  config.train.duration = '20 epochs'
  return config
