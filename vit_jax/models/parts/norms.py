"""Further normalisations than `block.LayerNorm`."""

from typing import Annotated

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import block
from vit_jax.models import fields


class RMSNorm(nn.Module):
  """Scales the channels of each token: [..., D] -> [..., D].

  They are divided by the root of their mean square (arXiv:1910.07467).

  Attributes:
    epsilon: Added to the mean square.
    dtype: Type of the result. The mean square is float32.
  """

  epsilon: Annotated[float, fields.EPSILON] = 1e-6
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns scaled tokens."""
    norm = nn.RMSNorm(self.epsilon, self.dtype)
    nn.share_scope(self, norm)
    return norm(x)


class GroupNorm(nn.Module):
  """Normalises groups of channels of each map: [B, ..., C] -> [B, ..., C].

  Attributes:
    num_groups: Number of groups, which divides C.
    epsilon: Added to the variance.
    dtype: Type of the result. Mean and variance are float32.
    scale_init: Initial values of the scale.
  """

  num_groups: int
  epsilon: float = 1e-6
  dtype: jax.typing.DTypeLike = jnp.float32
  scale_init: nn.initializers.Initializer = nn.initializers.ones

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns normalised maps, with a learned scale and bias."""
    shape, channels = x.shape, x.shape[-1]
    if channels % self.num_groups:
      raise ValueError(
        f'{channels} channels do not divide into {self.num_groups} groups of a'
        ' GroupNorm: choose another width'
      )
    scale = self.param('scale', self.scale_init, (channels,))
    bias = self.param('bias', nn.initializers.zeros, (channels,))
    groups = self.num_groups, channels // self.num_groups
    x = x.reshape(*shape[:-1], *groups)
    places = tuple(range(1, len(shape) - 1))
    x, factor = block.centered(x, (*places, -1), self.epsilon)
    y = x * (factor * scale.reshape(groups)) + bias.reshape(groups)
    return y.reshape(shape).astype(self.dtype)
