r"""A grid of learning rates and weight decays, each with three seeds.

vit-jax sweep --config=digits \
    --sweep=configs/sweeps/grid.py --workdir=runs/grid --jobs=2

4 x 3 points, 36 runs. sweep.png is a heat map of them. Not run in full by us.
"""

from vit_jax import config as config_lib
from vit_jax import sweep


def get_sweep(arg: str = '') -> sweep.Sweep:
  """Returns the sweep; takes no argument."""
  config_lib.no_argument(arg)
  return sweep.Sweep(
    space={
      'optim.learning_rate': sweep.choice(3e-4, 1e-3, 3e-3, 1e-2),
      'optim.weight_decay': sweep.choice(0.01, 0.1, 1.0),
    },
    sampler='grid',
    seeds=(0, 1, 2),
  )
