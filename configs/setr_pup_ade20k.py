r"""SETR-PUP with ViT-L/16 on ADE20K.

  python -m vit_jax.main \
    --config=configs/setr_pup_ade20k.py:folder:ADEChallengeData2016

The argument is the folder of the scene parsing benchmark, which holds images/
and annotations/, with a file classes.txt: its 150 classes, one a line. Labels
are stored from 1; 0 does not count.

Source: arXiv:2012.15840, section 4.1; `dense_recipes.setr` lists the settings
and what differs. The paper's mean
intersection over union on the validation split is 48.62%, at one scale.
Not run by us.
"""

import ml_collections

from vit_jax.config import dense_recipes


def get_config(
  arg: str = 'folder:ADEChallengeData2016',
) -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  config = dense_recipes.setr('pup', 'ade20k', arg)
  config.data.map.labels = tuple(range(1, 151))
  return config
