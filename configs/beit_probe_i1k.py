r"""A linear probe of BEiT on ImageNet-1k: a layer after the frozen trunk.

  python -m vit_jax.main --config=configs/beit_probe_i1k.py:B/16,runs/beit

of a run of configs/beit_i1k.py, or of a published file. VARIANT is B/16 or
L/16.

Source: the authors' code (microsoft/unilm, beit/run_linear_eval.py) and its
command. Not run by us.

Differences: the authors train a layer after each layer of the trunk, and
features from the middle are the best ones; here they are those of the last.
"""

import ml_collections

from vit_jax.config import recipes

# LayerScale of each size.
_VARIANTS = {'B/16': 0.1, 'L/16': 1e-5}


def get_config(arg: str = 'B/16,runs/beit') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,PATH of the pre-trained model.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, _VARIANTS, 'a variant')
  config = recipes.probe()
  config.init_from.path = path or 'runs/beit'
  config.data.mean = (0.5,)
  config.data.std = (0.5,)
  config.data.interpolation = 'bicubic'
  config.model.name = recipes.vit_name(size)
  config.model.pool = 'token+gap'
  config.model.key_bias = False
  config.model.position_embedding = 'none'
  config.model.relative_positions = 'shared'
  config.model.layer_scale = _VARIANTS[size]
  config.train.duration = '100 epochs'
  config.optim.name = 'adamw'
  config.optim.learning_rate = 4e-3
  config.optim.weight_decay = 1e-4
  return config
