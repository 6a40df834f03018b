"""The learning rate as a function of completed steps, from `config.optim`."""

from collections.abc import Callable
import dataclasses
import fractions
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax import config as config_lib

NAMES = ('cosine', 'linear', 'poly', 'step', 'constant', 'wsd', 'rsqrt')
_COOLED = ('wsd', 'rsqrt')

Schedule = Callable[[Any], jax.typing.ArrayLike]


@dataclasses.dataclass(frozen=True)
class Lengths:
  """The lengths of a schedule's parts, in steps.

  Attributes:
    total: The whole run, with warm-up and cooldown.
    warmup: The linear rise from 0 to the full learning rate.
    cooldown: The linear fall to the final learning rate at the end of 'wsd' and
      'rsqrt'.
    timescale: The number of steps after the warm-up in which 'rsqrt' falls to
      1 / sqrt(2) of the full learning rate.
    examples: Not a length: the number of examples in an epoch, for objectives
      that have schedules of their own.
  """

  total: int
  warmup: int = 0
  cooldown: int = 0
  timescale: int = 10_000
  examples: int = 1_000


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the schedule's values in `config.optim`.

  Raises:
    UserError: One of them cannot work.
  """
  optim = config.optim
  config_lib.one_of(config, 'optim.schedule', NAMES)
  for key in (
    'learning_rate',
    'final_factor',
    'step_factor',
    'power',
    'warmup_factor',
  ):
    config_lib.at_least(config, f'optim.{key}', 0)
  config_lib.check_numbers(config, 'optim.step_at')
  if list(optim.step_at) != sorted(set(optim.step_at)) or not all(
    0 < at < 1 for at in optim.step_at
  ):
    raise config_lib.UserError(
      f'config.optim.step_at is {optim.step_at}: it must hold growing fractions'
      ' between 0 and 1'
    )
  cools = config_lib.parse_duration(optim.cooldown)[0] > 0
  if cools and optim.schedule not in _COOLED:
    raise config_lib.UserError(
      f'config.optim.cooldown is {optim.cooldown!r}, but'
      f' config.optim.schedule={optim.schedule!r} has none: choose'
      f' {" or ".join(_COOLED)}, or set it to 0 steps'
    )
  if optim.schedule == 'wsd' and not cools:
    raise config_lib.UserError(
      "config.optim.schedule='wsd' needs a cooldown, as in"
      " --config.optim.cooldown='10 epochs'; without one it is 'constant'"
    )


def check_lengths(config: ml_collections.ConfigDict, lengths: Lengths) -> None:
  """Checks that warm-up and cooldown fit the run.

  Raises:
    UserError: They do not.
  """
  optim, duration = config.optim, config.train.duration
  if lengths.warmup >= lengths.total:
    raise config_lib.UserError(
      f'config.optim.warmup={optim.warmup!r} is {lengths.warmup} steps, but'
      f' config.train.duration={duration!r} is only {lengths.total}: shorten'
      " the warm-up, as in --config.optim.warmup='0 steps'"
    )
  if lengths.warmup + lengths.cooldown > lengths.total:
    raise config_lib.UserError(
      f'config.optim.warmup={optim.warmup!r} and'
      f' config.optim.cooldown={optim.cooldown!r} are {lengths.warmup} and'
      f' {lengths.cooldown} steps, but config.train.duration={duration!r} is'
      f' only {lengths.total}: shorten one of them'
    )


def make_schedule(
  config: ml_collections.ConfigDict, lengths: Lengths
) -> Schedule:
  """Returns the learning rate as a function of completed steps.

  Args:
    config: `config.optim`.
    lengths: The lengths of its parts; checked.
  """
  peak, steps = config.learning_rate, lengths.total - lengths.warmup
  final = peak * config.final_factor
  if config.schedule == 'cosine':
    main = optax.cosine_decay_schedule(peak, steps, config.final_factor)
  elif config.schedule == 'linear':
    main = optax.linear_schedule(peak, final, steps)
  elif config.schedule == 'poly':
    falls = max(steps - config.final_inclusive, 1)
    main = optax.polynomial_schedule(peak, final, config.power, falls)
  elif config.schedule == 'step':
    main = _step(config, lengths)
  elif config.schedule == 'rsqrt':
    falling = _reciprocal_sqrt(peak, lengths.timescale)
    main = _cooled(falling, steps, lengths.cooldown, final)
  elif config.schedule == 'wsd':
    constant = optax.constant_schedule(peak)
    main = _cooled(constant, steps, lengths.cooldown, final)
  else:
    main = optax.constant_schedule(peak)
  if not lengths.warmup:
    return main
  rise = max(lengths.warmup - config.warmup_inclusive, 1)
  warmup = optax.linear_schedule(config.warmup_factor * peak, peak, rise)
  return optax.join_schedules([warmup, main], [lengths.warmup])


def make_decay(config: ml_collections.ConfigDict, lengths: Lengths) -> Schedule:
  """Returns the factor of all weight decays as a function of completed steps.

  Args:
    config: `config.optim`.
    lengths: The lengths of the schedule's parts.
  """
  first, final = config.weight_decay, config.final_weight_decay
  if final is None:
    return optax.constant_schedule(1.0)
  return half_cosine(1.0, final / first, lengths.total)


def half_cosine(start: float, final: float, steps: int) -> Schedule:
  """Returns half a cosine from `start` to `final`, which it reaches at `steps`.

  DINO (arXiv:2104.14294, section 3.2) changes the weight decay and the
  momentum of its teacher like this.
  """

  def at(step: Any) -> jax.Array:
    share = jnp.clip(step / max(steps, 1), 0, 1)
    return final + (start - final) * 0.5 * (1 + jnp.cos(jnp.pi * share))

  return at


def _step(config: ml_collections.ConfigDict, lengths: Lengths) -> Schedule:
  factors: dict[int, float] = {}
  for at in config.step_at:
    exact = fractions.Fraction(str(at))  # 0.55 of 100 steps are 55
    step = max(math.ceil(exact * lengths.total) - lengths.warmup, 0)
    factors[step] = factors.get(step, 1.0) * config.step_factor
  return optax.piecewise_constant_schedule(config.learning_rate, factors)


def _reciprocal_sqrt(peak: float, timescale: int) -> Schedule:
  """Falls as in Scaling ViTs (arXiv:2106.04560) and big_vision."""
  return lambda step: peak / jnp.sqrt(1 + jnp.maximum(step, 0) / timescale)


def _cooled(
  schedule: Schedule, steps: int, cooldown: int, final: float
) -> Schedule:
  """Blends a schedule linearly into its final value (arXiv:2405.18392)."""
  if not cooldown:
    return schedule

  def cooled(step: Any) -> jax.Array:
    share = jnp.clip((steps - step) / cooldown, 0, 1)
    return share * schedule(step) + (1 - share) * final

  return cooled
