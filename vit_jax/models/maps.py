"""Layers of dense prediction: resizing, convolutions and norms of maps.

Maps are images [B, h, w, C] or volumes [B, d, h, w, C]. Where a layer has a
counterpart in PyTorch, it computes the same.
"""

from collections.abc import Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import projection

_KERNEL = nn.initializers.he_normal()


def resize(
  x: jax.Array, size: Sequence[int], align_corners: bool = False
) -> jax.Array:
  """Resizes maps linearly along each axis, without antialiasing.

  Args:
    x: [B, ..., C].
    size: New lengths of the axes between B and C.
    align_corners: Whether the first and last places stay where they are;
      otherwise the outer edges do, as for images.

  Returns:
    [B, *size, C].
  """
  for axis, length in enumerate(size, start=1):
    if x.shape[axis] != length:
      weights = linear_weights(x.shape[axis], length, align_corners).astype(
        x.dtype
      )
      # Weights in bfloat16 would move the places by up to 0.4%.
      x = jnp.moveaxis(
        jnp.tensordot(
          x, weights, axes=((axis,), (1,)), precision=jax.lax.Precision.HIGHEST
        ),
        -1,
        axis,
      )
  return x


def linear_weights(
  old: int, new: int, align_corners: bool = False
) -> np.ndarray:
  """Returns the weights of the old places for the new, float32 [new, old]."""
  if align_corners:
    at = np.arange(new) * ((old - 1) / max(new - 1, 1))
  else:
    at = np.maximum((np.arange(new) + 0.5) * (old / new) - 0.5, 0)
  low = np.minimum(at.astype(int), old - 1)
  share = at - low
  weights = np.zeros((new, old))
  np.add.at(weights, (np.arange(new), low), 1 - share)
  np.add.at(weights, (np.arange(new), np.minimum(low + 1, old - 1)), share)
  return weights.astype(np.float32)


def scaled(x: jax.Array, factor: int, align_corners: bool = False) -> jax.Array:
  """Returns maps [B, ..., C] with all axes `factor` times as long."""
  return resize(x, [factor * n for n in x.shape[1:-1]], align_corners)


class Convolution(nn.Module):
  """A convolution, padded so that the grid stays, BatchNorm and ReLU.

  Attributes:
    features: Channels of the output.
    kernel_size: Length of the kernel along each axis, odd.
    groups: Groups of channels; that many kernels see no other group's.
    dtype: Type in which the convolution computes.
  """

  features: int
  kernel_size: int = 3
  groups: int = 1
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
    """Maps [B, ..., C] to [B, ..., features].

    Args:
      x: Maps.
      train: Whether BatchNorm measures this batch; see
        `projection.StoredBatchNorm`.
    """
    axes, half = x.ndim - 2, self.kernel_size // 2
    x = nn.Conv(
      self.features,
      (self.kernel_size,) * axes,
      padding=[(half, half)] * axes,
      feature_group_count=self.groups,
      use_bias=False,
      kernel_init=_KERNEL,
      dtype=self.dtype,
      name='conv',
    )(x)
    x = projection.StoredBatchNorm(name='norm')(x, train=train)
    return nn.relu(x).astype(self.dtype)


def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Convolves maps [B, ..., C]; the grid stays, with zeros around it.

  Of volumes this is a sum of convolutions of their slices, one for each slice
  of the kernel: on CPUs, XLA computes these several times as fast.

  Args:
    x: Images [B, h, w, C] or volumes [B, d, h, w, C].
    kernel: [k, k, C, features] or [k, k, k, C, features], k odd.
  """
  if x.ndim == 4:
    layout = jax.lax.conv_dimension_numbers(
      x.shape, kernel.shape, ('NHWC', 'HWIO', 'NHWC')
    )
    return jax.lax.conv_general_dilated(
      x, kernel, (1, 1), 'SAME', dimension_numbers=layout
    )
  b, d, *slice_shape = x.shape
  half = len(kernel) // 2
  padded = jnp.pad(x, ((0, 0), (half, half), (0, 0), (0, 0), (0, 0)))
  total = sum(
    convolve(padded[:, i : i + d].reshape(b * d, *slice_shape), part)
    for i, part in enumerate(kernel)
  )
  return jnp.reshape(total, (b, d, *slice_shape[:2], kernel.shape[-1]))


class PlainConvolution(nn.Module):
  """A convolution of stride 1 without a bias; the grid stays.

  Attributes:
    features: Channels of the output.
    kernel_size: Length of the kernel along each axis, odd.
    dtype: Type in which it computes.
  """

  features: int
  kernel_size: int = 3
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, ..., C] to [B, ..., features]."""
    sides = (self.kernel_size,) * (x.ndim - 2)
    shape = (*sides, x.shape[-1], self.features)
    kernel = self.param('kernel', _KERNEL, shape)
    return convolve(x.astype(self.dtype), kernel.astype(self.dtype))


class Classifier(nn.Module):
  """A dense layer for each place: [B, ..., C] -> float32 [B, ..., classes].

  Attributes:
    num_classes: Size of the output.
  """

  num_classes: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns the logits."""
    return nn.Dense(
      self.num_classes, kernel_init=nn.initializers.normal(0.01), name='dense'
    )(x.astype(jnp.float32))


class Doubled(nn.Module):
  """A transposed convolution of size and stride 2, without bias.

  Its windows do not overlap, so it is a dense layer whose outputs are the 2, 4
  or 8 new places of each old one. The kernel is [2, ..., 2, C, features].

  Attributes:
    features: Channels of the output.
    dtype: Type in which it computes.
  """

  features: int
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, d, h, w, C] to [B, 2 d, 2 h, 2 w, features]."""
    b, *grid, c = x.shape
    n = len(grid)
    shape = (*(2,) * n, c, self.features)
    kernel = self.param('kernel', _KERNEL, shape).astype(self.dtype)
    y = jnp.tensordot(x.astype(self.dtype), kernel, axes=((n + 1,), (n,)))
    # [B, d, h, w, 2, 2, 2, F] -> [B, d, 2, h, 2, w, 2, F]
    axes = [axis for i in range(1, n + 1) for axis in (i, i + n)]
    y = y.transpose(0, *axes, 2 * n + 1)
    return y.reshape(b, *(2 * m for m in grid), self.features)


def instance_norm(x: jax.Array, epsilon: float = 1e-5) -> jax.Array:
  """Normalises each channel of each map [B, ..., C] over its places."""
  axes, wide = tuple(range(1, x.ndim - 1)), x.astype(jnp.float32)
  mean, var = (f(wide, axes, keepdims=True) for f in (jnp.mean, jnp.var))
  return projection.normalize(wide, mean, var, epsilon).astype(x.dtype)
