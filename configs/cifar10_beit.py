r"""BEiT on CIFAR-10, without its labels.

  python -m vit_jax.main --config=configs/cifar10_beit.py:EPOCHS

on TFDS' `cifar10`, or on a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 10 by default.

Measured on a JPEG copy of CIFAR-10 (quality 75), seed 0, 20 epochs, in 26
minutes on 2 CPU cores that others used, too: a linear probe of the means of all
layers is right for 56.4% of the 5,000 held-out images; of an untrained trunk,
36.1%. Probes of the last layer alone reach 51.3%, and 40.8% untrained, and the
20 nearest neighbours 41.8% and 26.0%; after a run of 5 epochs 48.6% and 38.6%.
"""

import ml_collections

from vit_jax.config import small_recipes


def get_config(arg: str = '10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = small_recipes.cifar10_unlabelled(arg)
  config.data.crop = 'pad'
  config.data.pad = 4

  # All layers together say more of an image than the last one.
  config.evals.linear.features = 'layers'

  config.objective.name = 'beit'
  config.objective.options.tokens = 512
  config.objective.options.masked = 32  # of 8 x 8
  config.objective.options.block_least = 6

  config.model.pool = 'token+gap'
  config.model.mask_token = True
  config.model.key_bias = False
  config.model.relative_positions = 'shared'
  config.model.layer_scale = 0.1
  return config
