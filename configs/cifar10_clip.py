"""CLIP on CIFAR-10, with captions made from the class names.

  vit-jax train --config=cifar10_clip:EPOCHS

The data is TFDS' `cifar10`, or a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 2 by default.

The image tower and its schedule are those of configs/cifar10.py, without RoPE
and mimetic initialization. docs/images_and_text.md has results.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = '2') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = recipes.cifar10_captioned(arg)
  config.objective.options.update({'dim': 128})
  return config
