"""Fine-tuning of MoCo v3 on ImageNet-1k, with DeiT's protocol.

  vit-jax train --config=mocov3_finetune_i1k:B,runs/moco

The first argument is S or B. The second is a run of configs/mocov3_i1k.py, or
the authors' file.

Source: the authors' README (facebookresearch/moco-v3). All settings are DeiT's,
those of configs/deit_i1k.py, except for the 150 epochs of B. Validation
accuracy: S 81.4%, B 83.2%. Not run by us.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes

# Epochs of each size.
_VARIANTS = {'S': 300, 'B': 150}


def get_config(arg: str = 'B,runs/moco') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,PATH of the pre-trained model.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, _VARIANTS, 'a variant')
  config = config_lib.load(f'configs/deit_i1k.py:{size}')
  config.init_from.path = path or 'runs/moco'
  config.model.num_heads = 12
  config.train.duration = f'{_VARIANTS[size]} epochs'
  return config
