r"""ViTs on ImageNet-21k with AugReg, the start of many checkpoints.

  vit-jax train --config=vit_i21k:B/16,light2,300ep \
      --config.data.name=folder:/path/to/imagenet21k

TFDS does not have ImageNet-21k: use a folder with one subfolder per class (the
authors have 21,843). The arguments are VARIANT,AUG,EPOCHS:

- VARIANT is Ti/16, S/32, S/16, B/32, B/16, L/16, R+Ti/16, R26+S/32 or R50+L/32.
- AUG is none, light1, light2, medium1, medium2, strong1 or strong2. The default
  is that of the authors' published config, or of their best checkpoint for
  hybrids.
- EPOCHS is 300ep (default) or 30ep.

Source: "How to train your ViT?", arXiv:2106.10270, sections 3.2 to 3.4. Table 3
gives the accuracy after fine-tuning on ImageNet-1k at 224 px, for 30 and 300
epochs: Ti/16 68.89% and 73.75%, S/32 68.49% and 73.47%, S/16 76.04% and 80.46%,
B/32 72.24% and 79.13%, B/16 80.42% and 83.96%, L/16 82.05% and 83.98%, R+Ti/16
65.65% and 69.69%, R26+S/32 77.42% and 80.81%, R50+L/32 80.26% and 82.74%. Not
run by us.

The paper's other weight decay, 0.03, suits less augmentation. Dropout and
stochastic depth of 0.1 rarely helped. To save memory:
--config.train.accumulation=8.
"""

import ml_collections

from vit_jax.config import recipes

_AUG = {
  'Ti/16': 'none',
  'S/32': 'none',
  'S/16': 'light1',
  'B/32': 'light2',
  'B/16': 'light2',
  'L/16': 'medium2',
  'R+Ti/16': 'none',
  'R26+S/32': 'medium2',
  'R50+L/32': 'medium2',
}


def get_config(arg: str = 'B/16') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,AUG,LENGTH.
  """
  variant, aug, length = recipes.split(arg, 'VARIANT,AUG,LENGTH')
  recipes.choose(variant, _AUG, 'a variant')
  recipes.choose(length, ('', '300ep', '30ep'), 'a length')
  config = recipes.imagenet21k()
  recipes.augreg(config, aug or _AUG[variant])

  config.model.name = recipes.vit_name(variant)

  config.train.duration = '30 epochs' if length == '30ep' else '300 epochs'
  return config
