"""Projection heads of self-supervised methods, and their BatchNorm.

BatchNorm is PyTorch's: the running variance is unbiased, and the momentum is
the weight of the newest batch. Running statistics are in the collection
`statistics`; the caller keeps them, since they are no parameters.
"""

from collections.abc import Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp

# PyTorch's initialization of a linear layer: uniform in +-1 / sqrt(inputs).
TORCH_LINEAR = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')

_TINY = 1e-12  # avoids a division by 0


def unit(x: jax.Array) -> jax.Array:
  """Returns vectors [..., D] of length 1; zero vectors stay, and have grads.

  The squares are bounded, not the length: its gradient at 0 is not finite.
  """
  squared = jnp.sum(x**2, axis=-1, keepdims=True)
  return x / jnp.sqrt(jnp.maximum(squared, _TINY**2))


def normalize(
  x: jax.Array, mean: jax.Array, var: jax.Array, epsilon: float
) -> jax.Array:
  """Returns (x - mean) / sqrt(var + epsilon), for x [..., D]."""
  return (x - mean) * jax.lax.rsqrt(var + epsilon)


def moments(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns mean, variance and unbiased variance of [B, ..., D], [D] each."""
  axes, count = tuple(range(x.ndim - 1)), x.size // x.shape[-1]
  spread = x.var(axis=axes)
  return x.mean(axis=axes), spread, spread * (count / max(count - 1, 1))


class _BatchNorm(nn.Module):
  """What both BatchNorms have.

  Attributes:
    affine: Whether there are parameters to train: `scale` and `bias`, [D].
    epsilon: Added to the variance.
    momentum: Weight of a batch in the running statistics.
  """

  affine: bool = True
  epsilon: float = 1e-5
  momentum: float = 0.1

  def _normalized(
    self, x: jax.Array, mean: jax.Array, var: jax.Array
  ) -> jax.Array:
    y = normalize(x, mean, var, self.epsilon)
    if self.affine:
      y *= self.param('scale', nn.initializers.ones, x.shape[-1:])
      y += self.param('bias', nn.initializers.zeros, x.shape[-1:])
    return y


class BatchNorm(_BatchNorm):
  """BatchNorm of features [B, D] over the whole batch, on all devices."""

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
    """Maps [B, D] to float32 [B, D].

    In training the batch gives the statistics; if `statistics` is
    mutable, the running ones then move towards them. Otherwise the running
    statistics normalise.
    """
    x, shape = x.astype(jnp.float32), x.shape[-1:]
    mean = self.variable('statistics', 'mean', jnp.zeros, shape)
    var = self.variable('statistics', 'var', jnp.ones, shape)
    if not train:
      return self._normalized(x, mean.value, var.value)
    now, spread, unbiased = moments(x)
    if self.is_mutable_collection('statistics'):
      for running, new in ((mean, now), (var, unbiased)):
        old = (1 - self.momentum) * running.value
        running.value = old + self.momentum * jax.lax.stop_gradient(new)
    return self._normalized(x, now, spread)


class StoredBatchNorm(_BatchNorm):
  """BatchNorm whose running statistics are the parameters `mean` and `var`.

  So a model has them wherever it goes. They do not train: in training the new
  ones are in the collection `statistics`, if that is mutable, and the caller
  takes them.
  """

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 of the shape of x, [B, ..., D]; else as `BatchNorm`."""
    x, shape = x.astype(jnp.float32), x.shape[-1:]
    mean = self.param('mean', nn.initializers.zeros, shape)
    var = self.param('var', nn.initializers.ones, shape)
    if not train:
      return self._normalized(x, mean, var)
    now, spread, unbiased = moments(x)
    for name, old, new in (('mean', mean, now), ('var', var, unbiased)):
      moved = old + self.momentum * (new - old)
      moved = jax.lax.stop_gradient(moved)
      self.sow('statistics', name, moved, reduce_fn=lambda _, new: new)
    return self._normalized(x, now, spread)


class BatchNormMlp(nn.Module):
  """Dense layers without bias, each with BatchNorm; ReLU between the layers.

  The last BatchNorm has no parameters (MoCo v3, arXiv:2104.02057, its code).

  Attributes:
    widths: Size of each layer's output.
    dtype: Type in which the dense layers compute; BatchNorm is in float32.
  """

  widths: Sequence[int]
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 [B, widths[-1]]; x is [B, D]."""
    last = len(self.widths) - 1
    for i, width in enumerate(self.widths):
      x = nn.Dense(
        width,
        use_bias=False,
        kernel_init=TORCH_LINEAR,
        dtype=self.dtype,
        name=f'dense_{i}',
      )(x)
      x = BatchNorm(affine=i < last, name=f'norm_{i}')(x, train=train)
      if i < last:
        x = nn.relu(x)
    return x

  def fresh_statistics(self) -> dict[str, dict[str, jax.Array]]:
    """Returns the running statistics before the first batch."""
    return {
      f'norm_{i}': {'mean': jnp.zeros(width), 'var': jnp.ones(width)}
      for i, width in enumerate(self.widths)
    }
