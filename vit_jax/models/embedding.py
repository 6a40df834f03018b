"""Patches of images in arrays, and tables of positions."""

from collections.abc import Sequence
import math

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import inputs
from vit_jax.models.patches import Array
from vit_jax.models.patches import cut


def patches(images: Array, patch_size: tuple[int, ...]) -> Array:
  """Returns all whole patches [B, N, p * q * C] of [B, H, W, C], row by row."""
  x = cut(images, patch_size)
  return x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1])


def unpatchify(
  patches: Array, grid: tuple[int, int], patch_size: tuple[int, int]
) -> Array:
  """Returns the images [B, H, W, C] of `patches`: its inverse."""
  (h, w), (p, q) = grid, patch_size
  x = patches.reshape(len(patches), h, w, p, q, -1)
  x = x.transpose(0, 1, 3, 2, 4, 5)
  return x.reshape(len(patches), h * p, w * q, -1)


def pair(size: Sequence[int]) -> tuple[int, int]:
  """Returns the size of a patch or a grid as (h, w); refuses a volume's."""
  if len(size) != 2:
    raise ValueError(
      f'{inputs.times(size)} is of volumes: they have learned positions or'
      ' none, and no masked patches'
    )
  return size[0], size[1]


# Kind of fixed positions -> whether columns come before rows, and whether the
# longest wavelength is 10,000 * 2 pi patches, or the next one would be.
SINCOS = {
  'sincos2d': (True, True),  # big_vision
  'sincos2d_mae': (True, False),
  'sincos2d_moco': (False, False),
}


def sincos2d(
  grid: tuple[int, int], hidden_size: int, kind: str = 'sincos2d'
) -> np.ndarray:
  """Fixed position embeddings (MoCo v3, arXiv:2104.02057, section 5.2).

  float32 [1, h * w, D]: sine and cosine of one coordinate, then of the other,
  at D / 4 wavelengths from 2 pi patches.

  Args:
    grid: Patches (h, w).
    hidden_size: D, a multiple of 4.
    kind: One of `SINCOS`: as in the code of big_vision, MAE or MoCo v3.
  """
  columns_first, has_end = SINCOS[kind]
  y, x = np.mgrid[: grid[0], : grid[1]]
  exponents = np.linspace(0, 1, hidden_size // 4, endpoint=has_end)
  omega = 10_000.0**-exponents
  x, y = x.ravel()[:, None] * omega, y.ravel()[:, None] * omega
  first, second = (x, y) if columns_first else (y, x)
  table = [np.sin(first), np.cos(first), np.sin(second), np.cos(second)]
  return np.concatenate(table, axis=1)[None].astype(np.float32)


def owners(grids: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Returns which image of a sequence each patch is of, and its number there.

  `grids` are int32 [B, S, 2], rows and columns of the patches of the images of
  each sequence, one behind the other; (0, 0) where there is none. `count` is N,
  patches of a sequence with its padding. The results are int32 [B, N], S for
  padding, and int32 [B, N].
  """
  ends = grids.prod(axis=-1).cumsum(axis=1)
  number = jnp.arange(count)
  owner = (number >= ends[..., None]).sum(axis=1)
  starts = jnp.pad(ends, ((0, 0), (1, 0)))
  return owner, number - jnp.take_along_axis(starts, owner, axis=1)


def places(
  grids: jax.Array, count: int, is_kept: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns rows and columns of patches, and the grids to which they belong.

  They are int32 [B, N], [B, N] and [B, N, 2]; padding is at (0, 0). `grids` and
  `count` are as of `owners`, or `grids` are [B, 2] where each sequence is one
  image. With `is_kept`, positions keep their aspect: they are resized to a
  square around the grid.
  """
  if grids.ndim == 2:
    grids = grids[:, None]
  owner, place = owners(grids, count)
  is_padding = owner == grids.shape[1]
  owner = jnp.where(is_padding, grids.shape[1] - 1, owner)
  place = jnp.where(is_padding, 0, place)
  patch_grids = jnp.take_along_axis(grids, owner[..., None], axis=1)
  patch_grids = jnp.maximum(patch_grids, 1)
  row, column = place // patch_grids[..., 1], place % patch_grids[..., 1]
  if is_kept:
    patch_grids = jnp.broadcast_to(
      patch_grids.max(axis=-1, keepdims=True), patch_grids.shape
    )
  return row, column, patch_grids


def positions_of_grids(
  table: jax.Array,
  grids: jax.Array,
  count: int,
  prefix: int = 0,
  *,
  grid: tuple[int, ...] | None = None,
  resize: str = 'linear',
  is_kept: bool = False,
) -> jax.Array:
  """Resizes learned positions to the grid of each image, [B, P + N, D].

  Linear with antialiasing, as NaFlex resizes them (SigLIP 2, arXiv:2502.14786,
  section 2.4, in the form of transformers); timm's NaFlexViT is 'bicubic'.
  Padding has the position of the first patch.

  Args:
    table: Positions of P tokens before the patches and of a grid's tokens,
      [P + h * w, D].
    grids: As of `places`.
    count: N, patches of an image with its padding.
    prefix: P.
    grid: (h, w) of the positions; None: a square.
    resize: One of `patches.RESIZES`.
    is_kept: As of `places`.
  """
  first, table = table[:prefix], table[prefix:]
  side = math.isqrt(len(table))
  h, w = grid or (side, side)
  row, column, sizes = places(grids, count, is_kept)
  patch_positions = jnp.einsum(
    'bny,bnx,yxd->bnd',
    _resized(row, sizes[..., 0], h, resize),
    _resized(column, sizes[..., 1], w, resize),
    table.reshape(h, w, -1),
    precision=jax.lax.Precision.HIGHEST,
  )
  first = jnp.broadcast_to(first, (len(grids), *first.shape))
  return jnp.concatenate([first, patch_positions], axis=1)


def factorized_positions(
  rows: jax.Array,
  columns: jax.Array,
  grids: jax.Array,
  count: int,
  is_kept: bool = False,
) -> jax.Array:
  """Returns sums of positions of rows [h, D] and of columns [w, D], [B, N, D].

  NaViT, arXiv:2307.06304, section 2.1; resized without antialiasing, in the
  form of timm. `places` has the other arguments.
  """
  row, column, sizes = places(grids, count, is_kept)
  axes = (row, sizes[..., 0], rows), (column, sizes[..., 1], columns)
  y, x = (
    jnp.einsum(
      'bno,od->bnd',
      _resized(at, new, len(table), 'plain'),
      table,
      precision=jax.lax.Precision.HIGHEST,
    )
    for at, new, table in axes
  )
  return y + x


def _resized(at: jax.Array, new: jax.Array, old: int, method: str) -> jax.Array:
  """Returns weights of the old places of an axis, float32 [B, N, old].

  New places are `at`, int [B, N], of `new` ones, [B, N]; `method` is one of
  `patches.RESIZES`.
  """
  step = old / new
  centers = (at + 0.5) * step - 0.5
  if method == 'corner':
    centers = at * (old - 1) / jnp.maximum(new - 1, 1)
  if method in ('plain', 'corner'):
    centers, step = jnp.clip(centers, 0, old - 1), jnp.ones_like(step)
  support = jnp.maximum(step, 1.0)[..., None]
  distance = jnp.abs(centers[..., None] - jnp.arange(old)) / support
  if method == 'bicubic':
    weights = _cubic(distance)
  else:
    weights = jnp.maximum(0.0, 1.0 - distance)
  return weights / weights.sum(axis=-1, keepdims=True)


def _cubic(x: jax.Array) -> jax.Array:
  """Keys' kernel of cubic convolution with a = -0.5, at distances x >= 0."""
  inner = (1.5 * x - 2.5) * x**2 + 1
  outer = -0.5 * (((x - 5) * x + 8) * x - 4)
  return jnp.where(x <= 1, inner, jnp.where(x < 2, outer, 0.0))
