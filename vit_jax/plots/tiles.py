"""Images and maps as tiles: small pictures of one size.

In comments: [H, W] the pixels of an image, [h, w] its grid of patches.
"""

import cv2
import numpy as np

from vit_jax.data import preprocess as preprocess_lib
from vit_jax.plots import sheet
from vit_jax.plots import style


def pixels(
  preprocess: preprocess_lib.Preprocess, inputs: np.ndarray
) -> np.ndarray:
  """Converts the input of a model to pixels, uint8 [B, H, W, 3].

  Transparent pixels are on white. `inputs` are preprocessed images, float32
  [B, H, W, C].
  """
  mean, std = (
    np.asarray(x, np.float32) for x in (preprocess.mean, preprocess.std)
  )
  return sheet.to_rgb(inputs * std + mean)


def tile_shape(
  image: tuple[int, int],
  grid: tuple[int, int],
  columns: int,
  *,
  width: int = 1920,
  limits: tuple[int, int] = (80, 288),
) -> tuple[int, int]:
  """Returns (height, width) of tiles in which each patch has whole pixels.

  An image is (H, W), and its grid (h, w). A row has `columns` tiles, and is at
  most `width` wide. `limits` are the minimum and maximum of a tile's longer
  side, if possible.
  """
  longest = np.clip(width // columns, *limits)
  scale = min(longest / image[0], longest / image[1])
  per_patch = (
    max(1, round(n * scale / m)) for n, m in zip(image, grid, strict=True)
  )
  high, wide = per_patch
  return grid[0] * high, grid[1] * wide


def fit_all(images: np.ndarray, shape: tuple[int, int]) -> list[np.ndarray]:
  """Resizes images uint8 [B, H, W, 3]."""
  return [sheet.fit(image, shape) for image in images]


def color(
  values: np.ndarray,
  shape: tuple[int, int],
  limits: tuple[float, float],
  name: str = style.HEAT,
) -> np.ndarray:
  """Returns a map [h, w] with one colour for each patch, uint8 [*shape, 3].

  `limits` are the values of the first and the last colour, and `name` is the
  colour map's; see `style`.
  """
  low, high = limits
  span = high - low if high > low else 1
  scaled = np.clip((np.asarray(values, np.float64) - low) / span, 0, 1)
  table = style.colour_table(name)
  return sheet.fit(
    table[np.round(scaled * (len(table) - 1)).astype(int)], shape
  )


def cover(
  image: np.ndarray, hidden: np.ndarray, opacity: float = 1.0
) -> np.ndarray:
  """Returns an image [height, width, 3] whose hidden patches are covered.

  `hidden` is bool [h, w], or of another shape that divides the image's. With
  `opacity` 1 nothing is seen of these patches, with 0 all.
  """
  shape = image.shape[0], image.shape[1]
  covered = (
    sheet.fit(np.asarray(hidden).astype(np.uint8), shape)[..., None] * opacity
  )
  blended = (
    image * (1 - covered) + np.asarray(style.rgb(style.HIDDEN)) * covered
  )
  return np.round(blended).astype(np.uint8)


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
  start = max(left - 3, 0), max(top - 3, 0)
  stop = min(right + 2, width - 1), min(bottom + 2, height - 1)
  return cv2.rectangle(marked, start, stop, style.rgb(style.MARK), 4)


def spread(count: int, most: int) -> list[int]:
  """Returns at most `most` of the positions 0 to count - 1, evenly spread."""
  if count <= most:
    return list(range(count))
  return np.round(np.linspace(0, count - 1, most)).astype(int).tolist()
