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
from vit_jax.models import refusals
from vit_jax.models.attention import QKV
from vit_jax.models.block import keep
from vit_jax.models.context import Context
from vit_jax.models.parts import as_class
from vit_jax.models.parts import separate


class Grouped(attention.Attention):
  """Attention with fewer heads of keys and values than of queries.

  Grouped-query attention (arXiv:2305.13245).

  Attributes, beside the ones in `Attention`:
    key_heads: Heads of keys and of values, which divide `num_heads`.
    full_layers: Number of first layers, and of last ones, whose keys have as
      many heads as queries all the same (Sapiens2, arXiv:2604.21681).
  """

  supported: ClassVar[tuple[str, ...]] = ('cudnn', 'xla')

  key_heads: Annotated[int, fields.function(least=1)] = 1
  full_layers: Annotated[int, fields.function(least=0, most=1_000)] = 0

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if it does not fit the heads and the layers."""
    heads, keys, full = self.num_heads, self.key_heads, self.full_layers
    wrong = {
      f'key_heads is {keys}: it must divide num_heads={heads} and be smaller;'
      " 'attention' has as many": keys == heads or heads % keys,
      f'full_layers={full}, first and last, are all layers of'
      f' depth={model.depth}: choose fewer': 2 * full >= model.depth,
    }
    refusals.refuse(wrong, "attention='grouped': {}")
    is_mimetic = self.initializers == initializers_lib.MIMETIC
    wrong = {
      'key_bias=False': not self.key_bias,
      f'scan=True and full_layers={full}, since its layers differ': (
        model.scan and full
      ),
      "initializers='mimetic'": is_mimetic,
    }
    refusals.refuse(wrong, "attention='grouped' does not go with {}")

  def at_layer(self, layer: int, depth: int) -> attention.Attention:
    """Returns the attention of a layer."""
    if self.full_layers <= layer < depth - self.full_layers:
      return self
    return as_class(self, attention.Attention)

  def project(self, x: jax.Array, context: Context) -> QKV:
    """Returns queries, and each head of keys and values repeated."""
    return _Projection(name='qkv')(self, x, context.num_read)


class _Projection(nn.Module):
  """Queries have a kernel of their own; keys and values share one."""

  @nn.compact
  def __call__(
    self, grouped: Grouped, x: jax.Array, num_queries: int | None
  ) -> QKV:
    """Maps [B, T, D] to [B, R, H, K] and twice [B, T, H, K]."""
    init = initializers_lib.INITIALIZERS[grouped.initializers].kernel
    heads, key_heads = grouped.num_heads, grouped.key_heads
    size = x.shape[-1] // heads
    dense = functools.partial(
      nn.DenseGeneral, use_bias=grouped.qkv_bias, dtype=grouped.dtype
    )
    queries = dense((heads, size), kernel_init=init, name='query')
    pairs = dense(
      (2, key_heads, size),
      kernel_init=separate(init, 2),
      name='key_value',
    )
    query = keep(queries(x[:, :num_queries]))
    pair = jnp.repeat(keep(pairs(x)), heads // key_heads, axis=3)
    return query, pair[:, :, 0], pair[:, :, 1]
