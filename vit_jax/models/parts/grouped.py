"""Grouped queries: several heads of queries share a head of keys and values."""

import functools
from typing import Annotated
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import attention
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models.attention import QKV
from vit_jax.models.block import keep
from vit_jax.models.context import Context
from vit_jax.models.fields import Field
from vit_jax.models.fields import Kind
from vit_jax.models.parts import as_class


class Grouped(attention.Attention):
  """Attention with fewer heads of keys and values than of queries.

  Grouped-query attention (arXiv:2305.13245).

  Attributes, beside those of `Attention`:
    key_heads: Heads of keys and of values, which divide `num_heads`.
    full_layers: Number of first layers, and of last ones, whose keys have as
      many heads as queries all the same (Sapiens2, arXiv:2604.21681).
  """

  supported: ClassVar[tuple[str, ...]] = ('cudnn', 'xla')

  key_heads: Annotated[int, Field(Kind.FUNCTION, least=1)] = 1
  full_layers: Annotated[int, Field(Kind.FUNCTION, least=0, most=1_000)] = 0

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if it does not fit the heads and the layers."""
    heads, keys, full = self.num_heads, self.key_heads, self.full_layers
    if keys == heads or heads % keys:
      raise ValueError(
        f"attention='grouped': key_heads is {keys}: it must divide"
        f" num_heads={heads} and be smaller; 'attention' has as many"
      )
    if 2 * full >= model.depth:
      raise ValueError(
        f"attention='grouped': full_layers={full}, first and last, are all"
        f' layers of depth={model.depth}: choose fewer'
      )
    wrong = {
      'key_bias=False': not self.key_bias,
      f'scan=True and full_layers={full}, since its layers differ': (
        model.scan and full
      ),
      "initializers='mimetic'": self.initializers == initializers_lib.MIMETIC,
    }
    fields.refuse(wrong, "attention='grouped' does not go with {}")

  def at_layer(self, layer: int, depth: int) -> attention.Attention:
    """Returns the attention of a layer."""
    if self.full_layers <= layer < depth - self.full_layers:
      return self
    return as_class(self, attention.Attention)

  def project(self, x: jax.Array, context: Context) -> QKV:
    """Returns queries, and each head of keys and values repeated."""
    projection = _Projection(
      self.num_heads,
      self.key_heads,
      self.qkv_bias,
      self.initializers,
      self.dtype,
      name='qkv',
    )
    return projection(x, context.num_read)


class _Projection(nn.Module):
  """Queries have a kernel of their own; keys and values share one."""

  num_heads: int
  key_heads: int
  has_bias: bool
  initializers: str
  dtype: jax.typing.DTypeLike

  @nn.compact
  def __call__(self, x: jax.Array, num_queries: int | None) -> QKV:
    """Maps [B, T, D] to [B, R, H, K] and twice [B, T, H, K]."""
    init = initializers_lib.INITIALIZERS[self.initializers].kernel
    size = x.shape[-1] // self.num_heads
    dense = functools.partial(
      nn.DenseGeneral, use_bias=self.has_bias, dtype=self.dtype
    )
    queries = dense((self.num_heads, size), kernel_init=init, name='query')
    pairs = dense(
      (2, self.key_heads, size),
      kernel_init=initializers_lib.separate(init, 2),
      name='key_value',
    )
    query = keep(queries(x[:, :num_queries]))
    pair = keep(pairs(x))
    pair = jnp.repeat(pair, self.num_heads // self.key_heads, axis=3)
    return query, pair[:, :, 0], pair[:, :, 1]
