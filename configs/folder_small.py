r"""A first try on a folder of images: a small ViT on 32 x 32 pixels.

  vit-jax train --config=folder_small:folder:images \
      --workdir=runs/images

The argument is any `data.name`, for example table:images.csv. configs/folder.py
explains the layout of a folder. Images may have any sizes. Without val and
test, a fifth of train is held out.

`python scripts/draw_shapes.py images` draws 90 training images of three
classes. Validation accuracy on 60 others: 55.6% (mean of seeds 0 to 2: 56.7,
56.7, 53.3; chance is 33.3%), after 17 s of CPU time on 2 cores. With 30 photos
of each of three classes of CIFAR-10: 71.2% (72.7, 70.7, 70.3).

The model has 147,587 parameters for three classes. It tests your data, with
dozens to thousands of images. With few images fine-tune a published checkpoint
(configs/finetune.py). With very many use configs/folder.py.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import recipes


def get_config(arg: str = '') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  config = config_lib.default()
  config.data.name = arg or 'folder:images'
  config.data.split = 'train'
  config.data.image_size = 32
  config.data.crop = 'random_resized(scale=(0.4, 1.0))'

  config.model.name = 'ViT-Ti/8'
  recipes.small_vit(config)

  config.train.duration = '40 epochs'
  config.train.batch_size = 16
  config.optim.learning_rate = 3e-3
  config.optim.warmup = '20 steps'
  config.optim.weight_decay = 0.1
  config.optim.clip_norm = 1.0

  config.evals.val.split = 'val'
  config.evals.val.every = '10 epochs'
  config.checkpoint.every = '10 epochs'
  config.checkpoint.best = 'val/accuracy'
  if arg:
    data.hold_out(config)
  return config
