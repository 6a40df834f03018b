"""Sweeps: many runs of one config, ranked by a metric.

A file in configs/sweeps/ has a `get_sweep(arg='')` that returns a `Sweep`.
"""

from vit_jax.sweep.space import choice
from vit_jax.sweep.space import integers
from vit_jax.sweep.space import log_uniform
from vit_jax.sweep.space import Sweep
from vit_jax.sweep.space import uniform

__all__ = ['Sweep', 'choice', 'integers', 'log_uniform', 'uniform']
