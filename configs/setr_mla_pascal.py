r"""SETR-MLA with ViT-L/16 on Pascal Context.

  vit-jax train \
    --config=setr_mla_pascal:folder:pascal_context

The argument is a folder with images/{train,val}, masks/{train,val} and
classes.txt. Masks have 59 classes and the background. classes.txt names these
60.

Source: arXiv:2012.15840, section 4.1. Not run by us. `recipes.setr` lists
the settings and differences. Another difference: images are scaled from their
stored size; mmsegmentation first resizes the long side to 520 pixels.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(arg: str = 'folder:pascal_context') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  return recipes.setr('mla', 'pascal', arg)
