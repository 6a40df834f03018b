"""Normalisations by mean and variance.

Linen's compute the variance as E[x^2] - E[x]^2, in one pass over x. In float32
that leaves no digit of it where the mean is a few thousand deviations from 0.
"""

from collections.abc import Sequence
from typing import Annotated

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import fields
from vit_jax.models.fields import Field
from vit_jax.models.fields import Kind

EPSILON = Field(
  Kind.FUNCTION, is_visible=False, interval='(0, 1)', key='layer_norm_epsilon'
)


class LayerNorm(nn.Module):
  """Normalises the channels of each token: [..., D] -> [..., D].

  Attributes:
    epsilon: Added to the variance.
    dtype: Type of the result. Mean and variance are float32.
  """

  epsilon: Annotated[float, EPSILON] = 1e-6
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns normalised tokens, with a learned scale and bias."""
    shape = x.shape[-1:]
    scale = self.param('scale', nn.initializers.ones, shape)
    bias = self.param('bias', nn.initializers.zeros, shape)
    x, factor = _centered(x, (-1,), self.epsilon)
    return (x * (factor * scale) + bias).astype(self.dtype)


class RMSNorm(nn.Module):
  """Scales the channels of each token: [..., D] -> [..., D].

  They are divided by the root of their mean square (arXiv:1910.07467).

  Attributes:
    epsilon: Added to the mean square.
    dtype: Type of the result. The mean square is float32.
  """

  epsilon: Annotated[float, EPSILON] = 1e-6
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
    """Returns normalised maps, with a learned scale and bias.

    Raises:
      ValueError: C does not divide into groups.
    """
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
    x, factor = _centered(x, (*places, -1), self.epsilon)
    y = x * (factor * scale.reshape(groups)) + bias.reshape(groups)
    return y.reshape(shape).astype(self.dtype)


def _centered(
  x: jax.Array, axes: Sequence[int], epsilon: float
) -> tuple[jax.Array, jax.Array]:
  """Returns x without its mean, and the reciprocal of its deviation.

  Args:
    x: Any array; both results are float32 or wider.
    axes: Axes over which the mean is.
    epsilon: Added to the variance.
  """
  is_wide = x.dtype.itemsize > 2
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  if is_wide:
    if jax.default_backend() == 'cpu':
      # Else the compiler adds up all residuals again for each of the passes,
      # and a step takes 1.8 times as long.
      x = jax.lax.optimization_barrier(x)
    # The results do not depend on this shift, so it needs no gradient, and no
    # more exactness than a sum of large numbers has. A mean that is large for
    # float32 leaves types of 16 bits no digits for the deviation, so that these
    # are spared another pass.
    x -= jax.lax.stop_gradient(x.mean(axes, keepdims=True))
  mean = x.mean(axes, keepdims=True)
  variance = jnp.square(x).mean(axes, keepdims=True) - jnp.square(mean)
  # Rounding may make the variance of equal numbers negative.
  return x - mean, jax.lax.rsqrt(jnp.maximum(variance, 0) + epsilon)
