"""ViTs from scratch on ImageNet-1k with AugReg.

  vit-jax train --config=vit_i1k:B/16,medium2
  vit-jax train --config=vit_i1k:B/16,medium1,0.1

The arguments are VARIANT,AUG,REG:

- VARIANT is Ti/16, S/32, S/16, B/32, B/16, L/16, R+Ti/16, R26+S/32 or R50+L/32.
- AUG is none, light1, light2, medium1, medium2, strong1 or strong2. The default
  is that of the authors' published config for the variant.
- REG is the rate of dropout and stochastic depth, 0 (default) or 0.1.

Source: "How to train your ViT?", arXiv:2106.10270, sections 3.2 to 3.4, 300
epochs. Table 3 gives the best setting of each variant at 224 px: Ti/16 72.59%,
S/32 72.07%, S/16 79.00%, B/32 74.42%, B/16 79.84%, L/16 75.72%, R+Ti/16 70.13%,
R26+S/32 79.61%, R50+L/32 76.84%. Figure 4 has all settings. Not run by us.

The head has a hidden layer; the paper has models with and without it
(--config.model.head='linear(bias=-6.9)'). The paper also uses a weight decay of
0.03. To save memory: --config.train.accumulation=8.
"""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import recipes

_AUG = {
  'Ti/16': 'light1',
  'S/32': 'light2',
  'S/16': 'medium2',
  'B/32': 'medium2',
  'B/16': 'medium2',
  'L/16': 'medium2',
  'R+Ti/16': '',
  'R26+S/32': '',
  'R50+L/32': '',
}


def get_config(arg: str = 'B/16') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: VARIANT,AUG,REG.
  """
  variant, aug, reg = recipes.split(arg, 'VARIANT,AUG,REG')
  recipes.choose(variant, _AUG, 'a variant')
  recipes.choose(reg, ('', '0', '0.1'), 'a regularisation')
  if not (aug or _AUG[variant]):
    raise config_lib.UserError(
      f'{variant} has no usual setting: choose one of'
      f' {", ".join(recipes.AUGREG)}, as in {variant},medium1'
    )
  config = recipes.imagenet()
  recipes.augreg(config, aug or _AUG[variant])

  config.model.name = recipes.vit_name(variant)
  width = recipes.hidden_size(variant)
  # The bias is log(1 / 1000).
  config.model.head = f'linear(pre_logits={width}, bias=-6.9)'
  config.objective.loss = 'sigmoid'
  if reg == '0.1':
    config.model.dropout_rate = 0.1
    config.model.stochastic_depth = 0.1

  config.train.duration = '300 epochs'
  return config
