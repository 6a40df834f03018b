"""Masks of rectangular blocks of patches (BEiT, arXiv:2106.08254, section 2.3).

In comments: h x w patches of the grid, n patches to mask.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

_TRIES = 10  # failed tries in a row after which a mask is finished


class Masks(NamedTuple):
  """Drawn masks, and the blocks that they consist of.

  Attributes:
    mask: bool [B, h, w], True for masked patches.
    blocks: int32 [B, n, 5], each block's top, left, height, width and number of
      patches that it masked first, in order; zeros after the last block.
    num_blocks: int32 [B], number of blocks.
  """

  mask: jax.Array
  blocks: jax.Array
  num_blocks: jax.Array


class _State(NamedTuple):
  """What a loop over tries carries; `failed` counts failures in a row."""

  mask: jax.Array
  blocks: jax.Array
  num_blocks: jax.Array
  masked: jax.Array
  tries: jax.Array
  failed: jax.Array


@dataclasses.dataclass(frozen=True)
class BlockMasks:
  """Draws masks block by block, as the code of BEiT does.

  A block's area is uniform between `least` and what is left to mask, also where
  that is below `least`, and the logarithm of its height / width is uniform. A
  block counts if it is smaller than the grid in both directions, and masks at
  least one further patch and at most as many as are left. After ten tries in a
  row without such a block the mask is finished, so that some masks have fewer
  than `count` patches.

  Attributes:
    grid: Patches (h, w).
    count: Number of patches to mask, n; the largest, if images differ.
    least: Least area of a block, in patches.
    most: Largest number of patches that a block masks; None: no limit.
    aspect: Range of height / width.
  """

  grid: tuple[int, int]
  count: int
  least: int = 16
  most: int | None = None
  aspect: tuple[float, float] = (0.3, 1 / 0.3)

  def draw(self, keys: jax.Array, counts: jax.Array | None = None) -> Masks:
    """Returns a mask for each of the random keys [B].

    `counts` are the images' numbers of patches to mask, int32 [B], at most
    `count`; None: `count` in all.
    """
    if counts is None:
      counts = jnp.full(len(keys), self.count, jnp.int32)
    return jax.vmap(self._draw)(keys, counts)

  def _draw(self, key: jax.Array, count: jax.Array) -> Masks:
    blocks = jnp.zeros((self.count, 5), jnp.int32)
    state = jax.lax.while_loop(
      lambda s: (s.masked < count) & (s.failed < _TRIES),
      functools.partial(self._try, key, count),
      _State(jnp.zeros(self.grid, bool), blocks, *[jnp.int32(0)] * 4),
    )
    return Masks(state.mask, state.blocks, state.num_blocks)

  def _try(self, key: jax.Array, count: jax.Array, state: _State) -> _State:
    """Draws one block, and masks its patches if it fits."""
    h, w = self.grid
    left = count - state.masked
    if self.most is not None:
      left = jnp.minimum(left, self.most)
    draws = jax.random.uniform(jax.random.fold_in(key, state.tries), (4,))
    area = self.least + draws[0] * (left - self.least)
    low, high = map(math.log, self.aspect)
    ratio = jnp.exp(low + draws[1] * (high - low))
    height = jnp.round(jnp.sqrt(area * ratio)).astype(jnp.int32)
    width = jnp.round(jnp.sqrt(area / ratio)).astype(jnp.int32)
    top = (draws[2] * (h - height + 1)).astype(jnp.int32)
    side = (draws[3] * (w - width + 1)).astype(jnp.int32)
    rows, columns = jnp.arange(h)[:, None], jnp.arange(w)
    block = (rows >= top) & (rows < top + height)
    block &= (columns >= side) & (columns < side + width)
    new = (block & ~state.mask).sum(dtype=jnp.int32)
    fits = (height < h) & (width < w) & (new > 0) & (new <= left)
    row = jnp.stack([top, side, height, width, new])
    blocks = jnp.where(
      fits, state.blocks.at[state.num_blocks].set(row), state.blocks
    )
    return _State(
      mask=state.mask | (block & fits),
      blocks=blocks,
      num_blocks=state.num_blocks + fits,
      masked=state.masked + jnp.where(fits, new, 0),
      tries=state.tries + 1,
      failed=jnp.where(fits, 0, state.failed + 1),
    )
