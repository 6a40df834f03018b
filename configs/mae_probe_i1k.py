"""A linear probe of MAE on ImageNet-1k, on a frozen encoder.

  vit-jax train --config=mae_probe_i1k:B/16,runs/mae

The first argument is B/16, L/16 or H/14. The second is a run of
configs/mae_i1k.py, or the authors' file.

Source: "Masked Autoencoders Are Scalable Vision Learners", arXiv:2111.06377,
table 10, and its authors' commands (facebookresearch/mae, FINETUNE.md).
Validation accuracy: B 67.8%, L 76.0%, H 77.2%. Not run by us.

Difference: the linear layer starts at zero. `--probe=linear` of `vit-jax
evaluate` standardises the features, and gives a similar number faster.
"""

import ml_collections

from vit_jax.config import recipes

# Epochs of each size.
_VARIANTS = {'B/16': 90, 'L/16': 50, 'H/14': 50}


def get_config(arg: str = 'B/16,runs/mae') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,PATH of the pre-trained model.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, _VARIANTS, 'a variant')
  config = recipes.probe()
  config.init_from.path = path or 'runs/mae'
  config.model.name = recipes.vit_name(size)
  config.model.positions = "sincos2d(kind='sincos2d_mae')"
  config.model.head = "linear(norm='batch')"
  config.train.duration = f'{_VARIANTS[size]} epochs'
  config.train.batch_size = 16_384
  config.optim.name = 'lars'
  config.optim.learning_rate = 0.1 * 16_384 / 256
  config.optim.warmup = '10 epochs'
  return config
