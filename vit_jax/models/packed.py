"""Attention by the kernel for TPUs, whose input is one array.

In comments: B images, T tokens, D hidden size, H heads, K = D / H channels of a
head.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models.attention import Attention
from vit_jax.models.attention import Projection
from vit_jax.models.block import keep
from vit_jax.models.block import LayerNorm
from vit_jax.models.context import Context
from vit_jax.models.parts import fused_attention
from vit_jax.models.parts import vector_lanes


def attend(attention: Attention, x: jax.Array, context: Context) -> jax.Array:
  """Maps [B, T, D] to the values [B, T, H, K] by the kernel for TPUs."""
  qkv = PackedProjection(name='qkv')(attention, x)
  num_heads, rotation = attention.num_heads, context.rotation
  heads = *x.shape[:2], num_heads, x.shape[-1] // num_heads
  turn = norms = None
  if rotation is not None:
    turn = fused_attention.make_turn(
      *(rotation, context.layer, x.shape, attention.dtype, attention.qk_norm)
    )
  if rotation is not None and turn is None:  # the kernel cannot rotate
    query, key, value = (qkv[:, :, i].reshape(heads) for i in range(3))
    parts = attention.prepare(query, key, value, context)
    qkv = jnp.stack([y.reshape(x.shape) for y in parts], axis=2)
  elif attention.qk_norm:
    has_bias = isinstance(attention.norm, LayerNorm)
    scales = [
      _NormParameters(heads[-1], has_bias, name=name)()
      for name in ('query_norm', 'key_norm')
    ]
    norms = vector_lanes.Norms(
      jnp.stack(scales), attention.norm.epsilon, has_bias
    )
  y = fused_attention.fused_attention(qkv, num_heads, turn, norms)
  return y.reshape(heads)


class _NormParameters(nn.Module):
  """The parameters of a `LayerNorm` or `RMSNorm`, by their names.

  Attributes:
    size: Number of channels.
    has_bias: Whether there is a bias; else it is 0.
  """

  size: int
  has_bias: bool

  @nn.compact
  def __call__(self) -> jax.Array:
    """Returns scale and bias, [2, size]."""
    shape = (self.size,)
    scale = self.param('scale', nn.initializers.ones, shape)
    if not self.has_bias:
      return jnp.stack([scale, jnp.zeros_like(scale)])
    return jnp.stack([scale, self.param('bias', nn.initializers.zeros, shape)])


class PackedProjection(Projection):
  """The same as one product and one array, [B, T, D] -> [B, T, 3, D]."""

  @nn.compact
  def __call__(  # type: ignore[override]
    self, attention: Attention, x: jax.Array
  ) -> jax.Array:
    """Returns queries, keys and values of all tokens."""
    kernel, bias = self.weights(attention, x.shape[-1])
    return _product(x.astype(attention.dtype), kernel, bias)


def _product(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
  """Returns queries, keys and values in one array, [B, T, 3, D].

  Args:
    x: [B, T, D].
    kernel: [D, 3, H, K].
    bias: [3, H, K].
  """
  d = x.shape[-1]
  # A product with [D, 3, D] can be split by heads, but TPUs' compiler
  # transposes it to the kernel's order in memory.
  width = (3, d) if fused_attention.splits_heads() else (3 * d,)
  y = jnp.tensordot(x, kernel.reshape(d, *width), 1) + bias.reshape(width)
  # TPUs would keep [B, T, 3, D] with 8 rows for its 3.
  return keep(y).reshape(*x.shape[:2], 3, d)
