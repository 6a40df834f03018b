"""DINO on ImageNet-1k, without labels.

  vit-jax train --config=dino_i1k:S

The variant is S or B. configs/dino_finetune_i1k.py fine-tunes the result, and
configs/dino_probe_i1k.py trains a linear probe as the authors do.

Source: "Emerging properties in self-supervised vision transformers",
arXiv:2104.14294, section 3.2 and appendix C, and the authors' code. Accuracy of
k nearest neighbours and of a linear probe (table 2): S/16 74.5% and 77.0% after
800 epochs (69.3% and 74.0% after 100), B/16 76.1% and 78.2% after 400. Not run
by us.

Differences: the authors' teacher temperature rises once per epoch. Their Adam
of the last layer begins when the layer is no longer frozen.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes

# (epochs, learning rate for 256 images, its final value, largest norm of a
# gradient, epochs in which the last layer is frozen, trained norms of the
# prototypes)
_VARIANTS = {
  'S': (800, 5e-4, 1e-5, 0.0, 1, True),
  'B': (400, 7.5e-4, 2e-6, 0.3, 3, False),
}


def get_config(arg: str = 'S') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: S or B.
  """
  recipes.choose(arg, tuple(_VARIANTS), 'a variant')
  epochs, rate, final, clip, frozen, trains_scale = _VARIANTS[arg]
  config = recipes.dino()
  config.model.name = f'ViT-{arg}/16'
  config.model.stochastic_depth = 0.1

  config.objective.name = 'dino'
  options = config.objective.options
  options.trains_scale = trains_scale
  options.teacher_temperature = 0.07
  options.teacher_temperature_start = 0.04
  options.teacher_temperature_warmup = '30 epochs'
  options.freeze_last_layer = f'{frozen} epochs'

  config.train.duration = f'{epochs} epochs'
  config.train.batch_size = 1024
  config.optim.learning_rate = rate * 1024 / 256
  final_factor = final / config.optim.learning_rate
  config.optim.schedule = f'cosine(final_factor={final_factor})'
  config.optim.clip = f'each({clip})' if clip else ''
  config.evals.knn = config_lib.evaluation(
    kind="knn(train_split='train')", split='validation', every='50 epochs'
  )
  return config
