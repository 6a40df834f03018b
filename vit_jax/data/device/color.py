"""Colours of one image, as Pillow changes them, for batches under vmap.

Each operation takes an image, uint8 [H, W, 1 or 3] (grey or RGB, no alpha), and
an amount, a scalar that may be traced. An operation that maps each value alone
returns a lookup table of 256 values; the caller applies it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

_VALUES = np.arange(256, dtype=np.int32)[:, None]  # [256, 1]
# Added before truncation. Pillow rounds a product to float32 and then adds; XLA
# may fuse both, and then a whole number can come out just below itself.
_ROUNDING = 2.0**-15
# Pixels that `gaussian_blur` pads on each side, enough for its widest box.
_BLUR_PAD = 2
MAX_BLUR = 2.4


def _auto_contrast(image: jax.Array, amount: jax.Array) -> jax.Array:
  """Returns the table that stretches each channel's values to 0..255."""
  del amount
  low = image.min(axis=(0, 1)).astype(jnp.int32)
  width = image.max(axis=(0, 1)) - low
  stretched = (_VALUES - low) * 255 // jnp.maximum(width, 1)
  return jnp.where(width > 0, stretched, _VALUES)


def _equalize(image: jax.Array, amount: jax.Array) -> jax.Array:
  """Returns the table that equalises each channel's histogram."""
  del amount
  values = image.reshape(-1, image.shape[-1])
  count = jax.vmap(lambda x: jnp.zeros(256, jnp.int32).at[x].add(1), 1, 1)
  histogram = count(values)  # [256, C]
  cumulative = histogram.cumsum(axis=0)
  last = jnp.where(_VALUES == image.max(axis=(0, 1)), histogram, 0).sum(axis=0)
  step = (cumulative[-1] - last) // 255
  table = (step // 2 + cumulative - histogram) // jnp.maximum(step, 1)
  return jnp.where(step > 0, table, _VALUES)


def _sharpness(image: jax.Array, amount: jax.Array) -> jax.Array:
  """Scales the distance to a smoothed image, except at the outermost pixels."""
  height, width = image.shape[:2]
  padded = jnp.pad(image.astype(jnp.int32), ((1, 1), (1, 1), (0, 0)))
  total = sum(
    padded[y : y + height, x : x + width] for y in range(3) for x in range(3)
  )
  smooth = (2 * (total + 4 * image.astype(jnp.int32)) + 13) // 26
  y, x = np.ogrid[:height, :width]
  inner = (0 < y) & (y < height - 1) & (0 < x) & (x < width - 1)
  smooth = jnp.where(inner[..., None], smooth, image)
  return _blend(smooth, image, amount).astype(jnp.uint8)


def hue(image: jax.Array, amount: jax.Array) -> jax.Array:
  """Rotates the hue by `amount` (-0.5 to 0.5) of the colour circle.

  This follows torchvision on Pillow images, whose hues have 8 bits.
  """
  if image.shape[-1] == 1:
    return image
  hues, saturation, value = _to_hsv(image)
  hues = (hues + (amount * 255).astype(jnp.int32)) & 255
  return _from_hsv(hues, saturation, value)


def gaussian_blur(image: jax.Array, amount: jax.Array) -> jax.Array:
  """Blurs uint8 [H, W, C] with an approximate Gaussian.

  Its standard deviation is `amount` pixels, below `MAX_BLUR`. Like Pillow, this
  applies three box filters with soft edges along rows, then along columns, and
  rounds after each.
  """
  variance = amount * amount / 3
  whole_radius = jnp.floor((jnp.sqrt(12 * variance + 1) - 1) / 2)
  soft = (2 * whole_radius + 1) * (
    whole_radius * (whole_radius + 1) - 3 * variance
  )
  radius = whole_radius + soft / (6 * (variance - (whole_radius + 1) ** 2))
  # Integers with 24 fractional bits, as in Pillow: floats would round values
  # halfway between two levels differently.
  weight = (2**24 / (2 * radius + 1)).astype(jnp.uint32)
  width = 2 * whole_radius.astype(jnp.uint32) + 1
  outer = (2**24 - width * weight) // 2
  offsets = np.abs(np.arange(-_BLUR_PAD, _BLUR_PAD + 1))
  weights = jnp.where(offsets <= whole_radius, weight, outer)
  weights = jnp.where(offsets <= whole_radius + 1, weights, 0)
  blurred = image.astype(jnp.uint32)
  for axis in (1, 1, 1, 0, 0, 0):
    pad = [(_BLUR_PAD * (i == axis),) * 2 for i in range(3)]
    padded = jnp.pad(blurred, pad, mode='edge')
    total = jnp.zeros_like(blurred)
    for i in range(2 * _BLUR_PAD + 1):
      end = i + blurred.shape[axis]
      total += weights[i] * jax.lax.slice_in_dim(padded, i, end, axis=axis)
    blurred = (total + 2**23) >> 24
  return blurred.astype(jnp.uint8)


def _blend(
  start: jax.Array, end: jax.Array | np.ndarray, amount: jax.Array
) -> jax.Array:
  """Returns int32 start + amount * (end - start), clipped to 0..255."""
  start = start.astype(jnp.float32)
  mixed = start + amount * (end.astype(jnp.float32) - start)
  return jnp.clip(mixed + _ROUNDING, 0, 255).astype(jnp.int32)


def _luminance(image: jax.Array) -> jax.Array:
  """Returns int32 [H, W, 1]."""
  image = image.astype(jnp.int32)
  if image.shape[-1] == 1:
    return image
  red, green, blue = jnp.split(image, 3, axis=-1)
  return (19595 * red + 38470 * green + 7471 * blue + 2**15) >> 16


def _to_hsv(image: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns int32 [H, W] each: hue, saturation, value, from 0 to 255."""
  red, green, blue = jnp.moveaxis(image.astype(jnp.int32), -1, 0)
  value = jnp.maximum(red, jnp.maximum(green, blue))
  low = jnp.minimum(red, jnp.minimum(green, blue))
  middle = red + green + blue - value - low
  spread = value - low
  saturation = jnp.floor(255 * spread / jnp.maximum(value, 1))
  # Many hues lie on whole numbers up to rounding, so this repeats Pillow's
  # steps exactly: others would truncate some hues differently.
  share = (value - middle) / jnp.maximum(spread, 1)
  is_red, is_green = value == red, value == green
  sixths = jnp.select(
    [is_red & (low == blue), is_red, is_green & (low == blue), is_green],
    [1 - share, share - 1, 1 + share, 3 - share],
    jnp.where(low == red, 3 + share, 5 - share),
  )
  turn = sixths / 6
  turn += (sixths - 4 * turn - 2 * turn) / 6  # XLA divides by multiplying: fix
  turn = jnp.where(turn < 0, 1 + turn, turn)
  hues = jnp.floor(255 * turn)
  hues -= 256 * turn - hues < turn  # where the product was rounded up
  hues = jnp.where(spread > 0, hues, 0).astype(jnp.int32)
  return hues, saturation.astype(jnp.int32), value


def _from_hsv(
  hues: jax.Array, saturation: jax.Array, value: jax.Array
) -> jax.Array:
  """Returns uint8 [H, W, 3]."""
  sixth = 255
  # channel = v - v s max(0, min(k, 4 - k, 1)), k = (n + 6 hue) mod 6, where n
  # is 5, 3, 1 for red, green, blue. `place` is k in units of `sixth`.
  place = jnp.array([5, 3, 1]) * sixth + 6 * hues[..., None]
  place = jnp.where(place >= 6 * sixth, place - 6 * sixth, place)
  share = jnp.clip(jnp.minimum(place, 4 * sixth - place), 0, sixth)
  factor = (255 * sixth - saturation[..., None] * share).astype(jnp.float32)
  channels = value[..., None] * factor / (255 * sixth)
  return jnp.floor(channels + 0.5).astype(jnp.uint8)


def _contrast(image: jax.Array, amount: jax.Array) -> jax.Array:
  """Returns the table that scales the distance to the mean grey."""
  grey = _luminance(image)
  mean = (2 * grey.sum() + grey.size) // (2 * grey.size)
  return _blend(mean, _VALUES, amount)


def _posterize(image: jax.Array, amount: jax.Array) -> jax.Array:
  """Returns the table that keeps the upper `amount` (0 to 8) bits."""
  del image
  dropped = 8 - jnp.clip(amount.astype(jnp.int32), 0, 8)
  return (jnp.asarray(_VALUES) >> dropped) << dropped


_Change = Callable[[jax.Array, jax.Array], jax.Array]

# (image, amount) -> int32 [256, C or 1]; the caller clips to 0..255.
TABLES: dict[str, _Change] = {
  'auto_contrast': _auto_contrast,
  'equalize': _equalize,
  'invert': lambda image, amount: jnp.asarray(255 - _VALUES),
  'posterize': _posterize,
  # Inverts values from `amount` up.
  'solarize': lambda image, amount: jnp.where(
    _VALUES < amount, _VALUES, 255 - _VALUES
  ),
  # Adds `amount` to values below 128.
  'solarize_add': lambda image, amount: jnp.where(
    _VALUES < 128, _VALUES + amount.astype(jnp.int32), _VALUES
  ),
  # Multiplies by `amount`.
  'brightness': lambda image, amount: _blend(
    jnp.zeros_like(_VALUES), _VALUES, amount
  ),
  'contrast': _contrast,
}
# (image, amount) -> image.
FILTERS: dict[str, _Change] = {
  # Scales the distance to grey: 0 makes an image grey, 1 leaves it.
  'color': lambda image, amount: _blend(
    _luminance(image), image, amount
  ).astype(jnp.uint8),
  'grayscale': lambda image, amount: jnp.broadcast_to(
    _luminance(image).astype(jnp.uint8), image.shape
  ),
  'sharpness': _sharpness,
  'hue': hue,
}
