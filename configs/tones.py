"""A small ViT on spectrograms of three tones, whose melody it tells.

python -m vit_jax.main --config=configs/tones.py --workdir=runs/tones

143,686 parameters. The accuracy on 1,000 other sounds is 96.2% (seeds 0 to 2:
96.2, 97.1, 95.7), after 90 s of CPU time from start to exit, on 2 cores.
"""

import ml_collections

from vit_jax import config as config_lib


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  config = config_lib.default()

  config.data.name = 'tones'
  config.data.split = 'train'
  config.data.image_size = (96, 48)  # frames, mels
  config.data.channels = 1

  config.model.name = 'ViT-Ti/16'
  config.model.patch_size = (8, 12)
  config.model.hidden_size = 64
  config.model.mlp_dim = 128
  config.model.num_heads = 4
  config.model.depth = 4
  config.model.pool = 'gap'
  config.model.initializers = 'lecun'
  config.model.scan = True  # compiles sooner

  config.train.duration = '400 steps'
  config.train.batch_size = 32
  config.optim.learning_rate = 4e-3
  config.optim.warmup = '50 steps'
  config.optim.weight_decay = 0.1
  config.optim.clip_norm = 1.0

  config.evals.val.split = 'test'
  config.evals.val.every = '200 steps'
  config.checkpoint.every = '200 steps'
  return config
