"""Trans2Seg with BiT-R50x1 on transparent objects (Trans10K-v2).

  vit-jax train --config=trans2seg_trans10k:folder:trans10k

The argument is a folder with images/{train,val,test}, masks/ and classes.txt.
Masks have 11 classes and the background. classes.txt names these 12, one per
line.

Source: "Segmenting Transparent Object in the Wild with Transformer",
arXiv:2101.08461: sizes of the transformer, 512 pixels, 50 epochs, Adam with
1e-4. The paper's mIoU is 72.15%. Not run by us.

Differences: BiT halves its grid to 16 x 16 in the last stage; the authors'
ResNet-50 is dilated there, and has 32 x 32. Batch size, augmentation and the
power of the polynomial schedule are our choice.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import checkpoints


def get_config(arg: str = 'folder:trans10k') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  config = config_lib.default()
  config.data.name = arg
  config.data.split = 'train'
  config.data.image_size = 512
  config.data.crop = 'scaled(zoom=(0.5, 2.0))'
  config.data.resize = config.data.eval_resize = 512

  config.model.name = 'BiT-R50x1'
  config.init_from.path = checkpoints.CHECKPOINTS['BiT-R50x1']

  config.objective.name = 'segmentation'
  config.objective.options.head = 'trans2seg'
  config.objective.options.width = 256
  config.objective.options.depth = 4
  config.objective.options.heads = 8
  config.objective.options.channels = 64

  config.train.duration = '50 epochs'
  config.train.batch_size = 16
  config.optim.name = 'adamw'
  config.optim.weight_decay = 0.0  # which is Adam
  config.optim.learning_rate = 1e-4
  config.optim.schedule = 'poly(power=0.9)'

  config.evals.val.split = 'val'
  config.evals.val.every = '5 epochs'
  config.checkpoint.every = '5 epochs'
  config.checkpoint.best = 'val/miou'
  return config
