"""Sharpness-aware minimization: gradients at the worst point nearby.

SAM: Foret et al., arXiv:2010.01412. GSAM: Zhuang et al., arXiv:2203.08065.
`optax.contrib.sam` is not used, since it has no GSAM.
"""

from collections.abc import Callable
import dataclasses
from typing import Annotated
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import optax

from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.optim import schedules

_TINY = 1e-12  # avoids a division by 0 if the gradient is 0

# (params, ...) -> (value, gradient).
ValueAndGrad = Callable[..., tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class SAM:
  """The gradient at the worst point nearby.

  With the gradient g at w, that point is w + rho * g / |g|.

  Attributes:
    rho: Norm of the perturbation, over all parameters together.
    groups: Number of equal groups of the batch, each with a perturbation of its
      own.
  """

  rho: Annotated[float, options.Interval('(0, inf)')] = 0.05
  groups: Annotated[int, options.Interval('[1, inf)')] = 1

  def radius(
    self, config: ConfigDict, learning_rate: jax.typing.ArrayLike
  ) -> jax.typing.ArrayLike:
    """Returns the norm of the perturbation at the learning rate of a step."""
    del config, learning_rate
    return self.rho

  def corrected(self, grads: Any, robust: Any) -> Any:
    """Returns the gradient of the step, from that at w and the robust one."""
    del grads
    return robust

  def value_and_grad(
    self,
    fn: ValueAndGrad,
    config: ConfigDict,
    learning_rate: jax.typing.ArrayLike,
  ) -> ValueAndGrad:
    """Returns a function like `fn`, with the gradient at the worst point.

    Its value is the one at w. `config` is `config.optim`.
    """
    rho = self.radius(config, learning_rate)

    def sharpness_aware(params: Any, *args: Any) -> tuple[Any, Any]:
      value, grads = fn(params, *args)
      scale = rho / (optax.global_norm(grads) + _TINY)
      worst = jax.tree.map(lambda w, g: w + scale * g, params, grads)
      _, robust = fn(worst, *args)
      return value, self.corrected(grads, robust)

    return sharpness_aware


@dataclasses.dataclass(frozen=True)
class GSAM(SAM):
  """SAM that also lowers the gap between the worst point and w.

  Attributes:
    rho_min: The value of rho at the final learning rate, to which rho falls
      with the learning rate. None: rho is constant.
    alpha: Weight of the component of the gradient at w that is orthogonal to
      that at the worst point (equation 8), which is subtracted; 0 is SAM.
  """

  rho_min: Annotated[float | None, options.Interval('[0, inf)')] = None
  alpha: options.Amount = 0.0

  def __post_init__(self) -> None:
    if self.rho_min is not None and self.rho_min > self.rho:
      raise config_lib.UserError(
        f'rho_min is {self.rho_min}: it must be at most rho, {self.rho}'
      )

  def radius(
    self, config: ConfigDict, learning_rate: jax.typing.ArrayLike
  ) -> jax.typing.ArrayLike:
    """Returns the norm of the perturbation at a learning rate.

    It falls linearly from rho to rho_min as the learning rate falls from its
    maximum to its final value (section 4.3). While warm-up is below the final
    learning rate, it is rho_min.
    """
    highest, lowest = self.rho, self.rho_min
    if lowest is None or not config.learning_rate:
      return highest
    factor = schedules.schedule(config).final_factor
    final = config.learning_rate * factor
    span = config.learning_rate - final
    share = (learning_rate - final) / span if span else 1.0
    return lowest + (highest - lowest) * jnp.clip(share, 0, 1)

  def corrected(self, grads: Any, robust: Any) -> Any:
    """Returns the gradient at the worst point without the gap's."""
    if not self.alpha:
      return robust
    squared = optax.tree.vdot(robust, robust) + _TINY
    along = optax.tree.vdot(grads, robust) / squared
    return jax.tree.map(
      lambda r, g: r - self.alpha * (g - along * r), robust, grads
    )
