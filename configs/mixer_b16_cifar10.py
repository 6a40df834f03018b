"""Mixer-B/16 of ImageNet-21k, fine-tuned on CIFAR-10 at 224 px.

python -m vit_jax.main --config=configs/mixer_b16_cifar10.py

The ViT paper's protocol, at the only size that a Mixer accepts. Its authors
report 96.82% of the test images. Not run by us: it starts from
gs://mixer_models, which we could not reach (--config.init_from.path=PATH takes
a copy).
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  return recipes.fine_tuning('Mixer-B/16', 'cifar10', image_size=224)
