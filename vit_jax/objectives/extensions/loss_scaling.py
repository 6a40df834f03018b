"""Dynamic loss scaling: training in float16, on GPUs that lack bfloat16.

Micikevicius et al., Mixed Precision Training (arXiv:1710.03740, section 3.2).
Small gradients are 0 in float16, and so the loss is multiplied by a power of 2
before the backward pass, and the gradients are divided by it in float32. A step
whose gradients overflow is skipped.
"""

from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.data.device.rng import Rng
from vit_jax.objectives import base
from vit_jax.objectives.extensions import contract

_KEY = contract.LOSS_SCALE
# Exponents of 2: the first, the smallest and the largest.
_FIRST, _LEAST, _MOST = 15, -14, 24
_STEPS = 2_000  # finite steps before the scale is doubled


class Scaled(base.Objective):
  """Scales the gradients of an objective while they are computed.

  The exponent and the number of finite steps since it has changed are in the
  extra, so that a resumed run goes on to the bit.
  """

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the extra, with the state of the scale."""
    state = {'exponent': jnp.int32(_FIRST), 'steps': jnp.int32(0)}
    return {**super().init_extra(params), _KEY: state}

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the loss itself, whose gradient passes the layers scaled."""
    inner, state = _split(extra)
    # The float32 with this exponent, exactly: `exp2` rounds.
    bits = (state['exponent'] + 127) << 23
    scale = jax.lax.bitcast_convert_type(bits, jnp.float32)
    params = jax.tree.map(lambda x: _with_gradient(x, 1 / scale), params)
    loss, means, inner = super().loss(params, inner, batch, rng)
    loss = _with_gradient(loss, scale)
    return loss, {**means, _KEY: scale}, {**inner, _KEY: state}

  def after_update(
    self, extra: base.Extra, params: base.Params, step: jax.Array
  ) -> base.Extra:
    """Returns the extra after the update; the scale is that of before."""
    inner, state = _split(extra)
    return {**super().after_update(inner, params, step), _KEY: state}

  def after_step(
    self, extra: base.Extra, ok: jax.Array, has_batch: jax.Array
  ) -> base.Extra:
    """Halves the scale after an overflow; doubles it after finite steps."""
    inner, state = _split(extra)
    exponent, steps = state['exponent'], state['steps'] + 1
    grows = ok & (steps == _STEPS)
    change = jnp.where(grows, 1, jnp.where(ok, 0, -1))
    new = {
      'exponent': jnp.clip(exponent + change, _LEAST, _MOST),
      'steps': jnp.where(ok & ~grows, steps, 0),
    }
    state = jax.tree.map(lambda x, y: jnp.where(has_batch, x, y), new, state)
    return {**super().after_step(inner, ok, has_batch), _KEY: state}


def _split(extra: base.Extra) -> tuple[base.Extra, dict[str, jax.Array]]:
  """Returns the extra of the objective, and the state of the scale."""
  return {key: x for key, x in extra.items() if key != _KEY}, extra[_KEY]


@jax.custom_vjp
def _with_gradient(x: jax.Array, factor: jax.Array) -> jax.Array:
  """Returns x; its gradient is multiplied by a factor."""
  del factor
  return x


def _forward(x: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
  return x, factor


def _backward(factor: jax.Array, gradient: Any) -> tuple[Any, jax.Array]:
  is_float = jnp.issubdtype(gradient.dtype, jnp.inexact)
  scaled = gradient * factor if is_float else gradient
  return scaled, jnp.zeros_like(factor)


_with_gradient.defvjp(_forward, _backward)
