r"""A linear probe of DINOv2 on ImageNet-1k: a layer after the frozen trunk.

  python -m vit_jax.main --config=configs/dinov2_probe_i1k.py:L/16,runs/dinov2

of a run of configs/dinov2_i1k.py, or of a published file. VARIANT is S/14,
B/14, L/14, or L/16, the size of that run.

Source: the authors' code (facebookresearch/dinov2, eval/linear.py). Validation
accuracy of the published models (arXiv:2304.07193, table 4): S 81.1%, B 84.5, L
86.3. Not run by us.

The authors train many layers at once and report the best one: of learning rates
of 256 images from 1e-5 to 0.1, with features of the last layer or of four, with
and without the mean of the patches. This is one of them; try others with
--config.optim.learning_rate.
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
  config.model.pool = 'token+gap'
  config.model.layer_scale = 1e-5
  config.train.duration = '12_500 steps'
  config.optim.learning_rate = 5e-3 * 1024 / 256
  return config
