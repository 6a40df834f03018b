"""Optimizers that `config.optim` does not list: a function of any module.

`optim.name` is 'optax:adan(b1=0.98)', or 'my_module:my_optimizer(...)'. The
function takes `learning_rate`, a number, and the options, and returns an optax
GradientTransformation.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax import config as config_lib
from vit_jax.config import parts
from vit_jax.optim import arrays

_KEY = 'optim.name'
_RATE = 'learning_rate'
_DECAY = 'weight_decay'


def is_named(name: str) -> bool:
  """Whether an optimizer is a function that its name leads to."""
  return ':' in name


def check(config: ml_collections.ConfigDict) -> None:
  """Checks such a name.

  Args:
    config: `config.optim`.

  Raises:
    UserError: There is no such function or option, or it does not do.
  """
  make = _function(config)
  where = f'config.{_KEY}={config.name}'
  try:
    optimizer = make(learning_rate=1.0)
  except Exception as e:  # a function of the user's may raise any
    raise config_lib.UserError(
      f'{where}: {type(e).__name__}: {config_lib.one_line(e)}'
    ) from e
  if not isinstance(optimizer, optax.GradientTransformation):
    raise config_lib.UserError(
      f'{where} returns {type(optimizer).__name__}: it must return an'
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
    if lacks_arguments or config.name.startswith('optax'):
      raise config_lib.UserError(
        f'{where} cannot be used here: {config_lib.one_line(e)}'
      ) from None


def _function(
  config: ml_collections.ConfigDict,
) -> Callable[..., optax.GradientTransformation]:
  """Returns the function with its options."""
  part = parts.parse(config.name, _KEY)
  parts.check_literals(part, _KEY)
  function = config_lib.load_function(part.name, _KEY, _RATE)
  parameters = dict(inspect.signature(function).parameters)
  del parameters[_RATE]
  if _RATE in part.options:
    raise config_lib.UserError(
      f'config.{_KEY}={config.name}: the learning rate is'
      f' config.optim.{_RATE}, with its schedule'
    )
  takes_any = inspect.Parameter.VAR_KEYWORD
  if all(x.kind != takes_any for x in parameters.values()):
    parts.check_options(part, _KEY, parameters)
  missing = [
    name
    for name, x in parameters.items()
    if x.default is x.empty and x.kind not in (takes_any, x.VAR_POSITIONAL)
  ]
  for name in missing:
    if name not in part.options:
      raise config_lib.UserError(
        f'config.{_KEY}={config.name}: {part.name} needs the option {name!r}'
      )
  options = _without_second_decay(config, part, parameters)
  return functools.partial(function, **options)


def _without_second_decay(
  config: ml_collections.ConfigDict,
  part: parts.Part,
  parameters: Mapping[str, inspect.Parameter],
) -> dict[str, Any]:
  """Returns the options, with which parameters decay once at most."""
  decays = config.weight_decay or any(rule[2] for rule in config.rules)
  if not decays or _DECAY not in parameters:
    return part.options
  if part.options.get(_DECAY):
    raise config_lib.UserError(
      f'config.{_KEY}={config.name} and config.optim.{_DECAY}='
      f'{config.weight_decay} (or optim.rules) would both decay the'
      f' parameters: set one; config.optim.{_DECAY} knows decay_pattern and'
      ' rules'
    )
  return part.options | {_DECAY: 0.0}


def negative_change(
  config: ml_collections.ConfigDict,
) -> optax.GradientTransformationExtraArgs:
  """Returns the transformation that maps gradients to what is subtracted.

  The function gets the learning rate of each step, since not all changes are
  proportional to it, as where momentum gathers changes. The state begins with
  the maximum of the rate.

  Args:
    config: `config.optim`, checked.
  """
  make = _function(config)
  peak = config.learning_rate

  def update(
    updates: optax.Updates,
    state: Any,
    params: optax.Params | None = None,
    *,
    learning_rate: jax.typing.ArrayLike = peak,
    **_: Any,
  ) -> tuple[optax.Updates, Any]:
    inner = arrays.per_layer(make(learning_rate=learning_rate))
    try:
      changes, state = inner.update(updates, state, params)
    except ValueError as e:
      if 'out_axes' not in str(e):
        raise
      raise config_lib.UserError(
        f'config.{_KEY}={config.name} computes a number of all parameters,'
        ' which scanned layers would change: set config.model.scan=False'
      ) from None
    return jax.tree.map(jnp.negative, changes), state

  return optax.GradientTransformationExtraArgs(
    arrays.per_layer(make(learning_rate=peak)).init, update
  )
