"""Projections to queries, keys and values.

In comments: B images, T tokens, D hidden size, H heads, K = D / H channels of a
head, R tokens with a query (all T, or fewer in the last layer).
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import fused_attention
from vit_jax.models import initializers
from vit_jax.models import spec as spec_lib


def separate(
  init: initializers.Initializer, count: int
) -> initializers.Initializer:
  """Initialises several matrices that are stored as one wide kernel.

  The bounds of Xavier's and LeCun's initializers depend on the matrix shape.
  They must use the shape of one query, key or value matrix, not of all three
  together.

  Args:
    init: Initializer of one matrix.
    count: Number of matrices side by side in the last axis.
  """

  def init_each(
    key: jax.Array,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike = jnp.float32,
  ) -> jax.Array:
    one = (*shape[:-1], shape[-1] // count)
    keys = jax.random.split(key, count)
    return jnp.concatenate([init(k, one, dtype) for k in keys], axis=-1)

  return init_each


class QKV(nn.Module):
  """Queries, keys and values: [B, T, D] -> [B, R, H, K] and twice [B, T, H, K].

  They share one kernel, [D, 3, H, K], but are three matrix products: on CPUs
  the backward pass of a single product would copy its gradients in memory. With
  fewer heads of keys, queries have a kernel of their own.

  Attributes:
    spec: Fields of the layer.
    packed: Whether they are one product and one array instead, [B, T, 3, D].
  """

  spec: spec_lib.EncoderSpec
  packed: bool = False

  @nn.compact
  def __call__(
    self, x: jax.Array, num_queries: int | None = None
  ) -> tuple[jax.Array, ...]:
    """Returns queries (of the first R = `num_queries` tokens), keys, values."""
    spec, d = self.spec, x.shape[-1]
    if spec.key_heads:
      return self._grouped(x, num_queries)
    shape = (3, spec.num_heads, d // spec.num_heads)

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
      flat = separate(spec.starts.kernel, 3)(key, (d, 3 * d))
      return flat.reshape(shape)

    kernel = self.param('kernel', init, (d, *shape)).astype(spec.dtype)
    bias = self._bias(shape)
    x = x.astype(spec.dtype)
    if self.packed:
      # A product with [D, 3, D] can be split by heads, but TPUs' compiler
      # transposes it to the kernel's order in memory.
      width = (3, d) if fused_attention.splits_heads() else (3 * d,)
      y = jnp.tensordot(x, kernel.reshape(d, *width), 1) + bias.reshape(width)
      return (spec_lib.keep(y).reshape(*x.shape[:2], 3, d),)
    return tuple(
      spec_lib.keep(jnp.einsum('btd,dhk->bthk', tokens, kernel[:, i]) + bias[i])
      for i, tokens in enumerate((x[:, :num_queries], x, x))
    )

  def _grouped(
    self, x: jax.Array, num_queries: int | None
  ) -> tuple[jax.Array, ...]:
    """Returns the same, with each head of keys and values repeated."""
    spec, init = self.spec, self.spec.starts.kernel
    assert spec.key_heads
    size = x.shape[-1] // spec.num_heads
    dense = functools.partial(
      nn.DenseGeneral, use_bias=spec.qkv_bias, dtype=spec.dtype
    )
    of_query = dense((spec.num_heads, size), kernel_init=init, name='query')
    shape = 2, spec.key_heads, size
    of_both = dense(shape, kernel_init=separate(init, 2), name='key_value')
    query = spec_lib.keep(of_query(x[:, :num_queries]))
    both = spec_lib.keep(of_both(x))
    both = jnp.repeat(both, spec.num_heads // spec.key_heads, axis=3)
    return query, both[:, :, 0], both[:, :, 1]

  def _bias(self, shape: tuple[int, int, int]) -> jax.Array:
    """Returns the biases of queries, keys and values, [3, H, K]."""
    spec = self.spec
    if not spec.qkv_bias:
      return jnp.zeros(shape, spec.dtype)
    count = 3 if spec.key_bias else 2  # queries and values
    bias = self.param('bias', nn.initializers.zeros, (count, *shape[1:]))
    bias = bias.astype(spec.dtype)
    if spec.key_bias:
      return bias
    return jnp.stack([bias[0], jnp.zeros_like(bias[0]), bias[1]])
