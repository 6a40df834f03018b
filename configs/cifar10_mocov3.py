"""MoCo v3 on CIFAR-10, without its labels.

  vit-jax train --config=cifar10_mocov3:EPOCHS

The data is TFDS' `cifar10`, or a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:/path/to/cifar10. EPOCHS is 10 by default.

Accuracy on 5,000 held-out images of a JPEG copy (quality 75), seed 0, 10
epochs, 35 minutes on 2 CPU cores with other work; untrained backbone in
brackets:

  linear probe, fitted to 10,000 images   52.8% (38.8%)
  20 nearest neighbours                   49.8% (29.1%)

Patches are 8 x 8. Patches of 4 x 4 take four times as long; an untrained
backbone with them reaches 45.0% and 32.7%.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = '10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  config = recipes.cifar10_unlabelled(arg)
  config.data.crop = 'random_resized(scale=(0.2, 1.0))'
  # Images of 32 px are too small to be blurred.
  config.augment.jitter = 'jitter(0.4, 0.4, 0.2, 0.1, probability=0.8)'
  config.augment.gray = (0.2,)
  config.augment.solarize = (0.0, 0.2)

  # The sizes and the optimizer of the run above.
  config.model.name = 'ViT-Ti/8'
  config.model.hidden_size = 192
  config.model.mlp_dim = 384
  config.model.num_heads = 3
  config.model.scan = False
  config.model.positions = "sincos2d(kind='sincos2d_moco')"
  config.model.initializers = 'moco'
  config.objective.name = 'mocov3'
  config.objective.options = {'width': 1024, 'dim': 128}

  config.optim.name = 'adamw(b2=0.999)'
  config.optim.learning_rate = 1e-3
  config.optim.clip_norm = 0.0
  config.optim.weight_decay = 0.1
  return config
