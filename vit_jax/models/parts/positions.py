"""Further positions that are added to tokens: factorised and fixed ones.

A part of positions maps tokens [1 or B, P + N, D] and a context to both: it
adds to the tokens, or says in the context what the layers do.

In comments: B images, P tokens before the patches, N patches, D hidden size.
"""

from typing import Annotated
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import registry
from vit_jax.models.context import Context
from vit_jax.models.packing import ONE_SHAPE

# Parameters of factorised positions.
ROWS, COLUMNS = 'rows_position_embedding', 'columns_position_embedding'


class Factorized(nn.Module):
  """Sums of learned positions of the row and of the column of a patch.

  NaViT, arXiv:2307.06304, section 2.1.

  Attributes:
    keep_aspect: Whether they are resized to a square around a grid.
    grid: Grid (h, w) of the positions; None: that of the first image.
    initializers: Name of the initial values.
  """

  keep_aspect: Annotated[bool, fields.UNSEEN] = False
  grid: Annotated[tuple[int, ...] | None, fields.GRID] = None
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """Adds positions to the patches of tokens [B, P + N, D]."""
    rows, columns = (self._axis(i, x.shape[2], context) for i in range(2))
    grids = context.grids
    if grids is None:
      grids = jnp.array([context.grid])
    count = x.shape[1] - context.prefix
    table = embedding.factorized_positions(
      rows, columns, grids, count, self.keep_aspect
    )
    return x + _padded(context, table.astype(x.dtype)), context

  def _axis(self, axis: int, d: int, context: Context) -> jax.Array:
    """Returns the positions of rows (0) or columns (1), [h or w, D]."""
    name = (ROWS, COLUMNS)[axis]
    stored: jax.Array | None = self.get_variable('params', name)
    if stored is None and context.grids is not None:
      raise ValueError(ONE_SHAPE)
    if stored is None:
      size = embedding.pair(self.grid or context.grid or ())
      shape: tuple[int, ...] = (1, size[axis], d)
    else:
      shape = stored.shape
    init = initializers_lib.INITIALIZERS[self.initializers].position
    return self.param(name, init, shape)[0]


class SinCos(nn.Module):
  """Fixed positions of patches (MoCo v3, arXiv:2104.02057, section 5.2).

  Attributes:
    kind: One of `embedding.SINCOS`: as in the code of big_vision, MAE or MoCo
      v3.
  """

  kind: Annotated[str, fields.fitted(choices=tuple(embedding.SINCOS))] = (
    'sincos2d'
  )

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if it does not fit the model's width."""
    if model.hidden_size % 4:
      raise ValueError(
        "positions='sincos2d' needs a hidden_size that is a multiple of 4, not"
        f' {model.hidden_size}'
      )

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """Adds positions to the patches of tokens [B, P + N, D]."""
    refuse_grids(context)
    grid = embedding.pair(context.grid or ())
    table = embedding.sincos2d(grid, x.shape[2], self.kind)
    return x + _padded(context, jnp.asarray(table, x.dtype)), context


def _padded(context: Context, table: jax.Array) -> jax.Array:
  """Returns positions of patches, with zeros for the tokens before them."""
  return jnp.pad(table, ((0, 0), (context.prefix, 0), (0, 0)))


def in_attention(model: Any) -> str:
  """Returns the names of positions whose class has `in_attention`, or ''."""
  kinds = map(type, model.positions)
  return ' + '.join(
    registry.class_name('positions', kind)
    for kind in kinds
    if getattr(kind, 'in_attention', False)
  )


def refuse_grids(context: Context) -> None:
  """Raises a ValueError if images have their own grids."""
  if context.grids is not None:
    raise ValueError('images of any grid need learned positions alone')
