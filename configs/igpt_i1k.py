"""iGPT on ImageNet-1k at 32x32 (Chen et al., 2020).

vit-jax train --config=igpt_i1k:SIZE

SIZE is S (default), M or L: 76, 455 or 1,362 million parameters.

Source: "Generative Pretraining from Pixels", sections 3.1 to 3.3 and appendix B
(table 5). The authors' code reports losses of 2.0895, 2.0614 and 2.0466 nats
per pixel after a million steps. Not run by us.

Differences: the authors resize the short side to 256 to 384 pixels and crop 224
x 224. Here a square with the same fraction of the area is cropped directly.
Their model has no biases; here biases stay at zero. Colours are 512 clusters of
the training images.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes

# The learning rates of table 5.
_RATES = {'S': 3e-3, 'M': 3e-3, 'L': 1e-3}


def get_config(arg: str = 'S') -> ml_collections.ConfigDict:
  """Returns the config; `arg` is S, M or L."""
  size = recipes.choose(arg, _RATES, 'a size')
  config = config_lib.default()
  config.objective.name = 'igpt'

  config.data.name = 'imagenet2012'
  config.data.split = 'train[:96%]'
  config.data.image_size = 32
  scale = (224 / 384) ** 2, (224 / 256) ** 2
  config.data.crop = f'random_resized(scale={scale}, ratio=(1.0, 1.0))'
  config.data.flip = False
  config.data.mean = (0.5,)
  config.data.std = (0.5,)

  config.model.name = f'iGPT-{size}(colours=512)'
  config.model.scan = True

  config.train.duration = '1_000_000 steps'
  config.train.batch_size = 128
  config.optim.learning_rate = _RATES[size]
  config.optim.warmup = '1 epochs'
  config.optim.name = 'adamw(b1=0.9, b2=0.95)'
  config.optim.weight_decay = 0.0
  config.optim.freeze = r'bias$'

  config.evals.val.split = 'train[96%:]'
  config.evals.val.every = '10_000 steps'
  config.checkpoint.every = '10_000 steps'
  return config
