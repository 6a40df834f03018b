"""Fine-tuning of DINO on ImageNet-1k, with DeiT's protocol.

  vit-jax train --config=dino_finetune_i1k:S,runs/dino

The first argument is S or B. The second is a run of configs/dino_i1k.py, or the
authors' file.

Source: "Emerging properties in self-supervised vision transformers",
arXiv:2104.14294, table 6: DeiT's protocol, that of configs/deit_i1k.py.
Validation accuracy: S 81.5%, B 82.8%. Not run by us.

Difference: the paper does not state the number of epochs; here it is DeiT's
300.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = 'S,runs/dino') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,PATH of the pre-trained model.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, ('S', 'B'), 'a variant')
  config = config_lib.load(f'configs/deit_i1k.py:{size}')
  config.init_from.path = path or 'runs/dino'
  return config
