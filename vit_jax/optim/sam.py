"""Sharpness-aware minimization: gradients at the worst point nearby.

SAM: Foret et al., arXiv:2010.01412. GSAM: Zhuang et al., arXiv:2203.08065.
`optax.contrib.sam` is not used, since it has no GSAM.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

_TINY = 1e-12  # avoids a division by 0 if the gradient is 0

# (params, ...) -> (value, gradient).
ValueAndGrad = Callable[..., tuple[Any, Any]]


def rho(
  config: ml_collections.ConfigDict, learning_rate: jax.typing.ArrayLike
) -> jax.typing.ArrayLike:
  """Returns the norm of the perturbation at a learning rate.

  It falls linearly from `sam.rho` to `sam.rho_min` as the learning rate falls
  from its maximum to its final value (GSAM, section 4.3). While warm-up is
  below the final learning rate, it is `sam.rho_min`.

  Args:
    config: `config.optim`.
    learning_rate: Learning rate of the step.
  """
  highest, lowest = config.sam.rho, config.sam.rho_min
  if lowest is None or not config.learning_rate:
    return highest
  final = config.learning_rate * config.final_factor
  span = config.learning_rate - final
  share = (learning_rate - final) / span if span else 1.0
  return lowest + (highest - lowest) * jnp.clip(share, 0, 1)


def value_and_grad(
  fn: ValueAndGrad, rho: jax.typing.ArrayLike, alpha: float
) -> ValueAndGrad:
  """Returns a function that computes the gradient at the worst point nearby.

  With the gradient g at w, that point is w + rho * g / |g|. GSAM also subtracts
  alpha times the component of g that is orthogonal to the gradient at that
  point (its equation 8).

  Args:
    fn: (params, ...) -> (value, gradient).
    rho: Norm of the perturbation, over all parameters together.
    alpha: Factor of GSAM; 0 is SAM.

  Returns:
    A function like `fn`; its value is the one at w.
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
