"""SETR-PUP on synthetic scenes of digits, 32 x 32 pixels.

  vit-jax train --config=scenes_setr --workdir=runs/scenes

Test mIoU (`val/miou`) of 11 classes on 500 scenes, whose digits do not occur in
training, over seeds 0 to 2:

  random weights            80.7% (81.5, 79.9, 80.7)
  ViT trained on CIFAR-10   82.3% (82.8, 81.6, 82.6)

docs/segmentation.md has both commands. The argument is the head: pup (default),
naive, mla or linear. --config.init_from.path=RUN starts from the backbone of
another run.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = 'pup') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Head: pup, naive, mla or linear.
  """
  recipes.choose(arg, ('pup', 'naive', 'mla', 'linear'), 'a head')
  config = config_lib.default()
  config.data.name = 'scenes'
  config.data.split = 'train'
  config.data.source_size = (32, 32)
  config.data.image_size = 32
  config.data.crop = 'pad(3)'
  config.data.flip = False  # a mirrored digit is another sign

  config.model.name = 'ViT-Ti/4'
  config.model.hidden_size = 64
  config.model.mlp_dim = 128
  config.model.num_heads = 4
  config.model.depth = 4
  config.model.pool = 'mean'
  config.model.initializers = 'lecun'
  # A digit may be anywhere.
  config.model.positions = "rope(kind='rope_vit')"

  config.objective.name = 'segmentation'
  options = config.objective.options
  options.head = arg
  options.channels = 32
  options.convs = 2  # from a grid of 8 x 8 patches to 32 x 32 pixels

  config.train.duration = '1100 steps'
  config.train.batch_size = 32
  recipes.muon(config)
  config.optim.warmup = '100 steps'

  config.evals.val.split = 'test'
  config.evals.val.every = '550 steps'
  config.checkpoint.every = '550 steps'
  config.checkpoint.best = 'val/miou'
  return config
