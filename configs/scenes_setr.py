r"""SETR-PUP on scenes of digits that the code makes, 32 x 32 pixels.

  python -m vit_jax.main --config=configs/scenes_setr.py --workdir=runs/scenes

The mean overlap of the 11 classes on the 500 scenes of test, whose digits are
none of those of train, is 83.2% (`val/miou`, one seed, from random weights)
after 1.4 minutes on 2 CPU cores.

The argument is the head: pup (default), naive, mla or linear.
--config.init_from.path=RUN starts from the trunk of another run, as
docs/segmentation.md shows for one that learned CIFAR-10.
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
  config.data.crop = 'pad'
  config.data.pad = 3
  config.data.flip = False  # a mirrored digit is another sign

  config.model.name = 'ViT-Ti/4'
  config.model.hidden_size = 64
  config.model.mlp_dim = 128
  config.model.num_heads = 4
  config.model.depth = 4
  config.model.pool = 'gap'
  config.model.initializers = 'lecun'
  config.model.position_embedding = 'none'
  config.model.rotary = 'rope_vit'  # a digit may be anywhere

  config.objective.name = 'segmentation'
  options = config.objective.options
  options.head = arg
  options.channels = 32
  options.convs = 2  # from a grid of 8 x 8 patches to 32 x 32 pixels

  config.train.duration = '1500 steps'
  config.train.batch_size = 32
  config.optim.learning_rate = 3e-3
  config.optim.b2 = 0.95
  config.optim.warmup = '100 steps'
  config.optim.weight_decay = 0.05
  config.optim.clip_norm = 1.0

  config.evals.val.split = 'test'
  config.evals.val.every = '500 steps'
  config.checkpoint.every = '500 steps'
  config.checkpoint.best = 'val/miou'
  return config
