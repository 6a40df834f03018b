"""Learned and fixed positions, which are added to tokens.

A part of positions maps tokens [1 or B, P + N, D] and a context to both: it
adds to the tokens, or says in the context what the layers do.

In comments: B images, P tokens before the patches, N patches, D hidden size.
"""

from typing import Annotated

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import embedding
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import inputs
from vit_jax.models.context import Context
from vit_jax.models.fields import Field
from vit_jax.models.fields import Kind

TOKENS = ('all', 'class', 'patches')
# Parameters of factorised positions.
ROWS, COLUMNS = 'rows_position_embedding', 'columns_position_embedding'
_ONE_SHAPE = 'a model is initialised with images of one shape'


class Learned(nn.Module):
  """One learned vector for each token (section 3.1 of the ViT paper).

  Attributes:
    tokens: Tokens with a position: 'all'; 'class', the class token and patches;
      or 'patches'.
    resize: How positions are resized to images of their own grids, one of
      `embedding.RESIZES`.
    keep_aspect: Whether they are resized to a square around a grid.
    grid: Grid (h, w) of the positions, if images have their own; None: a
      square.
    initializers: Name of the initial values.
  """

  tokens: Annotated[str, Field(Kind.FITTED, choices=TOKENS)] = 'all'
  resize: Annotated[
    str, Field(Kind.FUNCTION, is_visible=False, choices=embedding.RESIZES)
  ] = 'linear'
  keep_aspect: Annotated[bool, Field(Kind.FUNCTION, is_visible=False)] = False
  grid: Annotated[
    tuple[int, ...] | None, Field(Kind.FITTED, is_visible=False, least=1)
  ] = None
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """Adds positions to tokens [B, P + N, D].

    Raises:
      ValueError: The parameters are for another number of patches, or a model
        is initialised with images of different shapes.
    """
    before = {
      'all': context.prefix,
      'class': int(context.class_token),
      'patches': 0,
    }[self.tokens]
    table = self._table(x, context, before).astype(x.dtype)
    if before < context.prefix:
      gap = (0, 0), (0, context.prefix - before), (0, 0)
      first = jnp.pad(table[:, :before], gap)
      table = jnp.concatenate([first, table[:, before:]], axis=1)
    return x + table, context

  def _table(self, x: jax.Array, context: Context, before: int) -> jax.Array:
    """Returns the positions of some tokens and of patches, [1 or B, n, D]."""
    count, d = x.shape[1] - context.prefix, x.shape[2]
    if context.grids is None:
      inputs.check_tokens(
        self,
        context.image_size,
        context.patch_size,
        before + count,
        ('position_embedding',),
        axis=1,
        others=before,
      )
      init = initializers_lib.INITIALIZERS[self.initializers].position
      return self.param('position_embedding', init, (1, before + count, d))
    table: jax.Array | None = self.get_variable('params', 'position_embedding')
    if table is None:
      raise ValueError(_ONE_SHAPE)
    return embedding.positions_of_grids(
      table[0],
      context.grids,
      count,
      before,
      grid=self.grid,
      resize=self.resize,
      is_kept=self.keep_aspect,
    )


class Factorized(nn.Module):
  """Sums of learned positions of the row and of the column of a patch.

  NaViT, arXiv:2307.06304, section 2.1.

  Attributes:
    keep_aspect: Whether they are resized to a square around a grid.
    grid: Grid (h, w) of the positions; None: that of the first image.
    initializers: Name of the initial values.
  """

  keep_aspect: Annotated[bool, Field(Kind.FUNCTION, is_visible=False)] = False
  grid: Annotated[
    tuple[int, ...] | None, Field(Kind.FITTED, is_visible=False, least=1)
  ] = None
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """Adds positions to the patches of tokens [B, P + N, D].

    Raises:
      ValueError: A model is initialised with images of different shapes.
    """
    rows, columns = (self._axis(i, x.shape[2], context) for i in range(2))
    grids = context.grids
    if grids is None:
      grids = jnp.array([context.grid])
    count = x.shape[1] - context.prefix
    table = embedding.factorized_positions(
      rows, columns, grids, count, self.keep_aspect
    )
    before = (0, 0), (context.prefix, 0), (0, 0)
    return x + jnp.pad(table.astype(x.dtype), before), context

  def _axis(self, axis: int, d: int, context: Context) -> jax.Array:
    """Returns the positions of rows (0) or columns (1), [h or w, D]."""
    name = (ROWS, COLUMNS)[axis]
    stored: jax.Array | None = self.get_variable('params', name)
    if stored is None and context.grids is not None:
      raise ValueError(_ONE_SHAPE)
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

  kind: Annotated[str, Field(Kind.FITTED, choices=tuple(embedding.SINCOS))] = (
    'sincos2d'
  )

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """Adds positions to the patches of tokens [B, P + N, D].

    Raises:
      ValueError: Images have their own grids, or patches are of volumes.
    """
    refuse_grids(context)
    grid = embedding.pair(context.grid or ())
    table = embedding.sincos2d(grid, x.shape[2], self.kind)
    before = (0, 0), (context.prefix, 0), (0, 0)
    return x + jnp.pad(jnp.asarray(table, x.dtype), before), context


def refuse_grids(context: Context) -> None:
  """Raises a ValueError if images have their own grids."""
  if context.grids is not None:
    raise ValueError('images of any grid need learned positions alone')
