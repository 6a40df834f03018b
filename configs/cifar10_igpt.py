"""A small iGPT on CIFAR-10 at 16x16, with a linear probe of its features.

python -m vit_jax.main --config=configs/cifar10_igpt.py:EPOCHS

EPOCHS is 10 by default. 1.2M parameters, 64 colours, 256 pixels. Not run by us.
The samples of a run:

python -m vit_jax.predict --from=RUN --sample=16
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = '10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Number of epochs.
  """
  if not arg.isdecimal() or not int(arg):
    raise config_lib.UserError(
      f'{arg!r} after the colon: write a number of epochs, 1 or more, as in'
      ' configs/cifar10_igpt.py:10'
    )
  config = recipes.cifar10()
  config.objective.name = 'igpt'
  config.data.image_size = 16
  config.data.crop = 'center'
  config.data.mean = (0.5,)
  config.data.std = (0.5,)

  config.model.name = 'iGPT-S'
  config.model.colours = 64
  config.model.hidden_size = 128
  config.model.mlp_dim = 512
  config.model.num_heads = 4
  config.model.depth = 6
  config.model.scan = True  # compiles sooner

  config.train.duration = f'{int(arg)} epochs'
  config.train.batch_size = 64
  config.optim.learning_rate = 3e-3
  config.optim.warmup = '500 steps'
  config.optim.b2 = 0.95

  config.evals.val.every = '1 epochs'
  config.evals.linear = config_lib.evaluation(
    kind='linear', split='test', train_split='train[:45000]'
  )
  config.checkpoint.every = '1 epochs'
  return config
