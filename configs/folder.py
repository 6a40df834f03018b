r"""A ViT-S/16 from scratch on any folder of images.

  vit-jax train --config=folder \
      --config.data.name=folder:/path/to/images

The folder contains train/<class>/ and val/<class>/. Other usual names such as
training and validation work, and test/<class>/ is used if there is no val. If
there are only <class>/ folders, hold out a slice:

      --config.data.split='train[:90%]' --config.evals.val.split='train[90%:]'

The recipe is a common one for 100,000 images and more. The result depends on
the images, so there is no figure. Without a GPU it is slow: first try
--config.model.name=ViT-Ti/16 --config.data.image_size=112.
"""

import ml_collections

from vit_jax import config as config_lib


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  config = config_lib.default()

  config.data.name = 'folder:images'
  config.data.split = 'train'
  config.data.image_size = 224
  config.data.eval_resize = 256

  config.model.name = 'ViT-S/16'
  config.model.pool = 'mean'
  config.model.positions = 'sincos2d'
  config.model.stochastic_depth = 0.1

  config.train.duration = '100 epochs'
  config.train.batch_size = 256
  config.train.accumulation = 'auto'  # as few microbatches as fit in memory
  config.optim.learning_rate = 1e-3
  config.optim.warmup = '5 epochs'
  config.optim.weight_decay = 0.1
  config.optim.clip_norm = 1.0

  config.evals.val.split = 'val'
  config.evals.val.every = '1 epochs'
  config.checkpoint.every = '1 epochs'
  config.checkpoint.best = 'val/accuracy'
  return config
