"""Parts and optimizers that `gpu_candidates` tries on a GPU.

Each computes what a default of the package computes, in another way. In
comments: B images, T tokens, R of them with a query, D hidden size, H heads, K
channels of a head.
"""

from typing import Any

from flax import linen as nn
import jax
from jax.experimental.pallas.ops.gpu import layer_norm as triton
import jax.numpy as jnp
import optax

from vit_jax.models import attention as attention_lib
from vit_jax.models import block
from vit_jax.models.context import Context


class TritonNorm(block.LayerNorm):
  """LayerNorm by JAX's Triton kernels: a program for each token."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns normalised tokens, of the argument's type and shape."""
    d = x.shape[-1]
    scale = self.param('scale', nn.initializers.ones, (d,))
    bias = self.param('bias', nn.initializers.zeros, (d,))
    rows = x.astype(self.dtype).reshape(1, -1, d)
    interpret = jax.default_backend() != 'gpu'
    y = triton.layer_norm(
      rows, scale, bias, eps=self.epsilon, interpret=interpret
    )
    return y.reshape(x.shape).astype(self.dtype)


@jax.custom_vjp
def gelu_with_slope(x: jax.Array) -> jax.Array:
  """GELU that keeps its derivative for the backward pass, not its argument."""
  return nn.gelu(x)


def _gelu_and_slope(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  return jax.jvp(nn.gelu, (x,), (jnp.ones_like(x),))


def _pull_back_gelu(slope: jax.Array, grad: jax.Array) -> tuple[jax.Array]:
  return (slope * grad,)


gelu_with_slope.defvjp(_gelu_and_slope, _pull_back_gelu)


class SlopeMlp(block.Mlp):
  """An MLP that keeps the derivative of its GELU; for remat='none'."""

  def activate(self, y: jax.Array) -> jax.Array:
    """Maps the first layer's output to that of the activation function."""
    return gelu_with_slope(y)


class PackedAttention(attention_lib.Attention):
  """Attention with one product for queries, keys and values."""

  def project(self, x: jax.Array, context: Context) -> attention_lib.QKV:
    """Returns queries [B, R, H, K], keys and values [B, T, H, K]."""
    query, key, value = _PackedProjection(name='qkv')(self, x, None)
    return query[:, : context.num_read], key, value


class _PackedProjection(attention_lib.Projection):
  """[B, T, D] -> three arrays [B, T, H, K], by a product with [D, 3 D]."""

  @nn.compact
  def __call__(
    self,
    attention: attention_lib.Attention,
    x: jax.Array,
    num_queries: int | None,
  ) -> attention_lib.QKV:
    """Returns queries of all tokens, keys and values."""
    kernel, bias = self.weights(attention, x.shape[-1])
    d, *heads = kernel.shape
    y = x.astype(attention.dtype) @ kernel.reshape(d, -1) + bias.reshape(-1)
    y = block.keep(y).reshape(*x.shape[:2], *heads)
    return y[:, :, 0], y[:, :, 1], y[:, :, 2]


class PaddedAttention(attention_lib.Attention):
  """Attention on tokens that are padded, which nothing attends to.

  Attributes:
    multiple: Of which number the length is a multiple.
  """

  multiple: int = 64

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns the output [B, R, D]."""
    qkv = self.prepare(*self.project(x, context), context)
    lengths = [y.shape[1] for y in qkv[:2]]
    query, key, value = (
      jnp.pad(y, ((0, 0), (0, -y.shape[1] % self.multiple), (0, 0), (0, 0)))
      for y in qkv
    )
    r, t = (jnp.full(x.shape[:1], length, jnp.int32) for length in lengths)
    on_gpu = jax.default_backend() == 'gpu'
    y = jax.nn.dot_product_attention(
      query,
      key,
      value,
      query_seq_lengths=r,
      key_value_seq_lengths=t,
      implementation='cudnn' if on_gpu else 'xla',
    )
    y = block.keep(y[:, : lengths[0]])
    return block.keep(attention_lib.Output(name='out')(self, y))


def flat_adam(
  learning_rate: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
  """Adam on one vector of all parameters."""
  return optax.flatten(optax.adam(learning_rate, b1, b2, eps))


def half_adam(
  learning_rate: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
  """Adam on gradients that are rounded to bfloat16."""

  def rounded(updates: Any, _: Any = None) -> Any:
    return jax.tree.map(lambda g: g.astype(jnp.bfloat16), updates)

  adam = optax.adam(learning_rate, b1, b2, eps, mu_dtype=jnp.float32)
  return optax.chain(optax.stateless(rounded), adam)
