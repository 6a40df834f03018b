"""Layers of dense prediction: resizing, convolutions and norms of maps.

Maps are images [B, h, w, C] or volumes [B, d, h, w, C]. Where a layer has a
counterpart in PyTorch, it computes the same.
"""

from collections.abc import Sequence
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import projection

_KERNEL = nn.initializers.he_normal()


def resize(
  x: jax.Array, size: Sequence[int], align_corners: bool = False
) -> jax.Array:
  """Resizes maps [B, ..., C] linearly along each axis, without antialiasing.

  Args:
    x: Maps.
    size: New lengths of the axes between B and C.
    align_corners: Whether the first and last places stay where they are;
      otherwise the outer edges do, as for images.
  """
  for axis, length in enumerate(size, start=1):
    if x.shape[axis] != length:
      weighted = functools.partial(
        _weighted, axis=axis, length=length, align_corners=align_corners
      )
      factor, remainder = divmod(length, x.shape[axis])
      if remainder or align_corners:
        x = weighted(x)
      else:
        multiplied = functools.partial(_multiplied, axis=axis, factor=factor)
        x = jax.lax.platform_dependent(x, cpu=multiplied, default=weighted)
  return x


def _multiplied(x: jax.Array, axis: int, factor: int) -> jax.Array:
  """Makes an axis `factor` times as long: each new place has two neighbours.

  On a v5e, a step of SETR-PUP has 7% less memory traffic with `_weighted`.
  """
  wide = x.astype(jnp.float32)
  n = x.shape[axis]
  first, front, back, last = (
    jax.lax.slice_in_dim(wide, *ends, axis=axis)
    for ends in ((0, 1), (0, n - 1), (1, n), (n - 1, n))
  )
  before = jnp.concatenate([first, front], axis)
  after = jnp.concatenate([back, last], axis)
  places = []
  for i in range(factor):
    offset = (i + 0.5) / factor - 0.5  # from the old place, in its unit
    neighbour = before if offset < 0 else after
    places.append(wide * (1 - abs(offset)) + neighbour * abs(offset))
  shape = list(x.shape)
  shape[axis] *= factor
  return jnp.stack(places, axis + 1).reshape(shape).astype(x.dtype)


def _weighted(
  x: jax.Array, axis: int, length: int, align_corners: bool
) -> jax.Array:
  """Resizes an axis by a product with weights, for any length."""
  weights = linear_weights(x.shape[axis], length, align_corners)
  # Weights in bfloat16 would move the places by up to 0.4%.
  resized = jnp.tensordot(
    x,
    weights.astype(x.dtype),
    axes=((axis,), (1,)),
    precision=jax.lax.Precision.HIGHEST,
  )
  return jnp.moveaxis(resized, -1, axis)


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

    With `train`, BatchNorm measures this batch; see
    `projection.StoredBatchNorm`.
    """
    if self.groups == 1:
      conv: nn.Module = PlainConvolution(
        self.features, self.kernel_size, self.dtype, name='conv'
      )
    else:
      conv = nn.Conv(
        self.features,
        (self.kernel_size,) * (x.ndim - 2),
        feature_group_count=self.groups,
        use_bias=False,
        kernel_init=_KERNEL,
        dtype=self.dtype,
        name='conv',
      )
    x = conv(x)
    x = projection.StoredBatchNorm(name='norm')(x, train=train)
    return nn.relu(x).astype(self.dtype)


@jax.custom_vjp
def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Convolves maps [B, ..., C]; the grid stays, with zeros around it.

  On CPUs, volumes are convolved one slice after the other, and the gradient of
  the kernel is a sum of products of matrices. With 16 to 32 channels at
  96 x 96 x 96 places, XLA's convolution of volumes computes 28 GFLOP/s there,
  that of slices 107 to 140, since they stay in the cache; and its gradient of a
  kernel 19 GFLOP/s, products 75 to 113 (2 cores, JAX 0.10.2).

  Args:
    x: Images [B, h, w, C] or volumes [B, d, h, w, C].
    kernel: [k, k, C, features] or [k, k, k, C, features], k odd.
  """
  if x.ndim == 4:
    return _convolve(x, kernel)
  return jax.lax.platform_dependent(
    x, kernel, cpu=_convolve_slices, default=_convolve
  )


def _forward(
  x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return convolve(x, kernel), (x, kernel)


def _backward(
  inputs: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
  x, kernel = inputs

  def plain(x: jax.Array, kernel: jax.Array, gradient: jax.Array) -> jax.Array:
    return jax.vjp(lambda kernel: _convolve(x, kernel), kernel)[1](gradient)[0]

  turned = jnp.flip(kernel, range(x.ndim - 2)).swapaxes(-1, -2)
  return convolve(gradient, turned), jax.lax.platform_dependent(
    x, kernel, gradient, cpu=_products_gradient, default=plain
  )


convolve.defvjp(_forward, _backward)


def _convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
  sides = 'DHW'[-(x.ndim - 2) :]
  layout = f'N{sides}C', f'{sides}IO', f'N{sides}C'
  return jax.lax.conv_general_dilated(
    x, kernel, (1,) * len(sides), 'SAME', dimension_numbers=layout
  )


def _convolve_slices(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Convolves images that have the channels of a slice's neighbours, too."""
  k, *_, c, features = kernel.shape
  kernel = jnp.moveaxis(kernel, 0, 2).reshape(k, k, k * c, features)

  def convolve_slice(_: None, i: jax.Array) -> tuple[None, jax.Array]:
    neighbours = jnp.moveaxis(
      jax.lax.dynamic_slice_in_dim(padded, i, k, axis=1), 1, 3
    )
    return None, _convolve(
      neighbours.reshape(*neighbours.shape[:3], k * c), kernel
    )

  padded = _padded(x, k, 1)
  slices = jax.lax.scan(convolve_slice, None, jnp.arange(x.shape[1]))[1]
  return jnp.moveaxis(slices, 0, 1)


def _products_gradient(
  x: jax.Array, kernel: jax.Array, gradient: jax.Array
) -> jax.Array:
  """Returns the kernel's gradient, as products for each slice of volumes.

  Rows of the gradient, moved up and down, are so many times as many channels.
  Each is multiplied with the input, moved along the other two axes.
  """
  if x.ndim == 4:
    return _products_gradient(x[:, None], kernel[None], gradient[:, None])[0]
  depths, heights, columns, c, features = kernel.shape
  b, d, h, w, _ = x.shape
  x = _padded(_padded(x, depths, 1), columns, 3)
  gradient = _padded(gradient, heights, 2)

  def add(total: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
    neighbours = jax.lax.dynamic_slice_in_dim(x, i, depths, axis=1)
    slice_gradient = jax.lax.dynamic_index_in_dim(
      gradient, i, axis=1, keepdims=False
    )
    rows = [slice_gradient[:, j : j + h] for j in reversed(range(heights))]
    moved = jnp.concatenate(rows, axis=-1).reshape(b * h * w, -1)
    products = [
      jnp.einsum(
        'nf,nc->fc',
        moved,
        neighbours[:, depth, :, column : column + w].reshape(b * h * w, c),
        preferred_element_type=jnp.float32,
      )
      for depth in range(depths)
      for column in range(columns)
    ]
    return total + jnp.stack(products), None

  zero = jnp.zeros((depths * columns, heights * features, c), jnp.float32)
  total = jax.lax.scan(add, zero, jnp.arange(d))[0]
  # [depth, column, row, features, C] -> [depth, row, column, C, features]
  total = total.reshape(depths, columns, heights, features, c)
  return total.transpose(0, 2, 1, 4, 3).astype(kernel.dtype)


def _padded(x: jax.Array, k: int, axis: int) -> jax.Array:
  """Returns maps with k // 2 zeros at both ends of an axis."""
  return jnp.pad(x, [(k // 2 * (i == axis),) * 2 for i in range(x.ndim)])


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
  """A dense layer for each place: [B, ..., C] -> float32 [B, ..., classes]."""

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


def instance_norm(x: jax.Array) -> jax.Array:
  """Normalises each channel of each map [B, ..., C] over its places."""
  axes, wide = tuple(range(1, x.ndim - 1)), x.astype(jnp.float32)
  mean, var = (f(wide, axes, keepdims=True) for f in (jnp.mean, jnp.var))
  return projection.normalize(wide, mean, var, 1e-5).astype(x.dtype)
