"""The learning rate as a function of completed steps, from `config.optim`."""

import abc
from collections.abc import Callable
import dataclasses
from typing import Any
from typing import TypeAlias

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import optax

from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.config import registry

SCHEDULES = {
  'cosine': 'vit_jax.optim.schedules:Cosine',
  'linear': 'vit_jax.optim.schedules:Linear',
  'constant': 'vit_jax.optim.schedules:Constant',
  'poly': 'vit_jax.optim.other_schedules:Poly',
  'step': 'vit_jax.optim.other_schedules:Step',
  'wsd': 'vit_jax.optim.other_schedules:WSD',
  'rsqrt': 'vit_jax.optim.other_schedules:Rsqrt',
}

Rate: TypeAlias = Callable[[Any], jax.typing.ArrayLike]


@dataclasses.dataclass(frozen=True)
class Lengths:
  """How long a run is, in steps.

  Attributes:
    total: The whole run, with warm-up and cooldown.
    warmup: The linear rise from 0 to the full learning rate.
    examples: Not a length: the number of examples in an epoch.
    batch_size: Not a length: the number of examples in a step.
  """

  total: int
  warmup: int = 0
  examples: int = 1_000
  batch_size: int = 1

  def steps(self, text: str) -> int:
    """Converts a length of time, as '10 epochs', to steps."""
    return config_lib.num_steps(text, self.examples, self.batch_size)


class Schedule(abc.ABC):
  """How the learning rate changes after the warm-up.

  Attributes:
    final_factor: The learning rate at the end of the run / the maximum.
  """

  final_factor: float = 0.0

  @abc.abstractmethod
  def after_warmup(self, peak: float, lengths: Lengths) -> Rate:
    """Returns the learning rate as a function of steps after the warm-up.

    `peak` is `optim.learning_rate`, and the lengths of the run are checked.
    """

  def cooldown_steps(self, lengths: Lengths) -> int:
    """Returns the length of a cooldown at the end of the run, in steps."""
    del lengths
    return 0


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
  """Half a cosine from the maximum to `final_factor` of it."""

  final_factor: options.Amount = 0.0

  def after_warmup(self, peak: float, lengths: Lengths) -> Rate:
    """See the base class."""
    steps = lengths.total - lengths.warmup
    return optax.cosine_decay_schedule(peak, steps, self.final_factor)


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
  """A line from the maximum to `final_factor` of it."""

  final_factor: options.Amount = 0.0

  def after_warmup(self, peak: float, lengths: Lengths) -> Rate:
    """See the base class."""
    steps = lengths.total - lengths.warmup
    return optax.linear_schedule(peak, peak * self.final_factor, steps)


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
  """The maximum."""

  def after_warmup(self, peak: float, lengths: Lengths) -> Rate:
    """See the base class."""
    del lengths
    return optax.constant_schedule(peak)


def schedule(config: ConfigDict) -> Schedule:
  """Returns what `config.optim.schedule` names; `config` is `config.optim`."""
  named = 'vit_jax.optim.named:NamedSchedule'
  chosen: Schedule = registry.build_or_find(
    config.schedule,
    'optim.schedule',
    SCHEDULES,
    lambda: registry.wing(named)(config.schedule),
    'my_module:my_schedule',
  )
  return chosen


def check(config: ConfigDict) -> None:
  """Checks the schedule's values in `config.optim`."""
  schedule(config.optim)
  for key in ('learning_rate', 'warmup_factor'):
    config_lib.within(config, f'optim.{key}', '[0, inf)')


def check_lengths(config: ConfigDict, lengths: Lengths) -> None:
  """Checks that warm-up and cooldown fit the run."""
  optim, warmup = config.optim, lengths.warmup
  too_short = (
    f'but config.train.duration={config.train.duration!r} is only'
    f' {lengths.total}: shorten'
  )
  if warmup >= lengths.total:
    raise config_lib.UserError(
      f'config.optim.warmup={optim.warmup!r} is {warmup} steps, {too_short} the'
      " warm-up, as in --config.optim.warmup='0 steps'"
    )
  cooldown = schedule(optim).cooldown_steps(lengths)
  if warmup + cooldown > lengths.total:
    raise config_lib.UserError(
      f'config.optim.warmup={optim.warmup!r} and the cooldown of'
      f' config.optim.schedule={optim.schedule} are {warmup} and {cooldown}'
      f' steps, {too_short} one of them'
    )


def make_schedule(config: ConfigDict, lengths: Lengths) -> Rate:
  """Returns the learning rate as a function of completed steps.

  `config` is `config.optim`. The `lengths` of the run are checked already, by
  `check_lengths`.
  """
  peak = config.learning_rate
  main = schedule(config).after_warmup(peak, lengths)
  if not lengths.warmup:
    return main
  rise = max(lengths.warmup - config.warmup_inclusive, 1)
  warmup = optax.linear_schedule(config.warmup_factor * peak, peak, rise)
  return optax.join_schedules([warmup, main], [lengths.warmup])


def make_decay(config: ConfigDict, lengths: Lengths) -> Rate:
  """Returns the factor of all weight decays as a function of completed steps.

  `config` is `config.optim`; `lengths` are the lengths of the run.
  """
  first, final = config.weight_decay, config.final_weight_decay
  if final is None:
    return optax.constant_schedule(1.0)
  return half_cosine(1.0, final / first, lengths.total)


def half_cosine(start: float, final: float, steps: int) -> Rate:
  """Returns half a cosine from `start` to `final`, which it reaches at `steps`.

  DINO (arXiv:2104.14294, section 3.2) changes the weight decay and the
  momentum of its teacher like this.
  """

  def at(step: Any) -> jax.Array:
    share = jnp.clip(step / max(steps, 1), 0, 1)
    return final + (start - final) * 0.5 * (1 + jnp.cos(jnp.pi * share))

  return at
