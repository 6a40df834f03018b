"""Optimizers that `config.optim` does not list: a function of any module.

`optim.name` is 'optax:adan(b1=0.98)', or 'my_module:my_optimizer(...)'. The
function takes `learning_rate`, a number, and the options, and returns an optax
GradientTransformation.
"""

from collections.abc import Mapping
import functools
import inspect
from typing import Any
from typing import ClassVar

import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.config import parts
from vit_jax.optim import arrays
from vit_jax.optim import optimizers
from vit_jax.optim.optimizers import Transformation

_KEY = 'optim.name'
_RATE = 'learning_rate'
_DECAY = 'weight_decay'


class Named(optimizers.Method):
  """A function that a name leads to, with its options.

  Attributes:
    config: `config.optim`.
    make: Maps `learning_rate` to the transformation.
  """

  has_rate: ClassVar[bool] = True

  def __init__(self, config: ml_collections.ConfigDict):
    part = parts.parse(config.name, _KEY)
    function = config_lib.load_function(part.name, _KEY, _RATE)
    if _RATE in part.options:
      raise config_lib.UserError(
        f'config.{_KEY}={config.name}: the learning rate is'
        f' config.optim.{_RATE}, with its schedule'
      )
    values = options.option_values(function, part, _KEY, (_RATE,))
    parameters = inspect.signature(function).parameters
    values = _without_second_decay(config, values, parameters)
    self.config = config
    self.make = functools.partial(function, **values)

  def check(self) -> None:
    """Tries the function and what it returns."""
    place = f'config.{_KEY}={self.config.name}'
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

  def transformations(
    self, config: ml_collections.ConfigDict
  ) -> list[Transformation]:
    """Returns the function's transformation and the decay."""
    return [self._negative_change(), _decayed_by_rate(config)]

  def _negative_change(self) -> Transformation:
    """Returns the transformation that maps gradients to what is subtracted.

    The function gets the learning rate of each step, since not all changes are
    proportional to it, as where momentum gathers changes. The state begins with
    the maximum of the rate.
    """
    peak = self.config.learning_rate

    def update(
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
          f'config.{_KEY}={self.config.name} computes a number of all'
          ' parameters, which scanned layers would change: set'
          ' config.model.scan=False'
        ) from None
      return jax.tree.map(jnp.negative, changes), state

    return optax.GradientTransformationExtraArgs(
      arrays.per_layer(self.make(learning_rate=peak)).init, update
    )


def _decayed_by_rate(config: ml_collections.ConfigDict) -> Transformation:
  """Adds the weight decay of each parameter, times the learning rate."""
  plain = optimizers.decayed(config)

  def update(
    updates: optax.Updates,
    state: Any,
    params: optax.Params | None = None,
    *,
    decay: jax.typing.ArrayLike = 1.0,
    learning_rate: jax.typing.ArrayLike = config.learning_rate,
    **_: Any,
  ) -> tuple[optax.Updates, Any]:
    return plain.update(updates, state, params, decay=decay * learning_rate)

  return optax.GradientTransformationExtraArgs(plain.init, update)


def _without_second_decay(
  config: ml_collections.ConfigDict,
  values: dict[str, Any],
  parameters: Mapping[str, inspect.Parameter],
) -> dict[str, Any]:
  """Returns the options, with which parameters decay once at most."""
  decays = config.weight_decay or any(rule[2] for rule in config.rules)
  if not decays or _DECAY not in parameters:
    return values
  if values.get(_DECAY):
    raise config_lib.UserError(
      f'config.{_KEY}={config.name} and config.optim.{_DECAY}='
      f'{config.weight_decay} (or optim.rules) would both decay the'
      f' parameters: set one; config.optim.{_DECAY} knows decay_pattern and'
      ' rules'
    )
  return values | {_DECAY: 0.0}
