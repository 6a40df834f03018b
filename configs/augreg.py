r"""A checkpoint of "How to train your ViT?" (AugReg), fine-tuned.

  vit-jax train --config=augreg:B/16,oxford_iiit_pet

The model is Ti/16, S/32, S/16, B/32, B/16, L/16, R+Ti/16, R26+S/32 or R50+L/32.
The config takes its recommended checkpoint: the ImageNet-21k one with the best
final_val in index.csv. A full file name from that table also works:

  vit-jax train --config=augreg:B_16-i21k-300ep-lr_0.001\
-aug_medium1-wd_0.1-do_0.0-sd_0.0,cifar10

Accuracy after fine-tuning on ImageNet-1k at 384 px (arXiv:2106.10270): Ti/16
78.22%, S/16 83.73%, B/16 85.49%, L/16 85.59%, R+Ti/16 75.40%, R26+S/32 83.85%,
R50+L/32 85.99%. Not run by us: we could not reach gs://vit_models/augreg.
"""

import ml_collections

from vit_jax.config import recipes
from vit_jax.weights.formats import augreg


def get_config(arg: str = 'B/16,cifar10') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: Model or file name, and a dataset after a comma; cifar10 without one.
  """
  model, _, dataset = arg.partition(',')
  name, path = augreg.find(model)
  return recipes.fine_tuning(name, dataset or 'cifar10', path)
