"""A small ViT on spectrograms of three tones, whose melody it tells.

python -m vit_jax.main --config=configs/tones.py --workdir=runs/tones

143,686 parameters. The accuracy on 1,000 other sounds is 96.2% (seeds 0 to 2:
96.2, 97.1, 95.7), after 90 s of CPU time from start to exit, on 2 cores.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import small_recipes


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  config = small_recipes.clips(400, 4e-3)

  config.data.name = 'tones'
  config.data.image_size = (96, 48)  # frames, mels

  config.model.name = 'ViT-Ti/16'
  config.model.patch_size = (8, 12)
  return config
