"""A linear probe of BEiT on ImageNet-1k, on a frozen backbone.

  vit-jax train --config=beit_probe_i1k:B/16,runs/beit

The first argument is B/16 or L/16. The second is a run of configs/beit_i1k.py,
or a published file.

Source: the authors' code (microsoft/unilm, beit/run_linear_eval.py) and its
command. Not run by us.

Difference: the authors train one probe per layer, and middle layers give the
best features. This config probes the last layer.
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
  config.model.pool = 'token_and_mean'
  config.model.attention = 'attention(key_bias=False)'
  config.model.positions = 'relative_bias'
  config.model.block = f'block(layer_scale={_VARIANTS[size]})'
  config.train.duration = '100 epochs'
  config.optim.name = 'adamw'
  config.optim.learning_rate = 4e-3
  config.optim.weight_decay = 1e-4
  return config
