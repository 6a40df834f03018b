r"""The ViT of a well-known tutorial, from scratch on CIFAR-10, exactly.

  vit-jax train --config=cifar10_tutorial

The data is TFDS' `cifar10`, or a folder with train/<class>/ and test/<class>/:

  vit-jax train --config=cifar10_tutorial \
      --config.data.name=folder:/path/to/cifar10

Source: P. Lippe, UvA Deep Learning Tutorials, tutorial 15 (JAX), "Vision
Transformers": 3,195,146 parameters, AdamW, 200 epochs. Test accuracy 78.4%;
validation accuracy 52.1% after 2 epochs, 65.4% after 10.

Validation accuracy on a JPEG copy of CIFAR-10 (quality 75), float32, 2 CPU
cores: 52.7% after 2 of the 200 epochs, in 24 minutes at 65 images/s. Not run in
full by us.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  config = recipes.cifar10()
  config.data.crop = 'random_resized(scale=(0.8, 1.0), ratio=(0.9, 1.1))'

  config.model.name = 'ViT-Ti/4'
  config.model.hidden_size = 256
  config.model.mlp_dim = 512
  config.model.num_heads = 8
  config.model.depth = 6
  config.model.dropout_rate = 0.2
  config.model.initializers = 'lecun'

  config.train.duration = '200 epochs'
  config.train.batch_size = 128
  config.optim.learning_rate = 3e-4
  config.optim.schedule = 'step(at=(0.6, 0.85), factor=0.1)'
  config.optim.weight_decay = 0.01
  config.optim.decay_pattern = ''  # everything decays
  config.optim.clip_norm = 1.0

  config.evals.val.every = '2 epochs'
  config.checkpoint.every = '2 epochs'
  config.checkpoint.best = 'val/accuracy'
  return config
