r"""Learning rate and weight decay, by a tree-structured Parzen estimator.

vit-jax sweep --config=digits \
    --sweep=configs/sweeps/lr_wd.py --workdir=runs/lr_wd --jobs=2

20 trials; bad ones are pruned. Not run in full by us.
"""

from vit_jax import config as config_lib
from vit_jax import sweep


def get_sweep(arg: str = '') -> sweep.Sweep:
  """Returns the sweep; takes no argument."""
  config_lib.no_argument(arg)
  return sweep.Sweep(
    space={
      'optim.learning_rate': sweep.log_uniform(1e-4, 1e-2),
      'optim.weight_decay': sweep.log_uniform(1e-3, 1.0),
    },
    sampler='tpe',
    trials=20,
    pruner='median',
  )
