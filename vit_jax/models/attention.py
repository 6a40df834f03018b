"""Multi-head self-attention.

In comments: B images, T tokens, D hidden size, H heads, K = D / H channels of a
head, R tokens with a query (all T, or fewer in the last layer).
"""

from collections.abc import Iterator
import functools
import math
from typing import Any
from typing import cast
from typing import Literal

from absl import logging
from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import differential
from vit_jax.models import dropout
from vit_jax.models import fused_attention
from vit_jax.models import qkv as qkv_lib
from vit_jax.models import relative
from vit_jax.models import rotary
from vit_jax.models import spec as spec_lib
from vit_jax.models import vector_lanes

# Added to the scores of tokens that are not attended to: their weights are 0,
# and it is finite in all types but float16.
_HIDDEN = -1e9
# Names of the norms of queries and keys.
_NORMS = ('query_norm', 'key_norm')


@functools.cache  # once in a process
def log_choice(platform: str, kernel: str, refusal: str) -> None:
  """Logs which implementation of attention is used, and why."""
  if refusal:
    logging.info(
      "attention on %s: 'einsum', not %r: %s", platform, kernel, refusal
    )
  else:
    logging.info('attention on %s: %r', platform, kernel)


def _attend_of_jax(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array | None,
  *,
  causal: bool,
  implementation: str,
) -> jax.Array:
  """Maps [B, T, H, K] to the values [B, R, H, K] by `jax.nn`.

  Args:
    query: Queries, [B, R, H, K].
    key: Keys.
    value: Values.
    bias: Added to the scores, [H, R, T] or [B, H, R, T], or None.
    causal: Whether a token attends only to itself and those before it.
    implementation: 'xla' or 'cudnn'.
  """
  lengths: dict[str, Any] = {}
  if bias is not None and bias.ndim < query.ndim:
    bias = bias[None]
  b, r = query.shape[:2]
  t = key.shape[1]
  if implementation == 'cudnn' and (r % 2 or t % 2):
    # The backward pass of cuDNN needs even lengths, and 14 x 14 patches with a
    # class token are 197.
    even = [
      jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))
      for x in (query, key, value)
    ]
    query, key, value = even
    lengths = {
      'query_seq_lengths': jnp.full((b,), r, jnp.int32),
      'key_value_seq_lengths': jnp.full((b,), t, jnp.int32),
    }
  y = jax.nn.dot_product_attention(
    query,
    key,
    value,
    bias if bias is None else bias.astype(query.dtype),
    is_causal=causal,
    implementation=cast(Literal['xla', 'cudnn'], implementation),
    **lengths,
  )
  return y[:, :r]


class Output(nn.Module):
  """The layer after the heads: [B, R, H, K] -> [B, R, D].

  As a `DenseGeneral` over both last axes, but as a product of matrices: for one
  over two axes, TPUs' compiler transposes the values in memory.
  """

  spec: spec_lib.EncoderSpec

  @nn.compact
  def __call__(self, y: jax.Array) -> jax.Array:
    """Returns tokens."""
    spec, heads = self.spec, y.shape[2:]
    d = math.prod(heads)

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
      return spec.starts.kernel(key, (d, d)).reshape(shape)

    kernel = self.param('kernel', init, (*heads, d)).astype(spec.dtype)
    y = y.reshape(*y.shape[:2], d) @ kernel.reshape(d, d)
    if not spec.dense_bias:
      return y
    bias = self.param('bias', nn.initializers.zeros, (d,))
    return y + bias.astype(spec.dtype)


class Attention(nn.Module):
  """Multi-head self-attention: [B, T, D] -> [B, R, D].

  `EncoderSpec.attention_implementation` says in which type the softmax is
  computed, and in which order axes are.

  Attributes:
    spec: Fields of the layer.
    num_queries: R, the number of first tokens that attend to all tokens; None:
      all tokens attend.
    capture: Whether the weights are returned.
    returns_keys: Whether the keys' mean over all heads is returned instead.
  """

  spec: spec_lib.EncoderSpec
  num_queries: int | None = None
  capture: bool = False
  returns_keys: bool = False

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    context: spec_lib.Context | None = None,
    perturbation: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns the output, and the weights [B, H, R, T] or keys [B, T, K].

    Args:
      x: [B, T, D].
      dropout_key: Key of the layer; None when not training.
      context: What the layers have in common; None: nothing.
      perturbation: Added to the weights that are captured, [B, H, R, T].
    """
    spec, context = self.spec, context or spec_lib.Context()
    bias, rotation = self._bias(context), context.rotation
    implementation = self._implementation(x, dropout_key, bias)
    weights = None
    if implementation == 'fused':
      y = self._attend_fused(x, rotation)
    else:
      query, key, value = qkv_lib.QKV(spec, name='qkv')(x, self.num_queries)
      if spec.differential:
        query, key, value = differential.halves(query, key, value)
        if perturbation is not None:
          perturbation = differential.of_first(perturbation)
      qkv = self._prepared(query, key, value, rotation)
      if implementation == 'plain':
        y, weights = self._attend(*qkv, bias, dropout_key, perturbation)
      elif implementation == 'einsum':
        y = self._attend_by_einsum(*qkv, bias, dropout_key)
      else:
        y = _attend_of_jax(
          *qkv, bias, causal=spec.causal, implementation=implementation
        )
      if self.returns_keys:
        weights = qkv[1].mean(axis=2)
    y = spec_lib.keep(y)
    if spec.differential:
      assert context.layer is not None
      join = differential.Difference(spec.dtype, name='difference')
      y, seen = join(y, weights if self.capture else None, context.layer)
      weights = seen if self.capture else weights
    if spec.attention_norm:
      y = spec.layer_norm('norm')(jax.lax.collapse(y, 2)).reshape(y.shape)
    y = spec_lib.keep(Output(spec, name='out')(y))
    return y, weights

  def _bias(self, context: spec_lib.Context) -> jax.Array | None:
    """Returns what is added to the scores, or None.

    It is [H, R, T]; where some tokens are not attended to, [B, H or 1, R or 1,
    T].
    """
    bias, spec = context.bias, self.spec
    if spec.relative_positions.startswith('layers'):
      assert context.grid is not None
      bias = relative.bias(
        *(self, spec.relative_positions, context.grid, spec.num_heads),
        prefix=context.prefix,
        hidden=spec.relative_mlp_dim,
      )
    if bias is not None:
      bias = bias[:, : self.num_queries]
    for add in self._of_keys(context):
      bias = add if bias is None else add + bias
    return bias

  def _of_keys(self, context: spec_lib.Context) -> Iterator[jax.Array]:
    """Yields what is added to the scores of keys, [B, 1, 1 or T, T] each."""
    segments = context.segments
    if segments is not None:  # a matrix of blocks; padding attends to itself
      is_own = segments[:, :, None] == segments[:, None]
      yield jnp.where(is_own, 0.0, _HIDDEN)[:, None]
    elif context.attended is not None:
      yield jnp.where(context.attended, 0.0, _HIDDEN)[:, None, None]
    if context.sizes is not None:
      yield jnp.log(context.sizes)[:, None, None]

  def _implementation(
    self,
    x: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    bias: jax.Array | None,
  ) -> str:
    """Returns the implementation that can do this and suits it."""
    spec, platform = self.spec, jax.default_backend()
    if self.capture:
      return 'plain'
    chosen = spec_lib.attention_on(platform, spec.attention_implementation)
    if chosen not in ('fused', 'cudnn'):
      return 'einsum' if spec.differential and chosen == 'xla' else chosen
    drops = dropout_key is not None and spec.attention_dropout_rate > 0
    refusal = self._refusal(chosen, x, drops, bias)
    log_choice(platform, chosen, refusal)
    return 'einsum' if refusal else chosen

  def _refusal(
    self, kernel: str, x: jax.Array, drops: bool, bias: jax.Array | None
  ) -> str:
    """Returns why 'fused' or 'cudnn' cannot compute this; '' if it can."""
    spec, is_fused = self.spec, kernel == 'fused'
    reasons = {
      'weights are differences': spec.differential,
      'keys are returned': self.returns_keys,
      'heads share keys': is_fused and spec.key_heads,
      'scores have a bias': bias is not None,
      'tokens attend to earlier ones': is_fused and spec.causal,
      'weights are dropped': drops,
      'only first tokens attend': self.num_queries,
      'the batch is empty': not x.size,
    }
    for reason, holds in reasons.items():
      if holds:
        return reason
    if is_fused:
      return fused_attention.refusal(
        *(x.shape, spec.num_heads, spec.dtype), normalizes=spec.qk_norm
      )
    return self._refusal_of_cudnn(x.shape[-1] // spec.num_heads)

  def _refusal_of_cudnn(self, size: int) -> str:
    """Returns why cuDNN cannot attend with heads of `size` channels, or ''."""
    dtype, device = jnp.dtype(self.spec.dtype), jax.devices()[0]
    if dtype.itemsize != 2:
      return f'the type is {dtype.name}'
    if size % 8 or size > 128:
      return f'heads have {size} channels'
    if device.platform != 'gpu':  # ahead of time
      return ''
    # Flash attention came with Ampere, 8.0. AMD's GPUs have names: 'gfx942'.
    capability = str(getattr(device, 'compute_capability', ''))
    major = capability.partition('.')[0]
    is_new = major.isdecimal() and int(major) >= 8
    return (
      '' if is_new else f'cuDNN needs compute capability 8, not {capability}'
    )

  def _prepared(
    self,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    rotation: rotary.Rotation | None,
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalises and rotates [B, T, H, K], as `qk_norm` and `rotary` say."""
    if self.spec.qk_norm:
      # This keeps logits from growing until training diverges.
      query, key = (
        self.spec.layer_norm(name)(x)
        for name, x in zip(_NORMS, (query, key), strict=True)
      )
    if rotation is not None:
      query = rotary.rotate(query, rotation, self.spec.rotary)
      key = rotary.rotate(key, rotation, self.spec.rotary)
    return query, key, value

  def _attend_fused(
    self, x: jax.Array, rotation: rotary.Rotation | None
  ) -> jax.Array:
    """Maps [B, T, D] to the values [B, T, H, K]."""
    spec = self.spec
    (qkv,) = qkv_lib.QKV(spec, packed=True, name='qkv')(x)
    heads = *x.shape[:2], spec.num_heads, x.shape[-1] // spec.num_heads
    turn = norms = None
    if rotation is not None:
      turn = fused_attention.turn_of(
        *(rotation, spec.rotary, x.shape, spec.dtype, spec.qk_norm)
      )
    if rotation is not None and turn is None:  # the kernel cannot rotate
      query, key, value = (qkv[:, :, i].reshape(heads) for i in range(3))
      parts = self._prepared(query, key, value, rotation)
      qkv = jnp.stack([y.reshape(x.shape) for y in parts], axis=2)
    elif spec.qk_norm:
      both = [spec.norm_parameters(x, heads[-1]) for x in _NORMS]
      norms = vector_lanes.Norms(
        *(jnp.stack(both), spec.layer_norm_epsilon, spec.norm == 'layer')
      )
    y = fused_attention.fused_attention(qkv, spec.num_heads, turn, norms)
    return y.reshape(heads)

  def _attend(
    self,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    dropout_key: dropout.DropoutKey | None,
    perturbation: jax.Array | None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Maps [B, T, H, K] to the values [B, R, H, K] and the weights.

    Heads come before tokens ([B, H, T, K]), so that both products are plain
    batched matrix products. The softmax is computed in float32.
    """
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    # Scores and their sum are float32: bfloat16 has 8 significant bits, too few
    # for a sum over all tokens.
    scores = jnp.einsum(
      'bhqk,bhtk->bhqt',
      query * query.shape[-1] ** -0.5,
      key,
      preferred_element_type=jnp.float32,
    )
    scores = self._masked(scores, bias)
    # Subtracting the largest score of a row does not change its softmax, and
    # keeps the exponentials from overflowing.
    most = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    scores = jnp.exp(scores - most)
    total = scores.sum(axis=-1, keepdims=True)
    if perturbation is not None:
      scores += perturbation * total  # scores are divided by `total` below
    dropped = self._dropped(scores.astype(self.spec.dtype), dropout_key)
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
    bias: jax.Array | None,
    dropout_key: dropout.DropoutKey | None,
  ) -> jax.Array:
    """Maps [B, T, H, K] to the values [B, R, H, K].

    As in `flax.linen.dot_product_attention`: a transpose of [B, T, H, K] would
    be a copy in memory, and scores in float32 twice the traffic. So the scores
    and their softmax have the type of the queries.
    """
    scores = jnp.einsum('bqhk,bthk->bhqt', query * query.shape[-1] ** -0.5, key)
    scores = self._masked(scores, bias)
    weights = self._dropped(nn.softmax(scores), dropout_key)
    return jnp.einsum('bhqt,bthk->bqhk', weights, value)

  def _dropped(
    self, weights: jax.Array, dropout_key: dropout.DropoutKey | None
  ) -> jax.Array:
    """Applies dropout to weights [B, H, R, T]; masks are drawn for R = T."""
    _, heads, _, tokens = weights.shape
    return dropout.dropout(
      weights,
      self.spec.attention_dropout_rate,
      dropout.fold(dropout_key, dropout.Purpose.ATTENTION_WEIGHTS),
      (heads, tokens, tokens),
    )

  def _masked(self, scores: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Adds the bias to scores [B, H, R, T], and masks later tokens."""
    if bias is not None:
      scores += bias.astype(scores.dtype)
    if not self.spec.causal:
      return scores
    sees = jnp.tri(scores.shape[2], scores.shape[3], dtype=bool)
    return jnp.where(sees, scores, jnp.finfo(scores.dtype).min)
