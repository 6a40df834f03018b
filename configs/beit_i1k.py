r"""BEiT on ImageNet-1k: pre-training without labels.

  vit-jax train --config=beit_i1k:B/16 \
      --config.objective.options.tokenizer=PATH

The argument is B/16 or L/16. configs/beit_finetune_i1k.py fine-tunes the
result. PATH is one of:

- DALL-E's encoder, the paper's tokenizer, in a file (docs/self_supervision.md)
  or as hf:facebook/flava-image-codebook,
- a tokenizer run with 14 x 14 tokens, trained with
  --config.objective.name=tokenizer, for example on 112 pixels with patches of
  8.

Without PATH, tokens are k-means of the patches, which the paper does not use.

Source: "BEiT: BERT Pre-Training of Image Transformers", arXiv:2106.08254,
section 3.1 and the table of pre-training in its appendix, and the authors'
commands (microsoft/unilm, beit). Validation accuracy after fine-tuning: B
83.2%, L 85.2%. Not run by us.

Differences: images are resized bilinearly with antialiasing, the authors' use
bicubic interpolation. The tokenizer sees the resized crop, theirs sees the same
crop of the photograph.
"""

import dataclasses

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


@dataclasses.dataclass(frozen=True)
class _Variant:
  """What differs between sizes."""

  layer_scale: float
  clip_norm: float


_VARIANTS = {'B/16': _Variant(0.1, 3.0), 'L/16': _Variant(1e-5, 1.0)}


def get_config(arg: str = 'B/16') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT.
  """
  recipes.choose(arg, _VARIANTS, 'a variant')
  variant = _VARIANTS[arg]
  config = config_lib.default()
  config.data.name = 'imagenet2012'
  config.data.split = 'train'
  config.data.image_size = 224
  config.data.crop = 'random_resized(scale=(0.08, 1.0))'
  config.data.mean = (0.5,)
  config.data.std = (0.5,)
  config.augment.jitter = 'jitter(0.4, 0.4, 0.4, 0.0)'

  config.objective.name = 'beit'
  config.objective.options.tokens = 8192
  config.objective.options.masked = 75
  config.objective.options.block_least = 16
  config.objective.options.block_aspect = 0.3

  config.model.name = recipes.vit_name(arg)
  config.model.mlp = "mlp(gelu='exact')"
  config.model.initializers = 'deit'
  config.model.mask_token = True
  config.model.attention = 'attention(key_bias=False)'
  config.model.positions = 'relative_bias'
  config.model.block = f'block(layer_scale={variant.layer_scale})'
  config.model.stochastic_depth = 0.1
  config.train.dtype = 'bfloat16'

  config.train.duration = '800 epochs'
  config.train.batch_size = 2048
  config.optim.name = 'adamw'
  config.optim.learning_rate = 1.5e-3
  config.optim.schedule = 'cosine(final_factor=1e-5/1.5e-3)'
  config.optim.warmup = '10 epochs'
  config.optim.weight_decay = 0.05
  config.optim.clip_norm = variant.clip_norm

  config.evals.knn = config_lib.evaluation(
    kind="knn(train_split='train[:10%]')",
    split='validation',
    every='100 epochs',
  )
  config.checkpoint.every = '5 epochs'
  return config
