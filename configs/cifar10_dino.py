"""DINO on CIFAR-10, without its labels.

  vit-jax train --config=cifar10_dino:EPOCHS

The data is TFDS' `cifar10`, or a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 10 by default.

Accuracy on 5,000 held-out images of a JPEG copy (quality 75), seed 0, 4 epochs,
8 minutes on 2 CPU cores; untrained backbone (of configs/cifar10_mae.py) in
brackets:

  linear probe            46.6% (38.7%)
  20 nearest neighbours   40.8% (31.6%)
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = '10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  return recipes.cifar10_crops(arg, 'dino')
