"""Fine-tuning of BEiT on ImageNet-1k.

  vit-jax train --config=beit_finetune_i1k:B/16,runs/beit

The first argument is B/16 or L/16. The second is a run of configs/beit_i1k.py,
or a published file (beit_base_patch16_224 of microsoft/unilm or Hugging Face).

Source: "BEiT: BERT Pre-Training of Image Transformers", arXiv:2106.08254, the
table of fine-tuning in its appendix. The paper searches the learning rate; the
values here are those of the authors' commands (microsoft/unilm, beit).
Validation accuracy: B 83.2%, L 85.2%. Not run by us.

In pre-training all layers share the relative positions. Fine-tuning copies them
to each layer, and each copy learns separately, as in the authors' code.

Differences: `recipes.deit` lists those of images and schedule. There is no
repeated augmentation. The LayerNorm after the mean starts from pre-training;
the authors start it at ones and zeros.
"""

import dataclasses

import ml_collections

from vit_jax.config import recipes


@dataclasses.dataclass(frozen=True)
class _Variant:
  """What differs between sizes."""

  epochs: int
  warmup: int  # epochs
  learning_rate: float
  layer_decay: float
  stochastic_depth: float
  layer_scale: float


_VARIANTS = {
  'B/16': _Variant(100, 20, 4e-3, 0.65, 0.1, 0.1),
  'L/16': _Variant(50, 5, 1e-3, 0.75, 0.2, 1e-5),
}


def get_config(arg: str = 'B/16,runs/beit') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,PATH of the pre-trained model.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, _VARIANTS, 'a variant')
  variant = _VARIANTS[size]
  config = recipes.deit()
  config.init_from.path = path or 'runs/beit'
  config.data.mean = (0.5,)
  config.data.std = (0.5,)
  config.data.eval_resize = 256
  config.augment.repeats = 1
  config.augment.policy = 'rand(m=9, mstd=0.5, inc=1)'
  config.augment.erase = 'erase(0.25)'
  config.objective.label_smoothing = 0.1

  config.model.name = recipes.vit_name(size)
  config.model.pool = 'mean(norm_after=True)'
  config.model.class_token = True
  config.model.attention = 'attention(key_bias=False)'
  config.model.positions = 'relative_bias(shared=False)'
  config.model.block = f'block(layer_scale={variant.layer_scale})'
  config.model.stochastic_depth = variant.stochastic_depth

  config.train.duration = f'{variant.epochs} epochs'
  config.train.batch_size = 1024
  config.optim.name = 'adamw'
  config.optim.learning_rate = variant.learning_rate
  final_factor = 1e-6 / variant.learning_rate
  config.optim.schedule = f'cosine(final_factor={final_factor})'
  config.optim.warmup = f'{variant.warmup} epochs'
  config.optim.layer_decay = variant.layer_decay
  config.optim.weight_decay = 0.05
  return config
