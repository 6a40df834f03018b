"""Rotary position embeddings (RoFormer, arXiv:2104.09864) of patches.

Each pair of channels of a query and a key is rotated by an angle that is
proportional to the patch's row or column, so that their product depends on the
distance between two patches.

In comments: N patches, T tokens, H heads, K channels of a head.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Annotated
from typing import Any
from typing import ClassVar

import flax
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models.context import Context
from vit_jax.models.parts import positions

# Cosines and sines, [..., T, K] each, or [..., T, H, K].
Tables = tuple[jax.Array, jax.Array]


@flax.struct.dataclass
class Rotation:
  """Rotates queries and keys, as layers are given it.

  Attributes:
    cos: Cosines, float32 [T, K] or [B, T, K].
    sin: Sines.
    halves: As of `Kind`.
  """

  cos: jax.Array
  sin: jax.Array
  halves: bool = flax.struct.field(pytree_node=False)

  def tables(self, layer: jax.Array | None) -> Tables:
    """Returns cosines and sines of a layer."""
    return self.cos, self.sin

  def __call__(self, x: jax.Array, layer: jax.Array | None) -> jax.Array:
    """Rotates queries or keys of a layer, [B, T', H, K]."""
    return rotate(x, self.tables(layer), self.halves)


@flax.struct.dataclass
class MixedRotation:
  """Rotates by learned frequencies, which each layer has.

  Attributes:
    coordinates: Columns and rows of the tokens, [1 or B, T, 2].
    frequencies: float32 [2, L, H, K / 2].
  """

  coordinates: jax.Array
  frequencies: jax.Array
  halves: ClassVar[bool] = False

  def tables(self, layer: jax.Array | None) -> Tables:
    """Returns cosines and sines of a layer, [1 or B, T, H, K]."""
    return mixed(self.coordinates, self.frequencies[:, layer])

  def __call__(self, x: jax.Array, layer: jax.Array | None) -> jax.Array:
    """Rotates queries or keys of a layer, [B, T', H, K]."""
    return rotate(x, self.tables(layer), self.halves)


@dataclasses.dataclass(frozen=True)
class Kind:
  """How one family of models rotates.

  Attributes:
    centred: Whether coordinates are the patches' centres, from -1 to 1 in each
      image, and angles are 2 pi times them; else they are indices.
    halves: Whether channel k makes a pair with channel k + K / 2; else
      neighbouring channels are pairs.
    columns_first: Whether the first half of the angles is that of columns.
    is_learned: Whether each head of each layer learns how fast each of its
      angles grows by row and by column.
  """

  centred: bool = False
  halves: bool = False
  columns_first: bool = False
  is_learned: bool = False


KINDS: Mapping[str, Kind] = {
  # DINOv3 (arXiv:2508.10104, section 3.2, and its code).
  'dinov3': Kind(centred=True, halves=True),
  # EVA-02 (arXiv:2303.11331, its code), and timm's ViTs.
  'eva02': Kind(),
  # RoPE-ViT, axial (arXiv:2403.13298, its code).
  'rope_vit': Kind(columns_first=True),
  # RoPE-ViT, mixed (its section 3.3, and its code).
  'rope_vit_mixed': Kind(columns_first=True, is_learned=True),
}


def is_scaled(kind: str) -> bool:
  """Whether a reference grid has an effect on a kind, or on 'none'."""
  return kind in KINDS and not (KINDS[kind].centred or KINDS[kind].is_learned)


def frequencies(
  key: jax.Array, shape: tuple[int, int, int, int], base: float
) -> jax.Array:
  """Returns initial frequencies of `rope_vit_mixed`, float32 [2, L, H, K / 2].

  Each head of each layer gets two perpendicular directions at random; along
  both, the frequencies are as in `rope_vit`. The first axis of `shape` is by
  column and by row.
  """
  _, layers, heads, angles_ = shape
  count = angles_ // 2
  sizes = base ** (-jnp.arange(count) / count)
  first = jax.random.uniform(key, (layers, heads, 1), maxval=2 * jnp.pi)
  directions = jnp.concatenate([first, first + jnp.pi / 2], axis=-1)
  vectors = jnp.stack([jnp.cos(directions), jnp.sin(directions)])
  return (vectors[..., None] * sizes).reshape(shape)


def coordinates(
  grid: tuple[int, int], prefix: int, kept_patches: jax.Array | None
) -> jax.Array:
  """Returns columns and rows of all tokens, float32 [1 or B, T, 2].

  Tokens before the patches have 0, which does not rotate them. The grid is
  (h, w); `token_tables` has the other arguments.
  """
  y, x = (c.ravel() for c in np.mgrid[: grid[0], : grid[1]])
  patches = jnp.asarray(np.stack([x, y], axis=-1), jnp.float32)
  patches = patches[None] if kept_patches is None else patches[kept_patches]
  return jnp.pad(patches, ((0, 0), (prefix, 0), (0, 0)))


def mixed(of_tokens: jax.Array, of_layer: jax.Array) -> Tables:
  """Returns the rotation by learned frequencies, [1 or B, T, H, K] each.

  Coordinates of tokens are [1 or B, T, 2], frequencies of a layer
  [2, H, K / 2].
  """
  turned = jnp.einsum(
    'btc,chk->bthk', of_tokens, of_layer, precision=jax.lax.Precision.HIGHEST
  ).repeat(2, axis=-1)
  return jnp.cos(turned), jnp.sin(turned)


def angles(
  kind: str,
  grid: tuple[int, int],
  channels: int,
  base: float,
  reference: Sequence[int] | None = None,
  offset: float = 0.0,
) -> np.ndarray:
  """Returns the angles of patches, row by row, float64 [N, K / 2].

  Args:
    kind: A name in `KINDS`.
    grid: Patches (h, w).
    channels: K, a multiple of 4.
    base: The lowest frequency is base^(4 / K - 1); the highest is 1.
    reference: Grid (h, w) to which indices are scaled; None: they are not
      scaled. Centred coordinates do not need it.
    offset: Added to indices before they are scaled.
  """
  layout, count = KINDS[kind], channels // 4
  frequencies = base ** (-np.arange(count) / count)
  axes = []
  for n, to in zip(grid, reference or grid, strict=True):
    index = np.arange(n)
    centred = 2 * np.pi * (2 * (index + 0.5) / n - 1)
    axes.append(centred if layout.centred else (index + offset) * (to / n))
  coordinates = [x.ravel() for x in np.meshgrid(*axes, indexing='ij')]
  if layout.columns_first:
    coordinates.reverse()
  parts = [x[:, None] * frequencies for x in coordinates]
  return np.concatenate(parts, axis=1)


def table(
  kind: str, grid: tuple[int, int], channels: int, base: float, *options: Any
) -> tuple[np.ndarray, np.ndarray]:
  """Returns cosines and sines of `angles`, float32 [N, K] each."""
  patch_angles = angles(kind, grid, channels, base, *options)
  halves = KINDS[kind].halves
  spread = (
    np.tile(patch_angles, 2) if halves else patch_angles.repeat(2, axis=1)
  )
  return np.cos(spread).astype(np.float32), np.sin(spread).astype(np.float32)


def token_tables(
  cos: np.ndarray, sin: np.ndarray, prefix: int, kept_patches: jax.Array | None
) -> Tables:
  """Returns the rotation of all tokens; those before the patches stay.

  Cosines and sines are float32 [P + N, K], or [B, P + n, K] of `kept_patches`.

  Args:
    cos: Cosines by patch, [N, K].
    sin: Sines by patch, [N, K].
    prefix: P, the number of tokens before the patches.
    kept_patches: int32 [B, n], the patches that are among the tokens, in their
      order; None: all.
  """

  def with_prefix(x: np.ndarray, neutral: float) -> jax.Array:
    patches = jnp.asarray(x)
    if kept_patches is not None:
      patches = patches[kept_patches]
    shape = (*patches.shape[:-2], prefix, x.shape[1])
    return jnp.concatenate([jnp.full(shape, neutral), patches], axis=-2)

  return with_prefix(cos, 1.0), with_prefix(sin, 0.0)


def rotate(x: jax.Array, tables: Tables, halves: bool) -> jax.Array:
  """Rotates queries or keys; in float32, and the result is of their type.

  x is [B, T', H, K], the first T' of all T tokens. Cosines and sines are [T, K]
  or [B, T, K]; [1 or B, T, H, K] if heads differ. `halves` is as of `Kind`.
  """
  by_head = [p if p.ndim == x.ndim else p[..., None, :] for p in tables]
  cos, sin = (part[..., : x.shape[1], :, :] for part in by_head)
  wide = x.astype(jnp.float32)
  if halves:
    first, second = jnp.split(wide, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
  else:
    pairs = wide.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    turned = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1)
    turned = turned.reshape(x.shape)
  return (wide * cos + turned * sin).astype(x.dtype)


class Rope(nn.Module):
  """Rotary positions of patches.

  Attributes:
    num_heads: H, of the layers.
    kind: A name in `KINDS`.
    base: Base of the frequencies; DINOv3's is 100, EVA-02's 10,000.
    grid: Grid (h, w) of patches to which their indices are scaled; None: they
      are not scaled.
    offset: Added to the indices before that (Perception Encoder,
      arXiv:2504.13181, its code).
  """

  in_attention: ClassVar[bool] = True

  num_heads: Annotated[int, fields.HEADS]
  kind: Annotated[str, fields.unseen(choices=tuple(KINDS))] = 'dinov3'
  base: Annotated[float, fields.unseen(interval='(0, inf)')] = 100.0
  grid: Annotated[tuple[int, ...] | None, fields.unseen(least=1)] = None
  offset: Annotated[float, fields.unseen(interval='[0, inf)')] = 0.0

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if it does not fit the heads, or has no effect."""
    channels = model.hidden_size // self.num_heads
    if channels % 4:
      raise ValueError(
        "positions='rope' needs heads with a multiple of 4 channels, not"
        f' {channels}: change num_heads or hidden_size'
      )
    if self.grid is not None and len(self.grid) != 2:
      raise ValueError(
        f'positions: rope.grid is {self.grid}: write (rows, columns) of patches'
      )
    if not is_scaled(self.kind) and (self.grid is not None or self.offset):
      raise ValueError(
        f'positions: grid and offset have no effect with rope({self.kind!r}),'
        ' which scales no indices: leave them out'
      )

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """Says in the context how layers rotate; tokens stay as they are."""
    positions.refuse_grids(context)
    grid, prefix = embedding.pair(context.grid or ()), context.prefix
    channels = x.shape[-1] // self.num_heads
    if KINDS[self.kind].is_learned:
      shape = (2, context.depth, self.num_heads, channels // 2)
      rates = self.param('rotary_frequencies', frequencies, shape, self.base)
      places = coordinates(grid, prefix, context.kept_patches)
      return x, context.replace(rotation=MixedRotation(places, rates))
    cos, sin = table(
      self.kind, grid, channels, self.base, self.grid, self.offset
    )
    tables = token_tables(cos, sin, prefix, context.kept_patches)
    rotation = Rotation(*tables, KINDS[self.kind].halves)
    return x, context.replace(rotation=rotation)
