"""Rotary position embeddings (RoFormer, arXiv:2104.09864) of patches.

Each pair of channels of a query and a key is rotated by an angle that is
proportional to the patch's row or column, so that their product depends on the
distance between two patches.

In comments: N patches, T tokens, H heads, K channels of a head.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

Rotation = tuple[jax.Array, jax.Array]  # cosines and sines, [..., T, K] each


@dataclasses.dataclass(frozen=True)
class Kind:
  """How one family of models rotates.

  Attributes:
    centred: Whether coordinates are those of the patches' centres, from -1 to 1
      in each image, and angles are 2 pi times them; else they are indices.
    halves: Whether channel k makes a pair with channel k + K / 2; else
      neighbouring channels are pairs.
    columns_first: Whether the first half of the angles is that of columns.
  """

  centred: bool = False
  halves: bool = False
  columns_first: bool = False


KINDS: Mapping[str, Kind] = {
  # DINOv3 (arXiv:2508.10104, section 3.2, and its code).
  'dinov3': Kind(centred=True, halves=True),
  # EVA-02 (arXiv:2303.11331, its code), and timm's ViTs.
  'eva02': Kind(),
  # RoPE-ViT, axial (arXiv:2403.13298, its code).
  'rope_vit': Kind(columns_first=True),
}


def is_scaled(kind: str) -> bool:
  """Whether a reference grid has an effect on a kind, or on 'none'."""
  return kind in KINDS and not KINDS[kind].centred


def angles(
  kind: str,
  grid: tuple[int, int],
  channels: int,
  base: float,
  reference: Sequence[int] | None = None,
) -> np.ndarray:
  """Returns the angles of patches, row by row, float64 [N, K / 2].

  Args:
    kind: A name in `KINDS`.
    grid: Patches (h, w).
    channels: K, a multiple of 4.
    base: The lowest frequency is base^(4 / K - 1); the highest is 1.
    reference: Grid (h, w) to which indices are scaled; None: they are not
      scaled. Centred coordinates do not need it.
  """
  how, count = KINDS[kind], channels // 4
  frequencies = base ** (-np.arange(count) / count)
  axes = []
  for n, to in zip(grid, reference or grid, strict=True):
    index = np.arange(n)
    centred = 2 * np.pi * (2 * (index + 0.5) / n - 1)
    axes.append(centred if how.centred else index * (to / n))
  coordinates = [x.ravel() for x in np.meshgrid(*axes, indexing='ij')]
  if how.columns_first:
    coordinates.reverse()
  parts = [x[:, None] * frequencies for x in coordinates]
  return np.concatenate(parts, axis=1)


def table(
  kind: str,
  grid: tuple[int, int],
  channels: int,
  base: float,
  reference: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns cosines and sines by patch and channel, float32 [N, K] each.

  Args:
    kind: As the other arguments, that of `angles`.
    grid: Patches (h, w).
    channels: K.
    base: The base of the frequencies.
    reference: Grid to which indices are scaled.
  """
  found = angles(kind, grid, channels, base, reference)
  spread = np.tile(found, 2) if KINDS[kind].halves else found.repeat(2, axis=1)
  return np.cos(spread).astype(np.float32), np.sin(spread).astype(np.float32)


def of_tokens(
  cos: np.ndarray, sin: np.ndarray, prefix: int, kept: jax.Array | None
) -> Rotation:
  """Returns the rotation of all tokens; those before the patches stay.

  Args:
    cos: Cosines by patch, [N, K].
    sin: Sines by patch, [N, K].
    prefix: P, the number of tokens before the patches.
    kept: int32 [B, n], the patches that are among the tokens, in their order;
      None: all.

  Returns:
    Cosines and sines, float32 [P + N, K], or [B, P + n, K].
  """

  def whole(x: np.ndarray, neutral: float) -> jax.Array:
    patches = jnp.asarray(x)
    if kept is not None:
      patches = patches[kept]
    shape = (*patches.shape[:-2], prefix, x.shape[1])
    return jnp.concatenate([jnp.full(shape, neutral), patches], axis=-2)

  return whole(cos, 1.0), whole(sin, 0.0)


def rotate(x: jax.Array, rotation: Rotation, kind: str) -> jax.Array:
  """Rotates queries or keys; in float32, and the result is of their type.

  Args:
    x: [B, T', H, K], the first T' of all T tokens.
    rotation: Cosines and sines, [T, K] or [B, T, K].
    kind: A name in `KINDS`.
  """
  cos, sin = (part[..., : x.shape[1], None, :] for part in rotation)
  wide = x.astype(jnp.float32)
  if KINDS[kind].halves:
    first, second = jnp.split(wide, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
  else:
    pairs = wide.reshape(*x.shape[:-1], -1, 2)
    turned = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1)
    turned = turned.reshape(x.shape)
  return (wide * cos + turned * sin).astype(x.dtype)
