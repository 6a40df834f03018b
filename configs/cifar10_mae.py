"""MAE on CIFAR-10, without its labels.

  vit-jax train --config=cifar10_mae:EPOCHS

The data is TFDS' `cifar10`, or a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 10 by default.

Accuracy on 5,000 held-out images of a JPEG copy (quality 75), seed 0, 10
epochs, 10 minutes on 2 CPU cores; untrained backbone in brackets:

  linear probe            51.2% (38.7%)
  20 nearest neighbours   43.9% (31.6%)
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = '10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = recipes.cifar10_unlabelled(arg)
  config.data.crop = 'pad(4)'

  config.model.positions = "sincos2d(kind='sincos2d_mae')"
  config.objective.name = 'mae'
  config.objective.options.decoder_width = 64
  config.objective.options.decoder_depth = 2
  config.objective.options.decoder_heads = 4
  return config
