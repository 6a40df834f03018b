"""UNETR with ViT-B/16 on abdominal CT (BTCV), from scratch.

  vit-jax train --config=unetr_btcv:folder:btcv

The argument is a folder in the layout of the Medical Segmentation Decathlon:
dataset.json, imagesTr, labelsTr. Masks have 13 organs and the background.

Source: "UNETR: Transformers for 3D Medical Image Segmentation",
arXiv:2103.10504, section 4: spacing, window, crops, kinds of augmentation,
batch, steps and learning rate. The authors' code gives the probabilities,
weight decay, warm-up and cosine schedule. The paper's mean Dice is 85.6%. Not
run by us.

Differences: the intensities of every crop change, in the authors' code those of
one in ten. The loss has MONAI's usual smoothing of 1e-5. Validation covers
whole scans by sliding windows, one batch of scans at a time.
--config.evals.val.split='' skips it; `vit-jax evaluate --batch_size=1` then
measures a finished run.
"""

import ml_collections

from vit_jax import config as config_lib


def get_config(arg: str = 'folder:btcv') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  config = config_lib.default()
  config.data.name = arg
  config.data.split = 'train[:80%]'
  config.data.image_size = (96, 96, 96)
  config.data.channels = 1
  config.data.volume.spacing = (1.0, 1.0, 1.0)
  config.data.volume.window = (-1000.0, 1000.0)
  config.data.mean = (0.0,)
  config.data.std = (1.0,)
  config.augment.volume.foreground = 0.5
  config.augment.volume.flip = 0.2
  config.augment.volume.turn = 0.2
  config.augment.volume.scale = 0.1
  config.augment.volume.shift = 0.1

  config.model.name = 'ViT-B/16'
  config.model.patch_size = (16, 16, 16)
  config.model.pool = 'mean'
  config.model.attention = 'attention(qkv_bias=False)'
  config.model.mlp = "mlp(gelu='exact')"
  config.model.layer_norm_epsilon = 1e-5

  config.objective.name = 'segmentation'
  config.objective.options.head = 'unetr'
  config.objective.options.layers = (3, 6, 9)
  config.objective.options.channels = 16
  config.objective.options.loss = 'dice_cross_entropy'
  config.objective.options.overlap = 0.5

  config.train.duration = '20_000 steps'
  config.train.batch_size = 6
  config.optim.name = 'adamw'
  config.optim.learning_rate = 1e-4
  config.optim.warmup = '200 steps'
  config.optim.schedule = 'cosine'
  config.optim.weight_decay = 1e-5
  config.optim.decay_pattern = r'.'  # all parameters

  config.evals.val.split = 'train[80%:]'
  config.evals.val.every = '2_000 steps'
  config.checkpoint.every = '2_000 steps'
  config.checkpoint.best = 'val/dice'
  return config
