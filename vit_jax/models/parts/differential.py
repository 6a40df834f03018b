"""Differential attention (Differential Transformer, arXiv:2410.05258).

The weights of a head are one softmax less a factor times a second one, each
with half of the head's queries and keys.

In comments: B images, T tokens, R tokens with a query, H heads, K channels of a
head.
"""

from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import attention
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import refusals
from vit_jax.models.attention import QKV
from vit_jax.models.context import Context
from vit_jax.models.parts import positions

_EPSILON = 1e-5  # of the norm, as in the authors' code and in timm


class Differential(attention.Attention):
  """Attention whose weights are the difference of two softmaxes."""

  supported: ClassVar[tuple[str, ...]] = ()

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if it does not fit the model's other parts."""
    added, channels = positions.in_attention(model), model.hidden_size
    channels //= self.num_heads
    wrong = {
      f'positions={added!r}': added,
      f'heads of {channels} channels, which have no halves': channels % 2,
      "initializers='mimetic'": self.initializers == initializers_lib.MIMETIC,
    }
    refusals.refuse(wrong, "attention='differential' does not go with {}")

  def prepare(
    self, query: jax.Array, key: jax.Array, value: jax.Array, context: Context
  ) -> QKV:
    """Returns both halves of each head as two heads, and its values twice.

    They are [B, R, 2 H, K / 2], [B, T, 2 H, K / 2] and [B, T, 2 H, K].
    """
    query, key = (
      x.reshape(*x.shape[:2], 2 * x.shape[2], x.shape[3] // 2)
      for x in (query, key)
    )
    value = jnp.repeat(value, 2, axis=2)
    return super().prepare(query, key, value, context)

  def attend(
    self, qkv: QKV, bias: jax.Array | None, context: Context
  ) -> jax.Array:
    """Returns the values of both halves, [B, R, 2 H, K]."""
    added = context.perturbation
    if added is not None:  # to the weights of the first halves
      halves = jnp.stack([added, jnp.zeros_like(added)], axis=2)
      added = jax.lax.collapse(halves, 1, 3)
    return super().attend(qkv, bias, context.replace(perturbation=added))

  def join(self, y: jax.Array, context: Context) -> jax.Array:
    """Returns the differences of both halves, [B, R, H, K]."""
    assert context.layer is not None
    weights = context.outputs.get('attention')
    join = Difference(self.dtype, name='difference')
    y, weights = join(y, weights, context.layer)
    if weights is not None:
      context.outputs['attention'] = weights
    return y


class Difference(nn.Module):
  """Maps what both halves attend to into the head's values, normalised."""

  dtype: jax.typing.DTypeLike

  @nn.compact
  def __call__(
    self, y: jax.Array, weights: jax.Array | None, layer: jax.Array
  ) -> tuple[jax.Array, jax.Array | None]:
    """Equations 1 to 3 of the paper.

    Returns [B, R, H, K] of y [B, R, 2 H, K]; and the difference of weights
    [B, 2 H, R, T], [B, H, R, T], or None. Layers are counted from 0, an int32
    scalar.
    """
    b, r, heads, size = y.shape
    vectors = {
      name: self.param(name, nn.initializers.normal(0.1), (size // 2,))
      for name in ('query1', 'key1', 'query2', 'key2')
    }
    start = 0.8 - 0.6 * jnp.exp(-0.3 * layer)
    factor = (
      jnp.exp(vectors['query1'] @ vectors['key1'])
      - jnp.exp(vectors['query2'] @ vectors['key2'])
      + start
    )
    y = y.reshape(b, r, heads // 2, 2, size)
    y = y[..., 0, :] - factor.astype(y.dtype) * y[..., 1, :]
    # Each head's own norm, as the sizes of their differences differ.
    y = nn.RMSNorm(_EPSILON, self.dtype, name='norm')(y)
    if weights is not None:
      weights = weights.reshape(b, heads // 2, 2, *weights.shape[2:])
      weights = weights[:, :, 0] - factor * weights[:, :, 1]
    return y * (1 - start).astype(y.dtype), weights
