"""BEiT on scikit-learn's digits: pre-training without labels.

vit-jax train --config=digits_beit --workdir=runs/beit

Tokens are k-means of the training patches, fitted at the start. A trained
tokenizer is another way: a run of configs/digits_tokenizer.py with
--config.model.patch_size='(2,4)', passed as
--config.objective.options.tokenizer=runs/t.

Accuracy on the held-out fifth, after 26 s from start to exit on 2 CPU cores:

  linear probe, all tokens         96.1% and 95.5% (seeds 0 and 1)
  linear probe, the head's input   94.2%
  linear probe, pixels             95.5%

The settings, including the number of steps, were chosen on the same digits.
"""

import ml_collections

from vit_jax import config as config_lib


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config; takes no argument."""
  config_lib.no_argument(arg)
  config = config_lib.default()

  config.data.name = 'digits'
  config.data.split = 'train[:80%]'
  config.data.image_size = 8
  config.data.channels = 1
  config.data.crop = 'pad(1)'
  config.data.flip = False  # a mirrored digit is another sign

  config.objective.name = 'beit'
  config.objective.options.tokens = 64
  config.objective.options.masked = 3  # of 8
  config.objective.options.block_least = 1

  config.model.name = 'ViT-Ti/4'
  config.model.patch_size = (2, 4)
  config.model.hidden_size = 128
  config.model.mlp_dim = 256
  config.model.num_heads = 4
  config.model.depth = 2
  config.model.pool = 'token_and_mean'
  config.model.mask_token = True
  config.model.attention = 'attention(key_bias=False)'
  config.model.positions = 'learned + relative_bias'
  config.model.block = 'block(layer_scale=0.1)'
  config.model.initializers = 'lecun'

  config.train.duration = '200 steps'
  config.train.batch_size = 128
  config.train.ema_decay = 0.98
  config.optim.learning_rate = 1e-3
  config.optim.warmup = '50 steps'
  config.optim.weight_decay = 0.05
  config.optim.name = 'adamw(b2=0.98)'
  config.optim.clip_norm = 3.0

  config.evals.linear = config_lib.evaluation(
    kind="linear(train_split='train[:80%]', features='tokens')",
    split='train[80%:]',
  )
  config.checkpoint.every = '200 steps'
  return config
