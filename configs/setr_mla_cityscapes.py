r"""SETR-MLA with ViT-L/16 on Cityscapes.

  python -m vit_jax.main \
    --config=configs/setr_mla_cityscapes.py:folder:cityscapes

The argument is the folder that holds leftImg8bit/ and gtFine/, with a file
classes.txt: the 19 classes from road to bicycle, one a line.

Source: arXiv:2012.15840, section 4.1; `dense_recipes.setr` lists the settings
and what differs. The paper's mean
intersection over union on the validation split is 77.24%, at one scale.
Not run by us.
"""

import ml_collections

from vit_jax.config import dense_recipes


def get_config(arg: str = 'folder:cityscapes') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  config = dense_recipes.setr('mla', 'cityscapes', arg)
  config.data.map.labels = dense_recipes.CITYSCAPES
  config.data.map.image_suffix = '_leftImg8bit'
  config.data.map.suffix = '_gtFine_labelIds'
  return config
