"""Positions of a trunk's tokens: added to them, or given to all layers.

In comments: B images, P tokens before the patches, N patches, T = P + N tokens,
D hidden size.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax

from vit_jax.models import embedding
from vit_jax.models import rotary
from vit_jax.models import spec as spec_lib

if TYPE_CHECKING:
  from vit_jax.models import vit


def learned(trunk: vit.Trunk, count: int, grids: jax.Array | None) -> jax.Array:
  """Returns the learned positions of a trunk, in its compact method.

  Args:
    trunk: A trunk with position_embedding='learned'.
    count: N, patches of an image, with padding.
    grids: int32 [B, 2], rows and columns of each image's patches, if they are
      images of different shapes; None: the grid is that of the positions.

  Returns:
    [1, P + N, D], or [B, P + N, D] if there are `grids`. P counts the tokens
    that have a position.

  Raises:
    ValueError: A model is initialised with images of different shapes.
  """
  prefix = trunk.positioned_prefix
  if grids is None:
    shape = (1, prefix + count, trunk.hidden_size)
    return trunk.param('position_embedding', trunk.starts.position, shape)
  table: jax.Array | None = trunk.get_variable('params', 'position_embedding')
  if table is None:
    raise ValueError('a model is initialised with images of one shape')
  return embedding.positions_of_grids(table[0], grids, count, prefix)


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
    inside = embedding.inside_grids(grids, cells[0], trunk.prefix_length)
    return spec_lib.Context(attended=inside)
  if not is_relative and not is_rotary:
    return spec_lib.Context()
  grid = embedding.pair(cells)
  found = spec_lib.Context()
  if rotary.is_learned(trunk.rotary):
    found = dataclasses.replace(
      found,
      frequencies=_frequencies(trunk),
      coordinates=rotary.coordinates(grid, trunk.prefix_length, kept),
    )
  elif is_rotary:
    cos, sin = trunk.rotation(grid)
    rotation = rotary.of_tokens(cos, sin, trunk.prefix_length, kept)
    found = dataclasses.replace(found, rotation=rotation)
  if not is_relative:
    return found
  if kept is not None or trunk.prefix != ('class_token',):
    raise ValueError(
      f'relative_positions={trunk.relative_positions!r} are those of a class'
      ' token and all patches: no other tokens, and none left out'
    )
  if trunk.relative_positions == 'layers':
    return dataclasses.replace(found, grid=grid)
  bias = embedding.relative_bias(trunk, grid, trunk.num_heads)
  return dataclasses.replace(found, grid=grid, bias=bias)


def _frequencies(trunk: vit.Trunk) -> jax.Array:
  """Returns the learned frequencies of all layers, [2, L, H, K / 2]."""
  half = trunk.hidden_size // trunk.num_heads // 2
  shape = (2, trunk.depth, trunk.num_heads, half)
  return trunk.param(
    'rotary_frequencies', rotary.frequencies, shape, trunk.rotary_base
  )
