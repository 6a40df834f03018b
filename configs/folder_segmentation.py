r"""Segmentation of a folder of images and masks.

  vit-jax train --config=folder_segmentation:folder:scenes \
      --workdir=runs/scenes

The folder has images/, masks/ and classes.txt, as docs/own_images.md explains.
Images may have any sizes. Without val and test, a fifth of train is held out.
The model is the ViT of configs/scenes_setr.py with the head SETR-PUP, on random
crops that are resized to 64 x 64 pixels.

`python scripts/draw_shapes.py scenes --masks` draws 200 images. Training on 160
of them gives a validation mIoU of 44.2% on the other 40 (background 93.0%,
stripes 50.0%, squares 17.4%, dots 16.2%; seed 0), after 104 s of CPU time on 2
cores.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import recipes


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  config = config_lib.default()
  config.data.name = arg or 'folder:scenes'
  config.data.split = 'train'
  config.data.image_size = 64
  config.data.crop = 'random_resized(scale=(0.3, 1.0))'

  config.model.name = 'ViT-Ti/8'
  recipes.small_vit(config)
  # A thing may be anywhere.
  config.model.positions = "rope(kind='rope_vit')"

  config.objective.name = 'segmentation'
  options = config.objective.options
  options.channels = 32
  options.convs = 2  # from a grid of 8 x 8 patches to 32 x 32

  config.train.duration = '60 epochs'
  config.train.batch_size = 16
  recipes.muon(config)
  config.optim.warmup = '20 steps'

  config.evals.val.split = 'val'
  config.evals.val.every = '20 epochs'
  config.checkpoint.every = '20 epochs'
  config.checkpoint.best = 'val/miou'
  if arg:
    data.hold_out(config)
  return config
