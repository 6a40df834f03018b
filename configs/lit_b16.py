"""LiT: a text tower learns from a frozen ViT-B/16.

  vit-jax train --config=lit_b16:table:pairs.parquet

The argument is the data: a table with a column of images and a column of
captions. BERT's uncased vocabulary and AugReg's ViT-B/16 of ImageNet-21k are
downloaded.

Source: "LiT: Zero-Shot Transfer with Locked-image text Tuning",
arXiv:2111.07991, in the form of its authors' public config
(google-research/big_vision, configs/proj/image_text/lit_coco.py). Zero-shot
accuracy on ImageNet-1k of their LiT-B16B, whose text tower is a BERT-base:
72.07%. Not run by us.

Differences: the text tower is a pre-LN transformer of the same size with random
weights, theirs is a pre-trained BERT. The temperature starts at 0.07, theirs at
0.1.
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
  config.data.crop = 'center'
  config.data.resize = (224, 224)
  config.data.eval_resize = (224, 224)
  config.data.mean = (0.5,)
  config.data.std = (0.5,)
  config.augment.policy = 'randaugment(2,10)'
  config.data.tokenizer = 'wordpiece'
  config.data.text_length = 16

  config.model.name = 'ViT-B/16'
  config.init_from.path = 'ViT-B/16'
  config.train.dtype = 'bfloat16'
  config.objective.name = 'contrastive'
  config.objective.options = {
    'locked': 'image',
    'dim': 0,
    'text_width': 768,
    'text_depth': 12,
    'text_heads': 12,
    'text_causal': False,
    'text_pool': 'first',
    'largest_scale': 0.0,
  }

  config.train.duration = '5_000 steps'
  config.train.batch_size = 4096
  config.optim.name = 'adamw'
  config.optim.learning_rate = 1e-3
  config.optim.weight_decay = 0.01
  config.optim.warmup = '150 steps'
  config.optim.clip_norm = 1.0

  config.evals.retrieval = config_lib.evaluation(
    'train[99%:]', '500 steps', kind='retrieval'
  )
  config.checkpoint.every = '1_000 steps'
  return config
