"""SigLIP ViT-B/16, from scratch on pairs of images and captions.

  vit-jax train --config=siglip_b16:table:pairs.parquet

The argument is the data: a table with a column of images and a column of
captions. SigLIP's vocabulary is downloaded.

Source: "Sigmoid Loss for Language Image Pre-Training", arXiv:2303.15343, and
its authors' code (google-research/big_vision, trainers/proj/image_text/siglip).
The paper trains on 9 billion pairs of WebLI, which is not public. Not run by
us.
"""

import ml_collections

from vit_jax import config as config_lib


def get_config(arg: str = 'table:pairs.parquet') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  config = config_lib.default()
  config.data.name = arg
  config.data.split = 'train[:99%]'
  config.data.image_size = 224
  # The whole image, in the model's size.
  config.data.crop = 'center'
  config.data.resize = (224, 224)
  config.data.eval_resize = (224, 224)
  config.data.flip = False
  config.data.mean = (0.5,)
  config.data.std = (0.5,)
  config.data.tokenizer = 'sentencepiece'
  config.data.text_length = 64

  config.model.name = 'ViT-B/16'
  config.model.pool = 'map'
  config.model.class_token = False
  config.train.dtype = 'bfloat16'
  config.objective.name = 'contrastive'
  config.objective.options = {
    'loss': 'sigmoid',
    'dim': 0,
    'text_width': 768,
    'text_depth': 12,
    'text_heads': 12,
    'text_causal': False,
    'text_pool': 'last',
    'largest_scale': 0.0,
  }

  config.train.duration = '9e9 examples'
  config.train.batch_size = 32_768
  config.optim.name = 'adafactor(b2=0.95)'
  config.optim.learning_rate = 1e-3
  config.optim.weight_decay = 1e-4
  config.optim.warmup = '2.7e8 examples'  # 3% of the run
  config.optim.clip_norm = 1.0

  config.evals.retrieval = config_lib.evaluation(
    'train[99%:]', '1e8 examples', kind='retrieval'
  )
  config.checkpoint.every = '1e8 examples'
  return config
