"""A plain ViT from scratch on CIFAR-100.

vit-jax train --config=cifar100

The data is TFDS' `cifar100`, or a folder with train/<class>/ and test/<class>/:
--config.data.name=folder:PATH. The model has 2.7M parameters.

Source: the plain ViT of "Vision Transformer for Small-Size Datasets",
arXiv:2112.13492, and its authors' code (aanna0701/SPT_LSA_ViT), 100 epochs.
Test accuracy: 73.81%, and 93.58% on CIFAR-10. Not run by us.

Differences: erased regions are filled with independent noise for each pixel.
The authors evaluate on the test images after each epoch and report the best.
Here `val` is held out from the training images, and `test` is evaluated once,
at the end.
"""

import ml_collections

from vit_jax import config as config_lib


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  config = config_lib.default()

  config.data.name = 'cifar100'
  config.data.split = 'train[:98%]'
  config.data.image_size = 32
  config.data.source_size = (32, 32)
  config.data.mean = (0.5070, 0.4865, 0.4409)
  config.data.std = (0.2673, 0.2564, 0.2762)
  config.data.crop = 'pad(4)'
  config.augment.policy = 'autoaugment'
  config.augment.erase = 'erase(0.25, area=(0.02, 0.4))'
  config.augment.mixup = 1.0
  config.augment.cutmix = 1.0
  config.augment.mix_probability = 0.5
  config.augment.cutmix_share = 0.5
  config.augment.repeats = 3
  config.objective.label_smoothing = 0.1

  config.model.name = 'ViT-Ti/4'
  config.model.hidden_size = 192
  config.model.mlp_dim = 384
  config.model.num_heads = 12
  config.model.depth = 9
  config.model.stochastic_depth = 0.1
  config.model.block = 'block(stochastic_depth_uniform=True)'
  config.model.attention = 'attention(qkv_bias=False)'
  config.model.mlp = "mlp(gelu='exact')"
  config.model.layer_norm_epsilon = 1e-5
  config.model.initializers = 'lecun'

  config.train.duration = '100 epochs'
  config.train.batch_size = 128
  config.optim.learning_rate = 1e-3
  config.optim.warmup = '10 epochs'
  config.optim.weight_decay = 0.05
  config.optim.decay_pattern = ''  # everything decays

  config.evals.val.split = 'train[98%:]'
  config.evals.val.every = '2 epochs'
  config.evals.test.split = 'test'
  config.checkpoint.every = '2 epochs'
  config.checkpoint.best = 'val/accuracy'
  return config
