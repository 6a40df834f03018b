r"""The unchanged config with several seeds: a mean and its interval.

vit-jax sweep --config=digits \
    --sweep=configs/sweeps/seeds.py:5 --workdir=runs/seeds

The argument is the number of seeds, 3 by default.
"""

from vit_jax import config as config_lib
from vit_jax import sweep


def get_sweep(arg: str = '3') -> sweep.Sweep:
  """Returns the sweep; takes the number of seeds."""
  if not arg.isdecimal() or int(arg) < 1:
    raise config_lib.UserError(f'{arg!r} is no number of seeds: write, say, 5')
  return sweep.Sweep(space={}, sampler='grid', seeds=range(int(arg)))
