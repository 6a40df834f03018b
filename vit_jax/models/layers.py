"""The parts of a Vision Transformer, as Linen modules.

In comments: B images, T tokens, D hidden size, H heads, K = D / H, M MLP size.

Random masks do not use Linen's streams, which depend on the module path: each
block is given one key and folds in its layer and the mask's purpose. A mask is
drawn for each row of the global batch from that row's own key. So masks are the
same unrolled or scanned, accumulated or not, on one device or many.
"""

from collections.abc import Callable
import dataclasses
import enum
import functools

from flax import linen as nn
import jax
from jax.extend import random as jex_random
import jax.numpy as jnp
import numpy as np

Initializer = Callable[..., jax.Array]
Mask = tuple[jax.Array, jax.Array]  # key, and rows [B] of the global batch


class Purpose(enum.IntEnum):
  """What a random mask is for; folded into the layer's key."""

  EMBEDDING = 0
  ATTENTION_WEIGHTS = 1
  ATTENTION_OUTPUT = 2
  MLP_HIDDEN = 3
  MLP_OUTPUT = 4
  ATTENTION_PATH = 5
  MLP_PATH = 6


@dataclasses.dataclass(frozen=True)
class Initializers:
  """How each kind of parameter starts."""

  kernel: Initializer
  patch: Initializer
  mlp_bias: Initializer
  class_token: Initializer
  position: Initializer
  head: Initializer


INITIALIZERS = {
  # google-research/vision_transformer, the code of the ViT paper.
  'vit': Initializers(
    kernel=nn.initializers.xavier_uniform(),
    patch=nn.initializers.lecun_normal(),
    mlp_bias=nn.initializers.normal(1e-6),
    class_token=nn.initializers.zeros,
    position=nn.initializers.normal(0.02),
    head=nn.initializers.zeros,
  ),
  # Flax's defaults, and unit variance for what is added to the tokens.
  'lecun': Initializers(
    kernel=nn.initializers.lecun_normal(),
    patch=nn.initializers.lecun_normal(),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.normal(1.0),
    position=nn.initializers.normal(1.0),
    head=nn.initializers.lecun_normal(),
  ),
}

GELUS = {
  'tanh': functools.partial(nn.gelu, approximate=True),
  'exact': functools.partial(nn.gelu, approximate=False),
}


def fold(mask: Mask | None, data: int | jax.Array) -> Mask | None:
  """Folds a layer or a purpose into the key; None stays None."""
  return mask and (jax.random.fold_in(mask[0], data), mask[1])


def keep_mask(
  mask: Mask, rate: float | jax.Array, shape: tuple[int, ...]
) -> jax.Array:
  """Draws True with probability 1 - `rate`, to a precision of 2^-16.

  Threefry makes two 32-bit words per call. Comparing 16 bits at a time takes a
  quarter of the calls that `jax.random.bernoulli` makes.

  Args:
    mask: Key and rows [B].
    rate: Probability of False.
    shape: Of one row's mask.

  Returns:
    bool [B, *shape].
  """
  key, rows = mask
  if 'threefry' in str(jax.random.key_impl(key)):
    words = -(-int(np.prod(shape)) // 2)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows)
    count = jnp.arange(words, dtype=jnp.uint32)
    draw = functools.partial(jex_random.threefry_2x32, count=count)
    bits32 = jax.vmap(draw)(jax.random.key_data(keys))
    bits = jax.lax.bitcast_convert_type(bits32, jnp.uint16)
    bits = bits.reshape(len(rows), 2 * words)[:, : int(np.prod(shape))]
  else:
    key = jax.random.fold_in(key, rows[0])  # parts of a batch differ
    bits = jax.random.bits(key, (len(rows), *shape), jnp.uint16)
  threshold = jnp.round(jnp.float32(rate) * 2**16).astype(jnp.uint32)
  return bits.reshape(len(rows), *shape).astype(jnp.uint32) >= threshold


def dropout(
  x: jax.Array, rate: float | jax.Array, mask: Mask | None
) -> jax.Array:
  """Zeroes each element of x [B, ...] with probability `rate`, scales the rest.

  Without a mask (not training), or at a fixed rate of 0, x is returned.
  """
  if mask is None or (isinstance(rate, float) and rate == 0.0):
    return x
  keep = keep_mask(mask, rate, x.shape[1:])
  return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), 0)


def drop_path(x: jax.Array, rate: jax.Array, mask: Mask | None) -> jax.Array:
  """Stochastic depth (arXiv:1603.09382): zeroes whole rows of x [B, T, D]."""
  if mask is None:
    return x
  keep = keep_mask(mask, rate, (1, 1))
  return jnp.where(keep, x / (1 - rate).astype(x.dtype), 0)


class PatchEmbedding(nn.Module):
  """Projects non-overlapping patches: [B, height, width, C] -> [B, h, w, D].

  The kernel [p, q, C, D] is that of a convolution with a stride of its size;
  one matrix product computes it.
  """

  hidden_size: int
  patch_size: tuple[int, int]
  kernel_init: Initializer
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Returns one token per patch; the image must be a multiple of it."""
    b, height, width, c = images.shape
    p, q = self.patch_size
    if height % p or width % q:
      raise ValueError(
        f'the image, {height} x {width}, is not a multiple of the patch,'
        f' {p} x {q}'
      )
    kernel = self.param('kernel', self.kernel_init, (p, q, c, self.hidden_size))
    bias = self.param('bias', nn.initializers.zeros, (self.hidden_size,))
    h, w = height // p, width // q
    x = images.astype(self.dtype).reshape(b, h, p, w, q, c)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, h, w, p * q * c)
    kernel = kernel.reshape(p * q * c, self.hidden_size)
    return x @ kernel.astype(self.dtype) + bias.astype(self.dtype)


class Attention(nn.Module):
  """Multi-head self-attention: [B, T, D] -> [B, T, D].

  Softmax is computed in float32. Heads come before tokens ([B, H, T, K]), which
  keeps both products as plain batched matrix products.
  """

  num_heads: int
  dropout_rate: float
  kernel_init: Initializer
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self, x: jax.Array, mask: Mask | None
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the output [B, T, D] and the attention weights [B, H, T, T]."""
    d = x.shape[-1]
    k = d // self.num_heads
    qkv = nn.DenseGeneral(
      (3, self.num_heads, k),
      kernel_init=_three(self.kernel_init),
      dtype=self.dtype,
      name='qkv',
    )(x)  # [B, T, 3, H, K]
    query, key, value = jnp.moveaxis(qkv, (2, 3), (0, 2))  # [B, H, T, K]
    scores = jnp.einsum(
      'bhqk,bhtk->bhqt',
      query * k**-0.5,
      key,
      preferred_element_type=jnp.float32,
    )
    weights = nn.softmax(scores).astype(self.dtype)
    dropped = dropout(
      weights, self.dropout_rate, fold(mask, Purpose.ATTENTION_WEIGHTS)
    )
    y = jnp.einsum('bhqt,bhtk->bhqk', dropped, value)
    y = nn.DenseGeneral(
      d,
      axis=(-2, -1),
      kernel_init=self.kernel_init,
      dtype=self.dtype,
      name='out',
    )(jnp.swapaxes(y, 1, 2))
    return y, weights


def _three(init: Initializer) -> Initializer:
  """Initialises query, key and value as three matrices, not as one wide."""

  def init_qkv(
    key: jax.Array,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike = jnp.float32,
  ) -> jax.Array:
    one = (*shape[:-1], shape[-1] // 3)
    keys = jax.random.split(key, 3)
    return jnp.concatenate([init(k, one, dtype) for k in keys], axis=-1)

  return init_qkv


class Mlp(nn.Module):
  """Two dense layers with a GELU between: [B, T, D] -> [B, T, D]."""

  mlp_dim: int
  dropout_rate: float
  gelu: str
  kernel_init: Initializer
  bias_init: Initializer
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, mask: Mask | None) -> jax.Array:
    """Returns the output [B, T, D]."""
    dense = functools.partial(
      nn.Dense,
      kernel_init=self.kernel_init,
      bias_init=self.bias_init,
      dtype=self.dtype,
    )
    y = GELUS[self.gelu](dense(self.mlp_dim, name='up')(x))  # [B, T, M]
    y = dropout(y, self.dropout_rate, fold(mask, Purpose.MLP_HIDDEN))
    y = dense(x.shape[-1], name='down')(y)
    return dropout(y, self.dropout_rate, fold(mask, Purpose.MLP_OUTPUT))


def sincos2d(grid: tuple[int, int], hidden_size: int) -> np.ndarray:
  """Fixed position embeddings, after MoCo v3 (arXiv:2104.02057, section 5.2).

  Args:
    grid: Patches (h, w).
    hidden_size: D, a multiple of 4.

  Returns:
    float32 [1, h * w, D]: sine and cosine of x, then of y, at D / 4 wavelengths
    from 2 pi to 10,000 * 2 pi patches.
  """
  y, x = np.mgrid[: grid[0], : grid[1]]
  omega = 10_000.0 ** -np.linspace(0, 1, hidden_size // 4)
  x, y = x.ravel()[:, None] * omega, y.ravel()[:, None] * omega
  table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
  return table[None].astype(np.float32)
