"""A plain ViT-S/16 from scratch on ImageNet-1k: a baseline.

vit-jax train --config=vit_s16_i1k:90ep

The argument is 90ep or 300ep. The data is TFDS' `imagenet2012`
(scripts/prepare_tfds.py), or a folder with train/<class>/ and
validation/<class>/: --config.data.name=folder:PATH.

Source: "Better plain ViT baselines for ImageNet-1k", arXiv:2205.01580, and its
published config. Validation accuracy (table 1): 76.5% after 90 epochs, in 6 to
7 hours on a TPUv3-8; 80.0% after 300. With a linear head
(--config.model.head=linear) 76.7% and 79.8%. Not run by us.

The source's weight decay, 1e-4, is multiplied by the schedule only. Ours is
also multiplied by the learning rate, 1e-3, so it is 1e-4 / 1e-3.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = '90ep') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: 90ep or 300ep.
  """
  recipes.choose(arg, ('90ep', '300ep'), 'a length')
  config = recipes.imagenet()
  config.augment.policy = 'randaugment(2,10)'
  config.augment.mixup = 0.2

  config.model.name = 'ViT-S/16'
  config.model.pool = 'mean'
  config.model.positions = 'sincos2d'
  config.model.head = 'linear(pre_logits=384)'

  config.train.duration = f'{arg.removesuffix("ep")} epochs'
  config.train.batch_size = 1024
  config.optim.learning_rate = 1e-3
  config.optim.schedule = 'cosine'
  config.optim.weight_decay = 0.1
  config.optim.name = "adamw(momentum_dtype='bfloat16')"
  return config
