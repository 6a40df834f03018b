"""What `config.optim.clip` names: clips of single gradients."""

import dataclasses
import functools
import re
from typing import Annotated
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax.config.options import Interval
from vit_jax.optim import arrays
from vit_jax.optim.optimizers import Transformation
from vit_jax.parallel import sharding


@dataclasses.dataclass(frozen=True)
class PerParameter:
  """Clips the gradient of each parameter by its own norm.

  As DINO's code does (arXiv:2104.14294, `clip_gradients`); its queries, keys
  and values are one parameter, as here.

  Attributes:
    limit: The largest norm.
  """

  limit: Annotated[float, Interval('(0, inf)')]

  def transformation(self) -> Transformation:
    """Returns the transformation of gradients."""

    def clip(g: jax.Array) -> jax.Array:
      norm = jnp.sqrt(jnp.sum(g**2))
      return g * jnp.minimum(1, self.limit / (norm + 1e-6))

    return arrays.per_layer(
      optax.stateless(lambda updates, _: jax.tree.map(clip, updates))
    )


@dataclasses.dataclass(frozen=True)
class Adaptive:
  """Clips the gradient of each unit to a multiple of its weights' norm.

  Adaptive gradient clipping (arXiv:2102.06171, section 4.1); as in the paper,
  heads are not clipped. A unit is one output of a layer.
  `optax.adaptive_grad_clip` uses the same axes for all arrays, or guesses them
  from the rank, which is wrong for a fused qkv kernel [D, 3, H, K].

  Attributes:
    limit: The largest norm, as a multiple of the norm of the weights.
  """

  limit: Annotated[float, Interval('(0, inf)')]

  def transformation(self) -> Transformation:
    """Returns the transformation of gradients."""

    def clip(path: tuple[Any, ...], g: jax.Array, p: jax.Array) -> jax.Array:
      name = sharding.path_name(path)
      if re.match('head(_distillation)?/', name):
        return g
      axes = arrays.unit_axes(name, g.ndim)

      def norm(x: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.sum(x**2, axes, keepdims=True))

      # Weights of 0 can still change.
      most = self.limit * jnp.maximum(norm(p), 1e-3)
      return g * jnp.minimum(1, most / jnp.maximum(norm(g), 1e-6))

    return arrays.per_layer(
      optax.stateless(functools.partial(jax.tree.map_with_path, clip))
    )
