"""A linear probe of MoCo v3 on ImageNet-1k, on a frozen encoder.

  vit-jax train --config=mocov3_probe_i1k:S/16,runs/moco

The first argument is S/16 or B/16. The second is a run of
configs/mocov3_i1k.py, or the authors' file (vit-s-300ep.pth.tar, renamed to end
with .pth).

Source: the authors' code (facebookresearch/moco-v3, main_lincls.py) and its
commands. Validation accuracy (arXiv:2104.02057): S 73.2%, B 76.7%. Not run by
us.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = 'S/16,runs/moco') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,PATH of the pre-trained model.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, ('S/16', 'B/16'), 'a variant')
  config = recipes.probe()
  config.init_from.path = path or 'runs/moco'
  config.model.name = recipes.vit_name(size)
  config.model.num_heads = 12
  config.model.positions = "sincos2d(kind='sincos2d_moco')"
  config.train.duration = '90 epochs'
  config.optim.learning_rate = 3.0 * 1024 / 256
  return config
