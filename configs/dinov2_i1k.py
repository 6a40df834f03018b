"""DINOv2 on ImageNet-1k: ViT-L/16, without labels.

  vit-jax train --config=dinov2_i1k

configs/dinov2_probe_i1k.py trains a linear probe as the authors do.
configs/finetune.py fine-tunes the result: --config.init_from.path=WORKDIR.

Source: "DINOv2: learning robust visual features without supervision",
arXiv:2304.07193, and the short run of the authors' code
(`ssl_default_config.yaml`, `vitl16_short.yaml`). Accuracy after that run, a day
on 32 A100: k nearest neighbours 81.6%, linear probe 82.9%. Not run by us.

Differences: the authors clip the gradients of the backbone and of the head
separately. Their KoLeo loss compares the features of one GPU, ours those of the
whole batch.
"""

import math

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  config = recipes.dino()
  config.data.crop = 'random_resized(scale=(0.32, 1.0))'
  config.model.name = 'ViT-L/16'
  config.model.mask_token = True
  config.model.block = 'block(layer_scale=1e-5, stochastic_depth_uniform=True)'
  config.model.stochastic_depth = 0.3

  config.objective.name = 'dinov2'
  options = config.objective.options
  options.local_scale = (0.05, 0.32)
  options.momentum = 0.992
  options.teacher_temperature = 0.07
  options.teacher_temperature_start = 0.04
  options.teacher_temperature_warmup = '30 epochs'
  options.assignment = 'centre'
  options.patch_head = False

  config.train.duration = '125_000 steps'
  config.train.batch_size = 2048
  config.optim.learning_rate = 4e-3 * math.sqrt(2048 / 1024)
  final_factor = 1e-6 / config.optim.learning_rate
  config.optim.schedule = f'cosine(final_factor={final_factor})'
  config.optim.warmup = '12_500 steps'
  config.optim.clip_norm = 3.0
  config.optim.layer_decay = 0.9
  config.optim.rules = (('patch_embedding/', 0.2, None),)
  config.evals.knn = config_lib.evaluation(
    kind="knn(train_split='train')", split='validation', every='50 epochs'
  )
  return config
