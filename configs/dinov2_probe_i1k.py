"""A linear probe of DINOv2 on ImageNet-1k, on a frozen backbone.

  vit-jax train --config=dinov2_probe_i1k:L/16,runs/dinov2

The first argument is S/14, B/14, L/14, or L/16, the size of
configs/dinov2_i1k.py. The second is a run of that config, or a published file.

Source: the authors' code (facebookresearch/dinov2, eval/linear.py). Validation
accuracy of the published models (arXiv:2304.07193, table 4): S 81.1%, B 84.5%,
L 86.3%. Not run by us.

Difference: the authors train many probes at once and report the best. Theirs
vary the learning rate (1e-5 to 0.1 for 256 images), the layers (the last or
four) and the mean of the patches (with or without). This config trains one of
them; set --config.optim.learning_rate to try others.
"""

import ml_collections

from vit_jax.config import recipes

_VARIANTS = ('S/14', 'B/14', 'L/14', 'L/16')


def get_config(arg: str = 'L/16,runs/dinov2') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,PATH of the pre-trained model.
  """
  size, path = recipes.split(arg, 'VARIANT,PATH')
  recipes.choose(size, _VARIANTS, 'a variant')
  config = recipes.probe()
  config.init_from.path = path or 'runs/dinov2'
  config.data.interpolation = 'bicubic'
  config.model.name = recipes.vit_name(size)
  config.model.pool = 'token_and_mean'
  config.model.block = 'block(layer_scale=1e-5)'
  config.train.duration = '12_500 steps'
  config.optim.learning_rate = 5e-3 * 1024 / 256
  return config
