"""MAE on ImageNet-1k: pre-training without labels.

  vit-jax train --config=mae_i1k:B/16 --workdir=runs/mae

The variant is B/16, L/16 or H/14. configs/mae_finetune_i1k.py fine-tunes the
result, and configs/mae_probe_i1k.py trains a linear probe.

Source: "Masked Autoencoders Are Scalable Vision Learners", arXiv:2111.06377,
table 8; 800 epochs, as in the paper's ablations. Its tables 3 and 4 have 1,600
epochs (--config.train.duration='1600 epochs'). Validation accuracy by the
authors' code after 1,600 epochs, fine-tuned and of a linear probe: B 83.66% and
67.8%, L 85.95% and 76.0%, H 86.93% and 77.2%. Not run by us.

Difference: images are resized bilinearly with antialiasing, theirs with bicubic
interpolation.
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
  config.data.crop = 'random_resized(scale=(0.2, 1.0))'
  config.data.mean = recipes.IMAGENET_MEAN
  config.data.std = recipes.IMAGENET_STD

  config.model.name = recipes.vit_name(arg)
  config.model.mlp = "mlp(gelu='exact')"
  config.model.positions = "sincos2d(kind='sincos2d_mae')"
  config.train.dtype = 'bfloat16'
  config.objective.name = 'mae'
  config.objective.options.mask_ratio = 0.75
  config.objective.options.normalize_targets = True

  config.train.duration = '800 epochs'
  config.train.batch_size = 4096
  config.optim.name = 'adamw(b2=0.95)'
  config.optim.learning_rate = 1.5e-4 * 4096 / 256
  config.optim.weight_decay = 0.05
  config.optim.warmup = '40 epochs'

  config.evals.val.split = 'validation'
  config.evals.val.every = '20 epochs'
  config.evals.knn = config_lib.evaluation(
    kind="knn(train_split='train[:10%]')",
    split='validation',
    every='100 epochs',
  )
  config.checkpoint.every = '5 epochs'
  return config
