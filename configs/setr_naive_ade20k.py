r"""SETR-Naive with ViT-L/16 on ADE20K.

  vit-jax train \
    --config=setr_naive_ade20k:folder:ADEChallengeData2016

The argument is the folder of the scene parsing benchmark, which holds images/
and annotations/. Add a file classes.txt with its 150 classes, one per line.
Labels are stored from 1; 0 is ignored.

Source: arXiv:2012.15840, section 4.1. Validation mIoU in the paper, at a single
scale: 48.06%. Not run by us. `recipes.setr` lists the settings and
differences.
"""

import ml_collections

from vit_jax.config import recipes


def get_config(
  arg: str = 'folder:ADEChallengeData2016',
) -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: The data, as `config.data.name`.
  """
  config = recipes.setr('naive', 'ade20k', arg)
  config.data.map.labels = tuple(range(1, 151))
  return config
