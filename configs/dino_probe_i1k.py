"""A linear probe of DINO on ImageNet-1k, on a frozen backbone.

  vit-jax train --config=dino_probe_i1k:B/16,runs/dino

The first argument is S/16, S/8, B/16 or B/8. The second is a run of
configs/dino_i1k.py, or the authors' file.

Source: the authors' code (facebookresearch/dino, eval_linear.py). Validation
accuracy (arXiv:2104.14294, table 2): S/16 77.0%, S/8 79.7%, B/16 78.2%, B/8
80.1%. Not run by us.

Features of B are the class token and the mean of the patches. Difference: the
authors' features of S are the class tokens of the last four layers, here of the
last one. `--probe=knn` of `vit-jax evaluate` is the authors' other metric.
"""

import ml_collections

from vit_jax.config import recipes

_VARIANTS = ('S/16', 'S/8', 'B/16', 'B/8')


def get_config(arg: str = 'B/16,runs/dino') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,PATH of the pre-trained model.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, _VARIANTS, 'a variant')
  config = recipes.probe()
  config.init_from.path = path or 'runs/dino'
  config.data.interpolation = 'bicubic'
  config.model.name = recipes.vit_name(size)
  config.model.pool = 'token_and_mean' if size.startswith('B') else 'token'
  config.train.duration = '100 epochs'
  config.optim.learning_rate = 1e-3 * 1024 / 256
  return config
