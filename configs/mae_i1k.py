r"""MAE on ImageNet-1k: pre-training without labels.

  python -m vit_jax.main --config=configs/mae_i1k.py:B/16 --workdir=runs/mae

and then configs/mae_finetune_i1k.py or configs/mae_probe_i1k.py. VARIANT is
B/16, L/16 or H/14.

Source: "Masked Autoencoders Are Scalable Vision Learners", arXiv:2111.06377,
table 8; 800 epochs, as in the paper's ablations (--config.train.duration of
1600 epochs: its tables 3 and 4). Validation accuracy after fine-tuning and of a
linear probe, after 1,600 epochs, by the authors' code: B 83.66% and 67.8, L
85.95 and 76.0, H 86.93 and 77.2. Not run by us.

Difference: images are resized bilinearly with antialias, theirs bicubically.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes


def get_config(arg: str = 'B/16') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT.
  """
  recipes.choose(arg, ('B/16', 'L/16', 'H/14'), 'a variant')
  config = config_lib.default()
  config.data.name = 'imagenet2012'
  config.data.split = 'train'
  config.data.image_size = 224
  config.data.crop = 'random_resized'
  config.data.crop_scale = (0.2, 1.0)
  config.data.mean = recipes.IMAGENET_MEAN
  config.data.std = recipes.IMAGENET_STD

  config.model.name = recipes.vit_name(arg)
  config.model.gelu = 'exact'
  config.model.position_embedding = 'sincos2d_mae'
  config.train.dtype = 'bfloat16'
  config.objective.name = 'mae'
  config.objective.options.mask_ratio = 0.75
  config.objective.options.normalize_targets = True

  config.train.duration = '800 epochs'
  config.train.batch_size = 4096
  config.optim.name = 'adamw'
  config.optim.learning_rate = 1.5e-4 * 4096 / 256
  config.optim.b2 = 0.95
  config.optim.weight_decay = 0.05
  config.optim.warmup = '40 epochs'

  config.evals.val.split = 'validation'
  config.evals.val.every = '20 epochs'
  config.evals.knn = config_lib.evaluation(
    kind='knn',
    split='validation',
    train_split='train[:10%]',
    every='100 epochs',
  )
  config.checkpoint.every = '5 epochs'
  return config
