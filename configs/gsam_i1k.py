"""ViTs and Mixers from scratch on ImageNet-1k with GSAM, almost unaugmented.

vit-jax train --config=gsam_i1k:S/16

The variant is S/16, B/16, B/32 or Mixer-B/16.

Source: "Surrogate Gap Minimization Improves Sharpness-Aware Training",
arXiv:2203.08065, and its authors' config for B/32 in big_vision. Validation
accuracy after 300 epochs: S/16 79.5%, B/16 81.0%, Mixer-B/16 77.8%. With SAM
(sam_i1k.py) it is 78.1%, 79.9% and 77.4%. Not run by us.

A step makes two passes over each of 64 microbatches in sequence, as for SAM. On
many devices it is slow. The norm of the perturbation (rho) follows the learning
rate. The authors' weight decay of 1e-3 is multiplied by the schedule only. Here
it is the paper's 0.3, which is multiplied by the learning rate, 3e-3.
"""

import ml_collections

from vit_jax.config import recipes

# Highest and lowest rho, and alpha.
_GSAM = {
  'S/16': (0.6, 0.0, 1.0),
  'B/16': (0.6, 0.2, 0.4),
  'B/32': (0.6, 0.1, 0.6),
  'Mixer-B/16': (0.5, 0.2, 0.01),
}


def get_config(arg: str = 'S/16') -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    arg: S/16, B/16, B/32 or Mixer-B/16.
  """
  recipes.choose(arg, _GSAM, 'a variant')
  config = recipes.imagenet()
  if arg.startswith('Mixer'):
    config.model.name = arg
  else:
    config.model.name = recipes.vit_name(arg)
    config.model.pool = 'mean'
  config.model.head = 'linear(bias=-10.0)'
  config.objective.loss = 'sigmoid'

  config.train.duration = '300 epochs'
  config.train.batch_size = 4096
  config.optim.learning_rate = 3e-3
  config.optim.schedule = 'linear(final_factor=0.01)'
  config.optim.weight_decay = 0.3
  rho, rho_min, alpha = _GSAM[arg]
  config.optim.sam = (
    f'gsam(rho={rho}, rho_min={rho_min}, alpha={alpha}, groups=64)'
  )
  return config
