"""Optimizers and learning-rate schedules, from `config.optim`, in optax."""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
import ml_collections
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax.optim import rules

NAMES = ('adamw', 'sgd')
SCHEDULES = ('cosine', 'linear', 'step', 'constant')
_NOT_NEGATIVE = (
  'learning_rate',
  'final_factor',
  'step_factor',
  'clip_norm',
  'weight_decay',
  'eps',
)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the values of `config.optim`.

  Raises:
    UserError: One of them cannot work.
  """
  optim = config.optim
  config_lib.one_of(config, 'optim.name', NAMES)
  config_lib.one_of(config, 'optim.schedule', SCHEDULES)
  config_lib.one_of(config, 'optim.momentum_dtype', ('float32', 'bfloat16'))
  for key in _NOT_NEGATIVE:
    config_lib.at_least(config, f'optim.{key}', 0)
  for key in ('b1', 'b2', 'momentum'):
    if not 0 <= optim[key] < 1:
      raise config_lib.UserError(
        f'config.optim.{key} is {optim[key]}: it must be in [0, 1)'
      )
  config_lib.check_numbers(config, 'optim.step_at')
  if list(optim.step_at) != sorted(set(optim.step_at)) or not all(
    0 < at < 1 for at in optim.step_at
  ):
    raise config_lib.UserError(
      f'config.optim.step_at is {optim.step_at}: it must hold growing fractions'
      ' between 0 and 1'
    )
  rules.check(config)


def make_schedule(
  config: ml_collections.ConfigDict, total_steps: int, warmup_steps: int
) -> Callable[[jax.typing.ArrayLike], jax.Array]:
  """Returns the learning rate as a function of completed steps.

  Args:
    config: `config.optim`.
    total_steps: Of the run, warm-up included.
    warmup_steps: From 0 to the full rate, linearly; fewer than total_steps.
  """
  rate, decay_steps = config.learning_rate, total_steps - warmup_steps
  if config.schedule == 'cosine':
    main = optax.cosine_decay_schedule(rate, decay_steps, config.final_factor)
  elif config.schedule == 'linear':
    main = optax.linear_schedule(rate, rate * config.final_factor, decay_steps)
  elif config.schedule == 'step':
    factors: dict[int, float] = {}
    for at in config.step_at:
      step = max(math.ceil(at * total_steps) - warmup_steps, 0)
      factors[step] = factors.get(step, 1.0) * config.step_factor
    main = optax.piecewise_constant_schedule(rate, factors)
  else:
    main = optax.constant_schedule(rate)
  if not warmup_steps:
    return main
  warmup = optax.linear_schedule(0.0, rate, warmup_steps)
  return optax.join_schedules([warmup, main], [warmup_steps])


def make_optimizer(
  config: ml_collections.ConfigDict,
) -> optax.GradientTransformation:
  """Returns what turns gradients into the direction of the update.

  The learning rate is not in it: the train step multiplies by minus the
  schedule's value, so that the rate is a function of the step alone. Nor are
  the factors of `rules`.

  Args:
    config: `config.optim`.
  """
  parts, dtype = [], config.momentum_dtype
  if config.clip_norm:
    parts.append(optax.clip_by_global_norm(config.clip_norm))
  if config.name == 'adamw':
    # The second moment stays in float32: with b2 = 0.999 it grows by steps that
    # bfloat16 would round away.
    parts.append(
      optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=dtype)
    )
    parts.append(_decay(config))  # decoupled: after the preconditioner
  else:
    parts.append(_decay(config))  # L2: part of the gradient
    parts.append(optax.trace(config.momentum, config.nesterov, dtype))
  return optax.chain(*parts)


def _decay(
  config: ml_collections.ConfigDict,
) -> optax.GradientTransformation:
  if not config.weight_decay and not any(rule[2] for rule in config.rules):
    return optax.identity()

  def decay(updates: optax.Updates, params: optax.Params | None) -> Any:
    weights = rules.per_array(
      params, functools.partial(rules.weight_decay, config)
    )
    return jax.tree.map(
      lambda g, p, w: g + w * p if np.any(w) else g, updates, params, weights
    )

  return optax.stateless(decay)
