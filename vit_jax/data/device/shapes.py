"""Geometric operations on one image, as in Pillow, for batches under vmap.

A map is float32 [6], (a, b, c, d, e, f): the result's pixel at (x, y) is the
image's at (a x + b y + c, d x + e y + f), as in `Image.transform`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.host.geometry import Size

_FIXED = 2**16  # Pillow finds nearest pixels with 16 fractional bits
# Added before truncation: float32 may put a value just below a whole number.
_ROUNDING = 2.0**-14


def rotate(amount: jax.Array, size: Size) -> jax.Array:
  """Rotates counter-clockwise, by degrees, about the middle."""
  angle = -jnp.deg2rad(amount)
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  y, x = size[0] / 2, size[1] / 2
  return jnp.stack(
    [cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y]
  )


def _map(
  b: jax.Array | float = 0.0,
  c: jax.Array | float = 0.0,
  d: jax.Array | float = 0.0,
  f: jax.Array | float = 0.0,
) -> jax.Array:
  return jnp.stack([jnp.asarray(x, jnp.float32) for x in (1, b, c, d, 1, f)])


def warp(
  image: jax.Array, matrix: jax.Array, interpolation: str, fill: int
) -> jax.Array:
  """Maps uint8 [H, W, C] by a map float32 [6]; places outside get `fill`."""
  if interpolation == 'nearest':
    values, is_inside = _nearest(image, matrix)
  else:
    values, is_inside = _bilinear(image, matrix)
  return jnp.where(is_inside[..., None], values, jnp.uint8(fill))


def _nearest(
  image: jax.Array, matrix: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns pixels [H, W, C], and bool [H, W]: which come from the image."""
  height, width = image.shape[:2]
  a, b, c, d, e, f = matrix
  # Start at the middle of the first pixel.
  c, f = c + (a + b) / 2, f + (d + e) / 2
  a, b, c, d, e, f = (
    jnp.floor(x * _FIXED + 0.5).astype(jnp.int32) for x in (a, b, c, d, e, f)
  )
  y, x = np.ogrid[:height, :width]
  columns = (a * x + b * y + c) // _FIXED
  rows = (d * x + e * y + f) // _FIXED
  return _pixels(image, rows, columns), _within(image, rows, columns)


def _bilinear(
  image: jax.Array, matrix: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the same as `_nearest`, interpolated between pixels."""
  height, width = image.shape[:2]
  a, b, c, d, e, f = matrix
  y, x = np.ogrid[:height, :width]
  x, y = x + 0.5, y + 0.5
  columns, rows = a * x + b * y + c, d * x + e * y + f
  is_inside = _within(image, rows, columns)
  left, top = jnp.floor(columns - 0.5), jnp.floor(rows - 0.5)
  right = (columns - 0.5 - left)[..., None]
  below = (rows - 0.5 - top)[..., None]
  left, top = left.astype(jnp.int32), top.astype(jnp.int32)

  def interpolate(row: jax.Array) -> jax.Array:
    start = _pixels(image, row, left).astype(jnp.float32)
    end = _pixels(image, row, left + 1).astype(jnp.float32)
    return start + (end - start) * right

  upper, lower = interpolate(top), interpolate(top + 1)
  values = upper + (lower - upper) * below + _ROUNDING
  return values.astype(jnp.uint8), is_inside


def _within(image: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
  height, width = image.shape[:2]
  is_inside = (rows >= 0) & (rows < height)
  return is_inside & (columns >= 0) & (columns < width)


def _pixels(image: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
  """Returns pixels [H, W, C]; outside the image, pixels of its edge."""
  height, width, channels = image.shape
  rows = jnp.clip(rows, 0, height - 1)
  index = rows * width + jnp.clip(columns, 0, width - 1)
  return image.reshape(-1, channels).at[index].get(mode='promise_in_bounds')


def cutout(
  image: jax.Array, amount: jax.Array, spot: jax.Array, fill: int
) -> jax.Array:
  """Fills a square of uint8 [H, W, C], which may extend beyond the image.

  Half of its side is `amount` whole pixels; its centre is `spot`, float32 [2]:
  (y, x) in [0, 1).
  """
  y, x = np.ogrid[: image.shape[0], : image.shape[1]]
  row, column = jnp.floor(spot * np.array(image.shape[:2]))
  is_cut = (y >= row - amount) & (y < row + amount)
  is_cut &= (x >= column - amount) & (x < column + amount)
  return jnp.where(is_cut[..., None], jnp.uint8(fill), image)


# (amount, size) -> map.
MAPS: dict[str, Callable[[jax.Array, Size], jax.Array]] = {
  'rotate': rotate,
  # Shifts each row to the left, by `amount` more than the row above it.
  'shear_x': lambda amount, size: _map(b=amount),
  # Shifts each column up, by `amount` more than the column left of it.
  'shear_y': lambda amount, size: _map(d=amount),
  # Shift to the left, and up, by pixels.
  'translate_x': lambda amount, size: _map(c=amount),
  'translate_y': lambda amount, size: _map(f=amount),
}
