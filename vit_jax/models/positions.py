"""Positions of a trunk's tokens: added to them, or given to all layers.

In comments: B images, P tokens before the patches, N patches, T = P + N tokens,
D hidden size.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models import relative
from vit_jax.models import rotary
from vit_jax.models import spec as spec_lib

if TYPE_CHECKING:
  from vit_jax.models import vit


# Parameters of factorised positions.
ROWS, COLUMNS = 'rows_position_embedding', 'columns_position_embedding'


def learned(
  trunk: vit.Trunk,
  cells: tuple[int, ...],
  grids: jax.Array | None,
) -> jax.Array:
  """Returns the learned positions of a trunk, in its compact method.

  Args:
    trunk: A trunk with learned positions, whole or factorised.
    cells: Grid of patches; with `grids`, (N,).
    grids: int32 [B, 2], rows and columns of each image's patches, or [B, S, 2]
      for several images in a sequence, if they are images of different shapes;
      None: the grid is that of the positions.

  Returns:
    [1, P + N, D], or [B, P + N, D] if there are `grids`. P counts the tokens
    that have a position.

  Raises:
    ValueError: A model is initialised with images of different shapes.
  """
  prefix, count = trunk.positioned_prefix, math.prod(cells)
  is_kept, d = trunk.position_aspect, trunk.hidden_size
  if trunk.position_embedding == 'factorized':
    rows, columns = _factors(trunk, cells if grids is None else None)
    own = jnp.array([cells]) if grids is None else grids
    return embedding.factorized_positions(rows, columns, own, count, is_kept)
  if grids is None:
    shape = (1, prefix + count, d)
    return trunk.param('position_embedding', trunk.starts.position, shape)
  table: jax.Array | None = trunk.get_variable('params', 'position_embedding')
  if table is None:
    raise ValueError(_ONE_SHAPE)
  return embedding.positions_of_grids(
    table[0],
    grids,
    count,
    prefix,
    grid=trunk.position_grid,
    resize=trunk.position_resize,
    is_kept=is_kept,
  )


def _factors(
  trunk: vit.Trunk, cells: tuple[int, ...] | None
) -> list[jax.Array]:
  """Returns positions of rows and of columns, [h, D] and [w, D]."""
  size = trunk.position_grid or cells or (1, 1)
  found = []
  for name, n in zip((ROWS, COLUMNS), embedding.pair(size), strict=True):
    stored: jax.Array | None = trunk.get_variable('params', name)
    if stored is None and cells is None:
      raise ValueError(_ONE_SHAPE)
    shape = (1, n, trunk.hidden_size) if stored is None else stored.shape
    found.append(trunk.param(name, trunk.starts.position, shape)[0])
  return found


_ONE_SHAPE = 'a model is initialised with images of one shape'


def context(
  trunk: vit.Trunk,
  cells: tuple[int, ...],
  kept: jax.Array | None,
  grids: jax.Array | None,
) -> spec_lib.Context:
  """Returns what all layers are given, in a trunk's compact method.

  Args:
    trunk: The trunk.
    cells: Grid of patches; with `grids`, (N,).
    kept: int32 [B, K], the patches that the layers see; None: all.
    grids: As of `learned`.

  Raises:
    ValueError: The trunk's positions are not possible for these patches.
  """
  is_relative = trunk.relative_positions != 'none'
  is_rotary = trunk.rotary != 'none'
  if grids is not None:
    if kept is not None:
      raise ValueError('no patches are left out of images of any grid')
    fixed = trunk.position_embedding in embedding.SINCOS
    if is_relative or is_rotary or fixed:
      raise ValueError('images of any grid need learned positions alone')
    if grids.ndim == 3:
      return _packed(trunk, grids, cells[0])
    inside = embedding.inside_grids(grids, cells[0], trunk.prefix_length)
    return spec_lib.Context(attended=inside)
  found = spec_lib.Context()
  if is_rotary:
    found = _turned(trunk, embedding.pair(cells), kept)
  if is_relative:
    found = _related(trunk, embedding.pair(cells), kept, found)
  return found


def _turned(
  trunk: vit.Trunk, grid: tuple[int, int], kept: jax.Array | None
) -> spec_lib.Context:
  """Returns the context of rotary positions."""
  prefix = trunk.prefix_length
  if rotary.is_learned(trunk.rotary):
    return spec_lib.Context(
      frequencies=_frequencies(trunk),
      coordinates=rotary.coordinates(grid, prefix, kept),
    )
  cos, sin = trunk.rotation(grid)
  return spec_lib.Context(rotation=rotary.of_tokens(cos, sin, prefix, kept))


def _related(
  trunk: vit.Trunk,
  grid: tuple[int, int],
  kept: jax.Array | None,
  found: spec_lib.Context,
) -> spec_lib.Context:
  """Returns the context with relative positions, too.

  Raises:
    ValueError: They are not possible for these tokens.
  """
  kind, prefix = trunk.relative_positions, trunk.prefix_length
  if kept is not None:
    raise ValueError(
      f'relative_positions={kind!r} need all patches: none left out'
    )
  if kind in relative.TABLES and trunk.prefix != ('class_token',):
    raise ValueError(
      f'relative_positions={kind!r} are those of a class token and patches: no'
      ' other tokens'
    )
  if kind.startswith('layers'):
    return dataclasses.replace(found, grid=grid, prefix=prefix)
  bias = relative.bias(
    *(trunk, kind, grid, trunk.num_heads),
    prefix=prefix,
    hidden=trunk.relative_mlp_dim,
  )
  return dataclasses.replace(found, bias=bias)


def _packed(trunk: vit.Trunk, grids: jax.Array, count: int) -> spec_lib.Context:
  """Returns the context of sequences of several images.

  Raises:
    ValueError: The trunk mixes the tokens of a sequence in other ways.
  """
  wrong = {
    f'{", ".join(trunk.prefix)}, of which a sequence has one': trunk.prefix,
    f"pool={trunk.pool!r}: take 'gap' or 'map'": trunk.pool
    not in ('gap', 'map'),
    'experts, which take the tokens of a sequence together': trunk.experts,
    'causal=True': trunk.causal,
  }
  fields.refuse(wrong, 'several images in a sequence do not go with {}')
  owner, _ = embedding.owners(grids, count)
  number = grids.shape[1]
  return spec_lib.Context(
    attended=owner[:, None] == jnp.arange(number)[:, None], segments=owner
  )


def _frequencies(trunk: vit.Trunk) -> jax.Array:
  """Returns the learned frequencies of all layers, [2, L, H, K / 2]."""
  half = trunk.hidden_size // trunk.num_heads // 2
  shape = (2, trunk.depth, trunk.num_heads, half)
  return trunk.param(
    'rotary_frequencies', rotary.frequencies, shape, trunk.rotary_base
  )
