"""Draws images and maps as tiles: small pictures of one size.

In comments: [H, W] the pixels of an image, [h, w] its grid of patches.
"""

from collections.abc import Sequence

import cv2
import numpy as np

from vit_jax.data import preprocess as preprocess_lib

# Perceptually uniform, and readable by the colour-blind.
VALUES = 'viridis'
# For maps over images: its first colour is blue, unlike dark pixels.
HEAT = 'plasma'
_DETAIL = 0.15  # of the image's contrast that is visible through a map
_TIMES_MEAN = 4.0
_MARK = (0, 235, 255)  # red, green, blue; neither map has it
_COVER = (146, 160, 184)  # unlike the greys of an image


def pixels(
  preprocess: preprocess_lib.Preprocess, inputs: np.ndarray
) -> np.ndarray:
  """Converts the input of a model to pixels.

  Args:
    preprocess: The preprocessing of the model.
    inputs: Preprocessed images, float32 [B, H, W, C].

  Returns:
    uint8 [B, H, W, 3], with transparent pixels on white.
  """
  mean, std = (
    np.asarray(x, np.float32) for x in (preprocess.mean, preprocess.std)
  )
  return to_rgb(inputs * std + mean)


def to_rgb(image: np.ndarray) -> np.ndarray:
  """Returns colours, uint8 [..., 3].

  Args:
    image: Float [..., C], 0 to 1; C is 1 (grey), 3 (RGB) or 4 (RGB and alpha,
      which is shown on white). Of another number the first is shown as grey.
  """
  if image.shape[-1] not in (3, 4):
    image = image[..., :1]
  if image.shape[-1] == 4:
    alpha = image[..., 3:]
    image = image[..., :3] * alpha + (1 - alpha)
  image = np.broadcast_to(image[..., :3], (*image.shape[:-1], 3))
  return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)


def tile_shape(
  image: tuple[int, int],
  grid: tuple[int, int],
  columns: int,
  *,
  width: int = 960,
  limits: tuple[int, int] = (40, 144),
) -> tuple[int, int]:
  """Returns (height, width) of tiles in which each patch has whole pixels.

  Args:
    image: (H, W).
    grid: (h, w).
    columns: Number of tiles in a row.
    width: Largest width of a row.
    limits: Minimum and maximum of a tile's longer side, if possible.
  """
  longest = np.clip(width // columns, *limits)
  scale = min(longest / image[0], longest / image[1])
  per_patch = (
    max(1, round(n * scale / m)) for n, m in zip(image, grid, strict=True)
  )
  high, wide = per_patch
  return grid[0] * high, grid[1] * wide


def fit(image: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
  """Resizes an image uint8 [H, W, 3]; enlarged pixels stay visible."""
  h, w = shape
  shrinks = h * w < image.shape[0] * image.shape[1]
  how = cv2.INTER_AREA if shrinks else cv2.INTER_NEAREST
  return cv2.resize(np.ascontiguousarray(image), (w, h), interpolation=how)


def fit_all(images: np.ndarray, shape: tuple[int, int]) -> list[np.ndarray]:
  """Resizes images uint8 [B, H, W, 3]."""
  return [fit(image, shape) for image in images]


def color(
  values: np.ndarray,
  shape: tuple[int, int],
  limits: tuple[float, float],
  name: str = VALUES,
) -> np.ndarray:
  """Returns a map in colours, with one colour for each patch.

  Args:
    values: [h, w].
    shape: (height, width) of the result.
    limits: Values of the first and the last colour.
    name: Name of the colour map in matplotlib.

  Returns:
    uint8 [height, width, 3].
  """
  import matplotlib

  scaled = _scaled(np.asarray(values, np.float64), *limits)
  colors = matplotlib.colormaps[name](scaled)[..., :3]
  return fit(np.round(colors * 255).astype(np.uint8), shape)


def top(values: np.ndarray) -> float:
  """Returns the value of a map's last colour; the first colour means 0.

  It is the largest value, or four times the mean if that is more, so that a
  nearly uniform map has nearly one colour, and not the brightest. The page uses
  the same rule (page/colours.js).

  Args:
    values: The map, without negative values.
  """
  return float(max(np.max(values), _TIMES_MEAN * np.mean(values)))


def overlay(image: np.ndarray, values: np.ndarray) -> np.ndarray:
  """Lays a map in colours over the contours of an image.

  The brightness of the whole image does not change the colours.

  Args:
    image: uint8 [height, width, 3].
    values: [h, w]; the colours go from 0 to `top`.

  Returns:
    uint8 [height, width, 3].
  """
  shape = image.shape[0], image.shape[1]
  heat = color(values, shape, (0.0, top(values)), HEAT)
  grey = image.mean(axis=-1, keepdims=True)
  found = heat + _DETAIL * (grey - grey.mean())
  return np.round(np.clip(found, 0, 255)).astype(np.uint8)


def cover(
  image: np.ndarray, hidden: np.ndarray, opacity: float = 1.0
) -> np.ndarray:
  """Returns an image [height, width, 3] whose hidden patches are covered.

  Args:
    image: uint8 [height, width, 3].
    hidden: bool [h, w], or a shape that divides the image's.
    opacity: 1: nothing is seen of these patches; 0: all.
  """
  shape = image.shape[0], image.shape[1]
  covered = fit(np.asarray(hidden).astype(np.uint8), shape)[..., None] * opacity
  found = image * (1 - covered) + np.asarray(_COVER) * covered
  return np.round(found).astype(np.uint8)


def mark(
  image: np.ndarray, patch: tuple[int, int], grid: tuple[int, int]
) -> np.ndarray:
  """Returns an image [height, width, 3] with a frame around a patch."""
  height, width = image.shape[:2]
  high, wide = height / grid[0], width / grid[1]
  top, left = round(patch[0] * high), round(patch[1] * wide)
  bottom, right = round((patch[0] + 1) * high), round((patch[1] + 1) * wide)
  marked = np.ascontiguousarray(image).copy()
  # Around the patch if there is room, so that a small one stays visible.
  start = max(left - 2, 0), max(top - 2, 0)
  stop = min(right + 1, width - 1), min(bottom + 1, height - 1)
  return cv2.rectangle(marked, start, stop, _MARK, 2)


def stretched(filters: np.ndarray) -> np.ndarray:
  """Returns filters as colours, each scaled from its least to largest weight.

  Args:
    filters: Float [F, p, q, C].

  Returns:
    uint8 [F, p, q, 3].
  """
  shown = filters[..., :3]  # alpha has no colour
  if shown.shape[-1] == 2:
    shown = shown[..., :1]
  axes = (1, 2, 3)
  low, high = shown.min(axes, keepdims=True), shown.max(axes, keepdims=True)
  return to_rgb(_scaled(shown, low, high))


def spread(count: int, most: int) -> list[int]:
  """Returns at most `most` of the positions 0 to count - 1, evenly spread."""
  if count <= most:
    return list(range(count))
  return np.round(np.linspace(0, count - 1, most)).astype(int).tolist()


def grouped(
  groups: Sequence[Sequence[np.ndarray]], most: int
) -> list[list[np.ndarray | None]]:
  """Puts groups of equally many tiles into rows of at most `most` tiles.

  A row has at least one group; the last row is filled up with None.
  """
  size = len(groups[0])
  per_row = max(1, min(most // size, len(groups)))
  rows: list[list[np.ndarray | None]] = []
  for start in range(0, len(groups), per_row):
    row = [tile for group in groups[start : start + per_row] for tile in group]
    rows.append([*row, *[None] * (per_row * size - len(row))])
  return rows


def _scaled(
  x: np.ndarray, low: float | np.ndarray, high: float | np.ndarray
) -> np.ndarray:
  """Maps low to 0 and high to 1; if they are equal, all values to 0."""
  span = np.where(np.subtract(high, low) > 0, np.subtract(high, low), 1)
  return np.clip((x - low) / span, 0, 1)
