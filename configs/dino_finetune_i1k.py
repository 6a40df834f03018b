r"""Fine-tuning of DINO on ImageNet-1k, as DeiT is trained.

  python -m vit_jax.main --config=configs/dino_finetune_i1k.py:S,runs/dino

of a run of configs/dino_i1k.py, or of the authors' file. VARIANT is S or B.

Source: "Emerging properties in self-supervised vision transformers",
arXiv:2104.14294, table 6: DeiT's protocol, that of configs/deit_i1k.py.
Validation accuracy: S 81.5%, B 82.8. Not run by us.

Differences: the paper does not say how many epochs; here are DeiT's 300.
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
