r"""DeiT from scratch on ImageNet-1k, with or without a teacher.

  vit-jax train --config=deit_i1k:S

The variant is Ti, S or B. A teacher is any ImageNet-1k model that
`vit_jax.load` reads:

  vit-jax train --config=deit_i1k:S,distilled \
      --config.objective.options.teacher=PATH

Source: "Training data-efficient image transformers", arXiv:2012.12877, table 9,
and the authors' code. Validation accuracy after 300 epochs: Ti 72.2%, S 79.9%,
B 81.8%; distilled from a RegNetY-16GF 74.5%, 81.2% and 83.4%. Not run by us.
The authors' Ti and S took less than 3 days on 4 GPUs.

Differences: `recipes.deit` lists those of images and schedule. RegNetY is not
among our models; BiT-M-R152x2-ILSVRC2012 is another strong convnet. The authors
also keep an average of the parameters, which these results do not use.
"""

import ml_collections

from vit_jax.config import recipes

_VARIANTS = ('Ti', 'S', 'B')


def get_config(arg: str = 'S') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT, or VARIANT,distilled.
  """
  variant, distilled = recipes.split(arg, 'VARIANT,distilled')
  recipes.choose(variant, _VARIANTS, 'a variant')
  recipes.choose(distilled, ('', 'distilled'), 'a kind')
  config = recipes.deit()
  config.data.eval_resize = 256
  config.augment.policy = 'rand(m=9, mstd=0.5, inc=1)'  # instead of a jitter
  config.augment.erase = 'erase(0.25)'

  config.model.name = f'ViT-{variant}/16'
  config.model.stochastic_depth = 0.1
  config.objective.label_smoothing = 0.1
  if distilled:
    config.model.distillation_token = True
    config.objective.name = 'distillation'
    config.objective.options.distillation = 'hard'
    config.objective.options.teacher_weight = 0.5

  config.train.duration = '300 epochs'
  config.train.batch_size = 1024
  config.optim.name = 'adamw'
  config.optim.learning_rate = 5e-4 * 1024 / 512
  config.optim.schedule = 'cosine(final_factor=1e-5/1e-3)'
  config.optim.weight_decay = 0.05
  return config
