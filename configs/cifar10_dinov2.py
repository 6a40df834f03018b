r"""DINOv2 on CIFAR-10, without its labels.

  python -m vit_jax.main --config=configs/cifar10_dinov2.py:EPOCHS

on TFDS' `cifar10`, or on a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 10 by default.

Not run by us: cifar10_dino.py has the measured figures of the common part.
"""

import ml_collections

from vit_jax.config import small_recipes


def get_config(arg: str = '10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = small_recipes.cifar10_crops(arg, 'dinov2')
  config.model.mask_token = True
  config.objective.options.patch_prototypes = 512
  return config
