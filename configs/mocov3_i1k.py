"""MoCo v3 on ImageNet-1k: pre-training without labels.

  vit-jax train --config=mocov3_i1k:S/16 --workdir=runs/moco

The variant is S/16 or B/16. configs/mocov3_probe_i1k.py trains a linear probe.

Source: "An Empirical Study of Training Self-Supervised Vision Transformers",
arXiv:2104.02057, sections 4 and 5, and its authors' code
(facebookresearch/moco-v3). Validation accuracy of a linear probe after 300
epochs: S 73.2%, B 76.7%. Not run by us.

As in their code, weight decay applies to all trainable parameters, and ViT-S
has 12 heads. Difference: layers compute in bfloat16, theirs in float16 (mixed
precision).
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = 'S/16') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT.
  """
  recipes.choose(arg, ('S/16', 'B/16'), 'a variant')
  config = config_lib.default()
  config.data.name = 'imagenet2012'
  config.data.split = 'train'
  config.data.image_size = 224
  config.data.crop = 'random_resized(scale=(0.08, 1.0))'
  config.data.eval_resize = 256
  config.data.mean = recipes.IMAGENET_MEAN
  config.data.std = recipes.IMAGENET_STD
  # The second view is rarely blurred, and sometimes solarized (BYOL's).
  config.augment.jitter = 'jitter(0.4, 0.4, 0.2, 0.1, probability=0.8)'
  config.augment.gray = (0.2,)
  config.augment.blur = (1.0, 0.1)
  config.augment.solarize = (0.0, 0.2)

  config.model.name = recipes.vit_name(arg)
  config.model.num_heads = 12
  config.model.mlp = "mlp(gelu='exact')"
  config.model.positions = "sincos2d(kind='sincos2d_moco')"
  config.model.initializers = 'moco'
  config.train.dtype = 'bfloat16'
  config.objective.name = 'mocov3'

  config.train.duration = '300 epochs'
  config.train.batch_size = 4096
  config.optim.name = 'adamw'
  config.optim.learning_rate = 1.5e-4 * 4096 / 256
  config.optim.weight_decay = 0.1
  config.optim.decay_pattern = '.'
  config.optim.warmup = '40 epochs'

  config.evals.knn = config_lib.evaluation(
    'validation',
    '20 epochs',
    kind="knn(train_split='train[:10%]')",
  )
  config.checkpoint.every = '5 epochs'
  return config
