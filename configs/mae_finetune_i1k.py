"""Fine-tuning of MAE on ImageNet-1k.

  vit-jax train --config=mae_finetune_i1k:B/16,runs/mae

The first argument is B/16, L/16 or H/14. The second is a run of
configs/mae_i1k.py, or the authors' file (mae_pretrain_vit_base.pth).

Source: "Masked Autoencoders Are Scalable Vision Learners", arXiv:2111.06377,
table 9, and its authors' commands (facebookresearch/mae, FINETUNE.md).
Validation accuracy: B 83.6%, L 85.9%, H 86.9%. Not run by us.

Differences: `recipes.deit` lists those of images and schedule. There is no
repeated augmentation.
"""

import dataclasses

import ml_collections

from vit_jax.config import recipes


@dataclasses.dataclass(frozen=True)
class _Variant:
  """Settings of the authors' commands for a size."""

  epochs: int
  learning_rate: float  # of 256 images
  layer_decay: float
  stochastic_depth: float


_VARIANTS = {
  'B/16': _Variant(100, 5e-4, 0.65, 0.1),
  'L/16': _Variant(50, 1e-3, 0.75, 0.2),
  'H/14': _Variant(50, 1e-3, 0.75, 0.3),
}


def get_config(arg: str = 'B/16,runs/mae') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,PATH of the pre-trained model.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, _VARIANTS, 'a variant')
  variant = _VARIANTS[size]
  config = recipes.deit()
  config.init_from.path = path or 'runs/mae'
  config.data.eval_resize = 256
  config.augment.repeats = 1
  config.augment.policy = 'rand(m=9, mstd=0.5, inc=1)'
  config.augment.erase = 'erase(0.25)'
  config.objective.label_smoothing = 0.1

  config.model.name = recipes.vit_name(size)
  # The fixed positions of pre-training become learned ones, as theirs do.
  config.model.pool = 'mean(norm_after=True)'
  config.model.class_token = True
  config.model.stochastic_depth = variant.stochastic_depth

  config.train.duration = f'{variant.epochs} epochs'
  config.train.batch_size = 1024
  config.optim.name = 'adamw'
  config.optim.learning_rate = variant.learning_rate * 1024 / 256
  config.optim.layer_decay = variant.layer_decay
  config.optim.weight_decay = 0.05
  final_factor = 1e-6 / config.optim.learning_rate
  config.optim.schedule = f'cosine(final_factor={final_factor})'
  return config
