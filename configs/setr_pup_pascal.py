r"""SETR-PUP with ViT-L/16 on Pascal Context.

  python -m vit_jax.main \
    --config=configs/setr_pup_pascal.py:folder:pascal_context

The argument is a folder with images/{train,val}, maps of the 59 classes and the
background in masks/{train,val}, and classes.txt, which names these 60.

Source: arXiv:2012.15840, section 4.1; `dense_recipes.setr` lists the settings
and what differs. Images are scaled from their own size, where mmsegmentation
brings their long side to 520 pixels before. Not run by us.
"""

import ml_collections

from vit_jax.config import dense_recipes


def get_config(arg: str = 'folder:pascal_context') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  return dense_recipes.setr('pup', 'pascal', arg)
