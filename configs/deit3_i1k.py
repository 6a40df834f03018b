"""DeiT III from scratch on ImageNet-1k.

  vit-jax train --config=deit3_i1k:B --workdir=runs/deit3

The variant is S, B, L or H. B, L and H then train for 20 more epochs at 224 px:

  vit-jax train --config=deit3_i1k:B,runs/deit3

Source: "DeiT III: Revenge of the ViT", arXiv:2204.07118, and its authors'
commands (facebookresearch/deit, README_revenge.md), 800 epochs and 20 more.
Validation accuracy at 224 px: S 81.4%, B 83.8%, L 84.9%, H 85.2%. Not run by
us. To save memory: --config.train.accumulation=4, for L and H more.

Differences: `recipes.deit` lists those of images and schedule. H trains at 160
px; its patches of 14 cover 154 of them.
"""

import dataclasses

import ml_collections

from vit_jax.config import recipes


@dataclasses.dataclass(frozen=True)
class _Variant:
  """Settings of the authors' commands for a size."""

  patch: int
  image_size: int
  learning_rate: float
  stochastic_depth: float
  fine_tuned_depth: float  # stochastic depth of the second command


_VARIANTS = {
  'S': _Variant(16, 224, 4e-3, 0.05, 0.05),
  'B': _Variant(16, 192, 3e-3, 0.2, 0.2),
  'L': _Variant(16, 192, 3e-3, 0.45, 0.45),
  'H': _Variant(14, 154, 3e-3, 0.6, 0.55),
}


def get_config(arg: str = 'B') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT, or VARIANT,PATH of the run to go on from at 224 px.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, _VARIANTS, 'a variant')
  variant = _VARIANTS[size]
  config = recipes.deit()
  config.data.eval_resize = None  # the crop is the whole short side

  config.model.name = f'ViT-{size}/{variant.patch}'
  config.model.block = 'block(layer_scale=1e-4, stochastic_depth_uniform=True)'
  config.model.positions = "learned(tokens='patches')"
  if path:
    _fine_tune(config, variant, path)
  else:
    _train(config, variant)
  return config


def _train(config: ml_collections.ConfigDict, variant: _Variant) -> None:
  config.data.image_size = variant.image_size
  config.augment.policy = '3augment'
  config.augment.jitter = 'jitter(0.3, 0.3, 0.3, 0.0)'
  config.model.stochastic_depth = variant.stochastic_depth
  config.objective.loss = 'sigmoid_any'

  config.train.duration = '800 epochs'
  config.train.batch_size = 2048
  config.optim.name = 'lamb(eps=1e-5)'
  config.optim.learning_rate = variant.learning_rate
  final_factor = 1e-5 / variant.learning_rate
  config.optim.schedule = f'cosine(final_factor={final_factor})'
  config.optim.weight_decay = 0.05
  # Our loss is the sum over 1,000 classes, theirs the mean, so these are 1,000
  # times theirs, and the steps are the same.
  config.optim.clip_norm = 1000.0


def _fine_tune(
  config: ml_collections.ConfigDict, variant: _Variant, path: str
) -> None:
  config.init_from.path = path
  config.augment.policy = 'rand(m=9, mstd=0.5, inc=1)'
  config.augment.repeats = 1
  config.model.stochastic_depth = variant.fine_tuned_depth
  config.objective.label_smoothing = 0.1

  config.train.duration = '20 epochs'
  config.train.batch_size = 512
  config.optim.name = 'adamw'
  config.optim.learning_rate = 1e-5
  config.optim.schedule = 'constant'  # their cosine ends at 1e-5
  config.optim.weight_decay = 0.1
  config.evals.test.every = '1 epochs'
  config.checkpoint.every = '1 epochs'
