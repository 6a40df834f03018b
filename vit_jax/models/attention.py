"""Multi-head self-attention.

In comments: B images, T tokens, D hidden size, H heads, K = D / H channels of a
head, R tokens with a query (all T, or fewer in the last layer).
"""

from typing import cast
from typing import Literal

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import dropout
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


def implementation_on(platform: str, implementation: str) -> str:
  """Returns the implementation that 'auto' stands for; others as they are.

  Args:
    platform: 'cpu', 'tpu' or 'gpu'.
    implementation: One of `spec.ATTENTION_IMPLEMENTATIONS`.
  """
  if implementation != 'auto':
    return implementation
  return 'plain' if platform == 'cpu' else 'einsum'


class QKV(nn.Module):
  """Queries, keys and values: [B, T, D] -> [B, R, H, K] and twice [B, T, H, K].

  They share one kernel, [D, 3, H, K], but are three matrix products: on CPUs
  the backward pass of a single product would copy its gradients in memory.
  """

  spec: spec_lib.EncoderSpec

  @nn.compact
  def __call__(
    self, x: jax.Array, num_queries: int | None
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns queries (of the first R = `num_queries` tokens), keys, values."""
    spec, d = self.spec, x.shape[-1]
    shape = (3, spec.num_heads, d // spec.num_heads)

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
      flat = separate(spec.starts.kernel, 3)(key, (d, 3 * d))
      return flat.reshape(shape)

    kernel = self.param('kernel', init, (d, *shape)).astype(spec.dtype)
    bias = jnp.zeros(shape, spec.dtype)
    if spec.qkv_bias:
      bias = self.param('bias', nn.initializers.zeros, shape).astype(spec.dtype)
    x = x.astype(spec.dtype)
    query, key, value = (
      jnp.einsum('btd,dhk->bthk', tokens, kernel[:, i]) + bias[i]
      for i, tokens in enumerate((x[:, :num_queries], x, x))
    )
    return query, key, value


class Attention(nn.Module):
  """Multi-head self-attention: [B, T, D] -> [B, R, D].

  Softmax is computed in float32. Heads come before tokens ([B, H, T, K]), so
  that both products are plain batched matrix products.

  Attributes:
    spec: Fields of the layer.
    num_queries: R, the number of first tokens that attend to all tokens; None:
      all tokens attend.
    capture: Whether the weights are returned.
  """

  spec: spec_lib.EncoderSpec
  num_queries: int | None = None
  capture: bool = False

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    perturbation: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns the output and, if captured, the weights [B, H, R, T].

    Args:
      x: [B, T, D].
      dropout_key: Key of the layer; None when not training.
      perturbation: Added to the weights that are captured, [B, H, R, T].
    """
    spec = self.spec
    query, key, value = QKV(spec, name='qkv')(x, self.num_queries)
    if spec.qk_norm:  # keeps logits from growing until training diverges
      query = spec.layer_norm('query_norm')(query)
      key = spec.layer_norm('key_norm')(key)
    weights = None
    implementation = implementation_on(
      jax.default_backend(), spec.attention_implementation
    )
    if self.capture or implementation == 'plain':
      y, weights = self._attend(query, key, value, dropout_key, perturbation)
    elif implementation == 'einsum':
      y = self._attend_by_einsum(query, key, value, dropout_key)
    else:
      y = jax.nn.dot_product_attention(
        query,
        key,
        value,
        implementation=cast(Literal['xla', 'cudnn'], implementation),
      )
    y = nn.DenseGeneral(
      x.shape[-1],
      axis=(-2, -1),
      kernel_init=spec.starts.kernel,
      dtype=spec.dtype,
      name='out',
    )(y)
    return y, weights

  def _attend(
    self,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    perturbation: jax.Array | None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Maps [B, T, H, K] to the values [B, R, H, K] and the weights."""
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    # Scores and their sum are float32: bfloat16 has 8 significant bits, too few
    # for a sum over all tokens.
    scores = jnp.einsum(
      'bhqk,bhtk->bhqt',
      query * query.shape[-1] ** -0.5,
      key,
      preferred_element_type=jnp.float32,
    )
    # Subtracting the largest score of a row does not change its softmax, and
    # keeps the exponentials from overflowing.
    most = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    scores = jnp.exp(scores - most)
    total = scores.sum(axis=-1, keepdims=True)
    if perturbation is not None:
      scores += perturbation * total  # scores are divided by `total` below
    tokens = key.shape[2]
    dropped = dropout.dropout(
      scores.astype(self.spec.dtype),
      self.spec.attention_dropout_rate,
      dropout.fold(dropout_key, dropout.Purpose.ATTENTION_WEIGHTS),
      (self.spec.num_heads, tokens, tokens),
    )
    # Softmax's division follows the product with the values, which has fewer
    # elements than the weights.
    y = jnp.einsum('bhqt,bhtk->bhqk', dropped, value)
    y = (y / total).astype(self.spec.dtype)
    return jnp.swapaxes(y, 1, 2), scores / total if self.capture else None

  def _attend_by_einsum(
    self,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_key: dropout.DropoutKey | None,
  ) -> jax.Array:
    """Maps [B, T, H, K] to the values [B, R, H, K].

    As in `flax.linen.dot_product_attention`: a transpose of [B, T, H, K] would
    be a copy in memory, and scores in float32 twice the traffic.
    """
    scores = jnp.einsum('bqhk,bthk->bhqt', query * query.shape[-1] ** -0.5, key)
    tokens = key.shape[1]
    weights = dropout.dropout(
      nn.softmax(scores),
      self.spec.attention_dropout_rate,
      dropout.fold(dropout_key, dropout.Purpose.ATTENTION_WEIGHTS),
      (self.spec.num_heads, tokens, tokens),
    )
    return jnp.einsum('bhqt,bthk->bqhk', weights, value)
