r"""FlexiViT on scikit-learn's digits: one model with three patch sizes.

vit-jax train --config=flexivit_digits --workdir=runs/flexi

Accuracy on the held-out fifth of the digits, 359, seed 0:

  patch    tokens   accuracy
  4 x 4    4        95.3%
  2 x 4    8        96.9%
  2 x 2    16       98.1%

This command measures all sizes:

vit-jax evaluate --from=runs/flexi --data=digits \
  --split='train[80%:]' --patch_size=4,2x4,2
"""

import ml_collections

from vit_jax import config as config_lib


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  config = config_lib.load('digits')
  config.train.variant = 'patches((2, (2, 4), 4))'  # 16, 8 and 4 patches
  config.evals.val.split = ''
  for name, patch in (('fine', (2, 2)), ('wide', (2, 4)), ('coarse', (4, 4))):
    config.evals[name] = config_lib.evaluation(
      split='train[80%:]', patch_size=patch, every='450 steps'
    )
  return config
