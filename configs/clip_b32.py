"""CLIP ViT-B/32, from scratch on pairs of images and captions.

  vit-jax train --config=clip_b32:table:pairs.parquet

The argument is the data: a table with a column of images and a column of
captions. CLIP's vocabulary is downloaded.

Source: "Learning Transferable Visual Models From Natural Language Supervision",
arXiv:2103.00020, tables 18 to 20. Zero-shot accuracy on ImageNet-1k with the
paper's 400 million pairs, which are not public: 63.2%. Not run by us.

Differences: crops cover at least 0.9 of the image's area; the paper takes a
random square of the resized image. Layers compute in bfloat16, the authors' in
float16 (mixed precision).
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
  config.data.crop = 'random_resized(scale=(0.9, 1.0))'
  config.data.flip = False  # captions may say left and right
  config.data.interpolation = 'bicubic'
  config.data.mean = (0.48145466, 0.4578275, 0.40821073)
  config.data.std = (0.26862954, 0.26130258, 0.27577711)
  config.data.tokenizer = 'clip'

  config.model.name = 'ViT-B/32'
  config.model.patches = 'patches(bias=False)'
  config.model.pre_norm = True
  config.model.mlp = "mlp(gelu='sigmoid')"
  config.model.layer_norm_epsilon = 1e-5
  config.train.dtype = 'bfloat16'
  config.objective.name = 'contrastive'
  config.objective.options = {
    'dim': 512,
    'text_width': 512,
    'text_depth': 12,
    'text_heads': 8,
    'largest_scale': 100.0,
  }

  config.train.duration = '32 epochs'
  config.train.batch_size = 32_768
  config.optim.name = 'adamw(b2=0.98, eps=1e-6)'
  config.optim.learning_rate = 5e-4
  config.optim.weight_decay = 0.2
  # All weights that are no gains or biases.
  config.optim.decay_pattern = r'(kernel|embedding)$'
  config.optim.warmup = '2_000 steps'

  config.evals.retrieval = config_lib.evaluation(
    'train[99%:]', '1 epochs', kind='retrieval'
  )
  config.checkpoint.every = '1 epochs'
  return config
