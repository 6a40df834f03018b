"""Mixer-B/16 of ImageNet-21k, fine-tuned on CIFAR-10 at 224 px.

vit-jax train --config=mixer_b16_cifar10

Source: the protocol of the ViT paper. 224 px is the only size that a Mixer
accepts. Its authors report a test accuracy of 96.82%. Not run by us: we could
not reach gs://mixer_models. A copy works: --config.init_from.path=PATH.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  return recipes.fine_tuning('Mixer-B/16', 'cifar10', image_size=224)
