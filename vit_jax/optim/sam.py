"""Sharpness-aware minimisation: gradients where the loss is higher nearby.

SAM: Foret et al., arXiv:2010.01412. GSAM: Zhuang et al., arXiv:2203.08065.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

_TINY = 1e-12  # a gradient of zeros has no direction

# (params, ...) -> (value, gradient).
ValueAndGrad = Callable[..., tuple[Any, Any]]


def rho(
  config: ml_collections.ConfigDict, rate: jax.typing.ArrayLike
) -> jax.typing.ArrayLike:
  """Returns the length of the perturbation at a learning rate.

  It falls from `sam.rho` to `sam.rho_min` as the rate falls from its highest to
  its final value (GSAM, section 4.3); it is never less.

  Args:
    config: `config.optim`.
    rate: Learning rate of the step.
  """
  highest, lowest = config.sam.rho, config.sam.rho_min
  if lowest is None or not config.learning_rate:
    return highest
  final = config.learning_rate * config.final_factor
  span = config.learning_rate - final
  share = (rate - final) / span if span else 1.0
  return lowest + (highest - lowest) * jnp.clip(share, 0, 1)


def value_and_grad(
  fn: ValueAndGrad, rho: jax.typing.ArrayLike, alpha: float
) -> ValueAndGrad:
  """Returns what computes the gradient at the worst point nearby.

  That is w + rho * g / |g|, for the gradient g at w. GSAM also takes alpha
  times the part of g off that is orthogonal to that gradient (its equation 8).

  Args:
    fn: (params, ...) -> (value, gradient).
    rho: Length of the perturbation, in the norm of all parameters together.
    alpha: 0 is SAM.

  Returns:
    As `fn`; the value is that at the parameters themselves.
  """

  def sharpness_aware(params: Any, *args: Any) -> tuple[Any, Any]:
    value, grads = fn(params, *args)
    scale = rho / (optax.global_norm(grads) + _TINY)
    worst = jax.tree.map(lambda w, g: w + scale * g, params, grads)
    _, robust = fn(worst, *args)
    if not alpha:
      return value, robust
    squared = optax.tree.vdot(robust, robust) + _TINY
    along = optax.tree.vdot(grads, robust) / squared
    return value, jax.tree.map(
      lambda r, g: r - alpha * (g - along * r), robust, grads
    )

  return sharpness_aware
