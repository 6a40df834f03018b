"""ViT-B/16 of ImageNet-21k, fine-tuned on CIFAR-10 at 384 px.

vit-jax train --config=b16_cifar10

Source: the protocol of the ViT paper (arXiv:2010.11929, appendix B.1.1). Its
authors report these test accuracies: 98.59% after 500 steps (17 minutes),
98.86% after 1,000, 99.02% after 10,000 (2.2 hours, on A100s). Not run by us: we
could not reach gs://vit_models.

A copy of the weights works: --config.init_from.path=PATH, or
hf:timm/vit_base_patch16_224.augreg_in21k with --config.model.name=init_from. To
save memory: --config.train.accumulation=8.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  return recipes.fine_tuning('ViT-B/16', 'cifar10')
