"""Multi-head self-attention (arXiv:2010.11929, appendix A).

`block` adds its output to the tokens; `parts/kernels.py` has the kernels of
accelerators.

In comments: B images, T tokens, D hidden size, H heads, K = D / H channels of a
head, R tokens with a query (all T, or fewer in the last layer).
"""

import math
from typing import Annotated
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.config import registry
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models.block import keep
from vit_jax.models.block import LayerNorm
from vit_jax.models.block import product
from vit_jax.models.block import suits_cpu
from vit_jax.models.context import Context
from vit_jax.models.dropout import Purpose

QKV = tuple[jax.Array, jax.Array, jax.Array]
# 'plain' is `Attention.attend`; `parts/kernels.py` has the others.
IMPLEMENTATIONS = ('auto', 'plain', 'einsum', 'fused', 'xla', 'cudnn')
_IMPLEMENTATION = fields.Field(
  fields.Kind.EXECUTION, choices=IMPLEMENTATIONS, key='attention_implementation'
)


class Attention(nn.Module):
  """Multi-head self-attention: [B, T, D] -> [B, R, D].

  Attributes:
    num_heads: H, which divides D.
    qkv_bias: Whether queries, keys and values have biases.
    key_bias: Whether keys have one where `qkv_bias` is True. Without rotation
      it does not change the softmax (BEiT, arXiv:2106.08254, its code).
    out_bias: Whether the layer after the heads has a bias.
    qk_norm: Whether a norm over each head's channels follows queries and keys
      (Scaling Vision Transformers to 22 Billion Parameters, arXiv:2302.05442).
    out_norm: Whether a norm over the channels of all heads precedes the layer
      after them (sub-LN of Magneto, arXiv:2210.06423, section 2).
    causal: Whether a token attends only to itself and those before it.
    dropout_rate: Dropout rate of the attention weights.
    norm: The norm of `qk_norm` and `out_norm`.
    implementation: 'auto': 'plain' on CPUs, kernels on TPUs and GPUs; or one of
      `IMPLEMENTATIONS`. All compute the softmax in float32. Where the attention
      weights are captured, 'plain' is always used.
    initializers: Name of the initial values.
    dtype: Type in which layers compute.
  """

  # The kernels that compute what this class does.
  supported: ClassVar[tuple[str, ...]] = ('fused', 'cudnn', 'xla')

  num_heads: Annotated[int, fields.HEADS]
  qkv_bias: Annotated[bool, fields.FUNCTION] = True
  key_bias: Annotated[bool, fields.FUNCTION] = True
  out_bias: Annotated[bool, fields.FUNCTION] = True
  qk_norm: Annotated[bool, fields.FUNCTION] = False
  out_norm: Annotated[bool, fields.FUNCTION] = False
  causal: Annotated[bool, fields.UNSEEN] = False
  dropout_rate: Annotated[float, fields.ATTENTION_RATE] = 0.0
  norm: Annotated[nn.Module, fields.PART] = LayerNorm()
  implementation: Annotated[str, _IMPLEMENTATION] = 'auto'
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @property
  def is_plain(self) -> bool:
    """Whether `attend` computes it; otherwise a kernel may."""
    is_auto = self.implementation == 'auto' and jax.default_backend() == 'cpu'
    return is_auto or self.implementation == 'plain'

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns the output for the first R tokens.

    It captures the weights as `attention` [B, H, R, T], and the mean of the
    keys over all heads as `keys` [B, T, K].
    """
    bias = self.bias(context)
    if self.is_plain or 'attention' in context.captures:
      qkv = self.prepare(*self.project(x, context), context)
      y = self.attend(qkv, bias, context)
    else:
      attend = registry.wing('vit_jax.models.parts.kernels:attend')
      y = attend(self, x, bias, context)
    y = self.join(keep(y), context)
    if self.out_norm:
      y = self.norm(jax.lax.collapse(y, 2)).reshape(y.shape)
    return keep(Output(name='out')(self, y))

  def project(self, x: jax.Array, context: Context) -> QKV:
    """Returns queries [B, R, H, K], keys and values [B, T, H, K]."""
    return Projection(name='qkv')(self, x, context.num_read)

  def prepare(
    self, query: jax.Array, key: jax.Array, value: jax.Array, context: Context
  ) -> QKV:
    """Normalises and rotates queries and keys."""
    if self.qk_norm:
      # This keeps logits from growing until training diverges.
      query = self.norm.copy(name='query_norm')(query)
      key = self.norm.copy(name='key_norm')(key)
    if context.rotation is not None:
      query = context.rotation(query, context.layer)
      key = context.rotation(key, context.layer)
    if 'keys' in context.captures:
      context.capture('keys', key.mean(axis=2))
    return query, key, value

  def join(self, y: jax.Array, context: Context) -> jax.Array:
    """Returns what the layer after the heads gets of values [B, R, H, K]."""
    return y

  def bias(self, context: Context) -> jax.Array | None:
    """Returns what is added to scores, [H, R, T] or [B, H or 1, R or 1, T]."""
    bias = context.bias
    if context.layer_bias is not None:
      part = context.layer_bias.copy(name='bias')
      nn.share_scope(self, part)
      bias = part(context)
    if bias is not None:
      bias = bias[:, : context.num_read]
    if context.attended is None and context.sizes is None:
      return bias
    return registry.wing('vit_jax.models.packing:masked')(bias, context)

  def attend(
    self, qkv: QKV, bias: jax.Array | None, context: Context
  ) -> jax.Array:
    """Maps [B, T, H, K] to the values [B, R, H, K].

    Heads come before tokens ([B, H, T, K]), so that both products are plain
    batched matrix products. The softmax is computed in float32.
    """
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in qkv)
    query *= query.shape[-1] ** -0.5
    if suits_cpu(query):
      # Else the compiler merges transposes into the gradients' products, so
      # that the one of the values has a transposed result.
      query, key, value = map(jax.lax.optimization_barrier, (query, key, value))
    # Scores and their sum are float32: bfloat16 has 8 significant bits, too few
    # for a sum over all tokens.
    scores = jnp.einsum(
      'bhqk,bhtk->bhqt',
      query,
      key,
      preferred_element_type=jnp.float32,
    )
    scores = self.masked(scores, bias)
    # Subtracting the largest score of a row does not change its softmax, and
    # keeps the exponentials from overflowing.
    most = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    scores = jnp.exp(scores - most)
    total = scores.sum(axis=-1, keepdims=True)
    if context.perturbation is not None:
      scores += context.perturbation * total  # they are divided by it below
    if 'attention' in context.captures:
      context.capture('attention', scores / total)
    dropped = self.dropped(scores.astype(self.dtype), context)
    # Softmax's division follows the product with the values, which has fewer
    # elements than the weights.
    y = jnp.einsum('bhqt,bhtk->bhqk', dropped, value)
    y = (y / total).astype(self.dtype)
    return jnp.swapaxes(y, 1, 2)

  def dropped(self, weights: jax.Array, context: Context) -> jax.Array:
    """Applies dropout to weights [B, H, R, T]; masks are drawn for R = T."""
    if context.dropout_key is None:
      return weights
    _, heads, _, tokens = weights.shape
    full_shape = heads, tokens, tokens
    purpose = Purpose.ATTENTION_WEIGHTS
    return context.dropout(weights, self.dropout_rate, purpose, full_shape)

  def masked(self, scores: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Adds the bias to scores [B, H, R, T], and masks later tokens."""
    if bias is not None:
      scores += bias.astype(scores.dtype)
    if not self.causal:
      return scores
    sees = jnp.tri(scores.shape[2], scores.shape[3], dtype=bool)
    return jnp.where(sees, scores, jnp.finfo(scores.dtype).min)


class Projection(nn.Module):
  """Queries, keys and values: [B, T, D] -> [B, R, H, K] and twice [B, T, H, K].

  They share one kernel, [D, 3, H, K], but are three matrix products: on CPUs
  the backward pass of a single product would copy its gradients in memory.
  """

  @nn.compact
  def __call__(
    self, attention: Attention, x: jax.Array, num_queries: int | None
  ) -> QKV:
    """Returns queries (of the first R = `num_queries` tokens), keys, values."""
    kernel, bias = self.weights(attention, x.shape[-1])
    x = x.astype(attention.dtype)
    query, key, value = (
      keep(product(tokens, kernel[:, i]) + bias[i])
      for i, tokens in enumerate((x[:, :num_queries], x, x))
    )
    return query, key, value

  def weights(
    self, attention: Attention, d: int
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the kernel [D, 3, H, K] and the biases [3, H, K]."""
    dtype, heads = attention.dtype, attention.num_heads
    shape = (3, heads, d // heads)
    starts = initializers_lib.INITIALIZERS[attention.initializers]

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
      # The bounds of Xavier's initializer depend on the shape of a matrix.
      matrices = [starts.kernel(k, (d, d)) for k in jax.random.split(key, 3)]
      return jnp.stack(matrices, axis=1).reshape(shape)

    kernel = self.param('kernel', init, (d, *shape)).astype(dtype)
    if not attention.qkv_bias:
      return kernel, jnp.zeros(shape, dtype)
    count = 3 if attention.key_bias else 2  # queries and values
    bias = self.param('bias', nn.initializers.zeros, (count, *shape[1:]))
    bias = bias.astype(dtype)
    if not attention.key_bias:
      bias = jnp.stack([bias[0], jnp.zeros_like(bias[0]), bias[1]])
    return kernel, bias


class Output(nn.Module):
  """The layer after the heads: [B, R, H, K] -> [B, R, D].

  As a `DenseGeneral` over both last axes, but as a product of matrices: for one
  over two axes, TPUs' compiler transposes the values in memory.
  """

  @nn.compact
  def __call__(self, attention: Attention, y: jax.Array) -> jax.Array:
    """Returns tokens."""
    heads, dtype = y.shape[2:], attention.dtype
    d = math.prod(heads)
    starts = initializers_lib.INITIALIZERS[attention.initializers]

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
      return starts.kernel(key, (d, d)).reshape(shape)

    kernel = self.param('kernel', init, (*heads, d)).astype(dtype)
    y = product(y.reshape(*y.shape[:2], d), kernel.reshape(d, d))
    if not attention.out_bias:
      return y
    return y + self.param('bias', nn.initializers.zeros, (d,)).astype(dtype)
