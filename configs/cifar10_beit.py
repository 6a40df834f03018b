"""BEiT on CIFAR-10, without its labels.

  vit-jax train --config=cifar10_beit:EPOCHS

The data is TFDS' `cifar10`, or a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 10 by default.

Accuracy on 5,000 held-out images of a JPEG copy (quality 75), seed 0, 20
epochs, 26 minutes on 2 CPU cores with other work; untrained backbone in
brackets:

  linear probe, means of all layers   56.4% (36.1%)
  linear probe, last layer            51.3% (40.8%)
  20 nearest neighbours               41.8% (26.0%)

After 5 epochs the linear probe reaches 48.6% (38.6%).
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

  # All layers together say more of an image than the last one.
  config.evals.linear.kind = (
    "linear(train_split='train[:10000]', features='layers')"
  )

  config.objective.name = 'beit'
  config.objective.options.tokens = 512
  config.objective.options.masked = 32  # of 8 x 8
  config.objective.options.block_least = 6

  config.model.pool = 'token_and_mean'
  config.model.mask_token = True
  config.model.attention = 'attention(key_bias=False)'
  config.model.positions = 'learned + relative_bias'
  config.model.block = 'block(layer_scale=0.1)'
  return config
