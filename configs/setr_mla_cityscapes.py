r"""SETR-MLA with ViT-L/16 on Cityscapes.

  vit-jax train \
    --config=setr_mla_cityscapes:folder:cityscapes

The argument is the folder that holds leftImg8bit/ and gtFine/. Add a file
classes.txt with the 19 classes from road to bicycle, one per line.

Source: arXiv:2012.15840, section 4.1. Validation mIoU in the paper, at a single
scale: 77.24%. Not run by us. `recipes.setr` lists the settings and
differences.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = 'folder:cityscapes') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  config = recipes.setr('mla', 'cityscapes', arg)
  config.data.map.labels = recipes.CITYSCAPES
  config.data.map.image_suffix = '_leftImg8bit'
  config.data.map.suffix = '_gtFine_labelIds'
  return config
