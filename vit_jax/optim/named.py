"""Optimizers and schedules that no table lists: functions of any module.

`optim.name` is 'optax:adan(b1=0.98)', or 'my_module:my_optimizer(...)'. The
function takes `learning_rate`, a number, and the options, and returns an optax
GradientTransformation.

`optim.schedule` is 'my_module:my_schedule(...)'. The function takes `steps`,
the number of steps after the warm-up, and its options, and returns a function
that maps a number of these steps to a factor of `optim.learning_rate`.
"""

import functools
import inspect
from typing import Any
from typing import ClassVar

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import optax

from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.config import parts
from vit_jax.optim import arrays
from vit_jax.optim import optimizers
from vit_jax.optim.optimizers import Transformation
from vit_jax.optim.schedules import Lengths
from vit_jax.optim.schedules import Rate
from vit_jax.optim.schedules import Schedule

_RATE = 'learning_rate'
_DECAY = 'weight_decay'


def bind(text: str, key: str, argument: str) -> functools.partial[Any]:
  """Returns the function that a text names, with its options.

  `config.<key>` holds the text. The function takes the argument later.
  """
  part = parts.parse(text, key)
  function = config_lib.load_function(part.name, key, argument)
  values = options.option_values(function, part, key, (argument,))
  return functools.partial(function, **values)


class NamedOptimizer(optimizers.Method):
  """A function that `optim.name` leads to, with its options.

  Attributes:
    config: `config.optim`.
    make: Maps `learning_rate` to the transformation.
  """

  has_rate: ClassVar[bool] = True

  def __init__(self, config: ConfigDict):
    name, self.config = config.name, config
    if _RATE in parts.parse(name, 'optim.name').options:
      raise config_lib.UserError(
        f'config.optim.name={name}: the learning rate is config.optim.{_RATE},'
        ' with its schedule'
      )
    make = bind(name, 'optim.name', _RATE)
    decays = config.weight_decay or any(rule[2] for rule in config.rules)
    if decays and _DECAY in inspect.signature(make).parameters:
      if make.keywords.get(_DECAY):
        raise config_lib.UserError(
          f'config.optim.name={name} and config.optim.{_DECAY}='
          f'{config.weight_decay} (or optim.rules) would both decay the'
          f' parameters: set one; config.optim.{_DECAY} knows decay_pattern and'
          ' rules'
        )
      make = functools.partial(make, **{_DECAY: 0.0})
    self.make = make

  def check(self) -> None:
    """Tries the function and what it returns."""
    place = f'config.optim.name={self.config.name}'
    try:
      optimizer = self.make(learning_rate=1.0)
    except Exception as e:  # a function of the user's may raise any
      raise config_lib.UserError(
        f'{place}: {type(e).__name__}: {config_lib.one_line(e)}'
      ) from e
    if not isinstance(optimizer, optax.GradientTransformation):
      raise config_lib.UserError(
        f'{place} returns {type(optimizer).__name__}: it must return an'
        ' optax.GradientTransformation'
      )
    params = {'kernel': jax.ShapeDtypeStruct((4, 4), jnp.float32)}
    try:
      jax.eval_shape(
        lambda params: optimizer.update(params, optimizer.init(params), params),
        params,
      )
    except Exception as e:
      # One of the user's may need the parameters of a certain model.
      lacks_arguments = isinstance(e, TypeError) and 'argument' in str(e)
      if lacks_arguments or self.config.name.startswith('optax'):
        raise config_lib.UserError(
          f'{place} cannot be used here: {config_lib.one_line(e)}'
        ) from None

  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns what maps gradients to what is subtracted, and the decay.

    The function gets the learning rate of each step, since not all changes are
    proportional to it, as where momentum gathers changes. The state begins with
    the maximum of the rate.
    """
    peak, plain_decay = config.learning_rate, optimizers.decayed(config)

    def change(
      updates: optax.Updates,
      state: Any,
      params: optax.Params | None = None,
      *,
      learning_rate: jax.typing.ArrayLike = peak,
      **_: Any,
    ) -> tuple[optax.Updates, Any]:
      inner = arrays.per_layer(self.make(learning_rate=learning_rate))
      try:
        changes, state = inner.update(updates, state, params)
      except ValueError as e:
        if 'out_axes' not in str(e):
          raise
        raise config_lib.UserError(
          f'config.optim.name={config.name} computes a number of all'
          ' parameters, which scanned layers would change: set'
          ' config.model.scan=False'
        ) from None
      return jax.tree.map(jnp.negative, changes), state

    def decay_by_rate(
      updates: optax.Updates,
      state: Any,
      params: optax.Params | None = None,
      *,
      decay: jax.typing.ArrayLike = 1.0,
      learning_rate: jax.typing.ArrayLike = peak,
      **_: Any,
    ) -> tuple[optax.Updates, Any]:
      decay = decay * learning_rate
      return plain_decay.update(updates, state, params, decay=decay)

    init = arrays.per_layer(self.make(learning_rate=peak)).init
    return [
      optax.GradientTransformationExtraArgs(init, change),
      optax.GradientTransformationExtraArgs(plain_decay.init, decay_by_rate),
    ]


class NamedSchedule(Schedule):
  """A function that `optim.schedule` leads to, with its options."""

  def __init__(self, text: str):
    self._text, self._make = text, bind(text, 'optim.schedule', 'steps')

  def after_warmup(self, peak: float, lengths: Lengths) -> Rate:
    """See the base class."""
    factor = self._make(steps=lengths.total - lengths.warmup)
    if not callable(factor):
      raise config_lib.UserError(
        f'config.optim.schedule={self._text} returns {type(factor).__name__}:'
        ' it must return a function of the number of steps'
      )
    return lambda step: peak * factor(step)
