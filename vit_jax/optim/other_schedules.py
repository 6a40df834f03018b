"""Schedules beside the cosine, the line and the constant."""

import dataclasses
import fractions
import math
from typing import Annotated
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.optim.schedules import Lengths
from vit_jax.optim.schedules import Rate
from vit_jax.optim.schedules import Schedule


@dataclasses.dataclass(frozen=True)
class Poly(Schedule):
  """Falls as (1 - t)^power.

  Attributes:
    power: The exponent.
    final_factor: As of the base class.
    final_inclusive: Whether the last step already has the final learning rate,
      as in mmengine. False: the step after the last one would.
  """

  power: options.Amount = 0.9
  final_factor: options.Amount = 0.0
  final_inclusive: bool = False

  def after_warmup(self, peak: float, lengths: Lengths) -> Rate:
    """See the base class."""
    steps = lengths.total - lengths.warmup
    falls = max(steps - self.final_inclusive, 1)
    final = peak * self.final_factor
    return optax.polynomial_schedule(peak, final, self.power, falls)


@dataclasses.dataclass(frozen=True)
class Step(Schedule):
  """Falls at some steps.

  Attributes:
    at: Fractions of the duration, which grow.
    factor: The learning rate after a drop / before it.
  """

  at: Annotated[tuple[float, ...], options.Interval('(0, 1)')] = (0.6, 0.85)
  factor: options.Amount = 0.1

  def __post_init__(self) -> None:
    if list(self.at) != sorted(set(self.at)):
      raise config_lib.UserError(
        f'at is {self.at}: it must hold growing fractions'
      )

  def after_warmup(self, peak: float, lengths: Lengths) -> Rate:
    """See the base class."""
    factors: dict[int, float] = {}
    for at in self.at:
      exact = fractions.Fraction(str(at))  # 0.55 of 100 steps are 55
      step = max(math.ceil(exact * lengths.total) - lengths.warmup, 0)
      factors[step] = factors.get(step, 1.0) * self.factor
    return optax.piecewise_constant_schedule(peak, factors)


@dataclasses.dataclass(frozen=True)
class _Cooled(Schedule):
  """A schedule with a linear cooldown (arXiv:2405.18392).

  Attributes:
    cooldown: Length of the last part of the run, as '10 epochs'.
    final_factor: As of the base class.
  """

  cooldown: str = '0 steps'
  final_factor: options.Amount = 0.0

  def __post_init__(self) -> None:
    with config_lib.explained('cooldown'):
      config_lib.parse_duration(self.cooldown)

  def cooldown_steps(self, lengths: Lengths) -> int:
    """See the base class."""
    return lengths.steps(self.cooldown)

  def _cooled(self, rate: Rate, peak: float, lengths: Lengths) -> Rate:
    """Blends a schedule linearly into its final value."""
    steps = lengths.total - lengths.warmup
    cooldown = self.cooldown_steps(lengths)
    final = peak * self.final_factor
    if not cooldown:
      return rate

    def cooled(step: Any) -> jax.Array:
      share = jnp.clip((steps - step) / cooldown, 0, 1)
      return share * rate(step) + (1 - share) * final

    return cooled


@dataclasses.dataclass(frozen=True)
class WSD(_Cooled):
  """Constant until a linear cooldown: warm-up, stable, decay."""

  def __post_init__(self) -> None:
    super().__post_init__()
    if not config_lib.parse_duration(self.cooldown)[0]:
      raise config_lib.UserError(
        "wsd needs a cooldown, as wsd(cooldown='10 epochs'); without one it is"
        " 'constant'"
      )

  def after_warmup(self, peak: float, lengths: Lengths) -> Rate:
    """See the base class."""
    return self._cooled(optax.constant_schedule(peak), peak, lengths)


@dataclasses.dataclass(frozen=True)
class Rsqrt(_Cooled):
  """Falls as in Scaling ViTs (arXiv:2106.04560) and big_vision.

  Attributes:
    timescale: The time until the learning rate has fallen to 1 / sqrt(2) of
      the maximum.
  """

  timescale: str = '10_000 steps'

  def __post_init__(self) -> None:
    super().__post_init__()
    with config_lib.explained('timescale'):
      if not config_lib.parse_duration(self.timescale)[0]:
        raise config_lib.UserError('it must be more than 0')

  def after_warmup(self, peak: float, lengths: Lengths) -> Rate:
    """See the base class."""
    timescale = lengths.steps(self.timescale)

    def falling(step: Any) -> jax.Array:
      return peak / jnp.sqrt(1 + jnp.maximum(step, 0) / timescale)

    return self._cooled(falling, peak, lengths)
