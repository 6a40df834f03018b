"""Crops of images that differ in size, on the host.

Images that all have one size are cropped on the device (`device.py`).
"""

import math

import cv2
import numpy as np

from vit_jax.config import UserError
from vit_jax.data.host import decode
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host.geometry import Crop
from vit_jax.data.host.geometry import fallback
from vit_jax.data.host.geometry import middle
from vit_jax.data.host.geometry import Size
from vit_jax.data.host.geometry import TRIES

# A large JPEG is decoded at a fraction of its size while it stays this many
# times larger than what it is resized to: quicker, and as sharp.
_MARGIN = 2

# As many numbers are shrunk as floats: they stay in the cache of a core.
_MAX_FLOATS = 2**21


class _Image:
  """An image that is decoded once the size of its use is known.

  Attributes:
    size: (height, width) before it is reduced.
  """

  def __init__(
    self,
    image: bytes | np.ndarray,
    channels: int,
    where: str,
    levels: levels_lib.Levels,
  ):
    self._image, self._channels, self.where = image, channels, where
    self._levels = levels
    size = decode.jpeg_size(image) if isinstance(image, bytes) else None
    self.size: Size = size or self.pixels((0, 0)).shape[:2]

  def pixels(self, at_least: Size) -> np.ndarray:
    """Returns integers [h, w, C], not below `at_least` if it is not now."""
    if isinstance(self._image, bytes):
      self._image = decode.decode(
        self._image,
        self._channels,
        where=self.where,
        at_least=at_least,
        levels=self._levels,
      )
    return self._image


def transform(
  image: bytes | np.ndarray,
  channels: int,
  crop: Crop,
  rng: np.random.Generator,
  where: str = 'the image',
  levels: levels_lib.Levels = levels_lib.EIGHT_BITS,
) -> np.ndarray:
  """Decodes, cuts and resizes an image.

  Args:
    image: An encoded file, or pixels [h, w, channels], of the type of `levels`.
    channels: Of the result.
    crop: How it is cut.
    rng: Draws what is random, if anything is.
    where: Name of the image, for errors.
    levels: Have the bits that are kept.

  Returns:
    uint8 or uint16 [H, W, channels], of the crop's size.

  Raises:
    UserError: The image cannot be decoded, or is too long to be resized.
  """
  stored = _Image(image, channels, where, levels)
  if crop.kind == 'random_resized':
    result = _random_resized(stored, crop, rng)
  else:
    result = _resized_then_cut(stored, crop, rng)
  if crop.flip and rng.random() < 0.5:
    # NumPy would copy a mirrored view pixel by pixel.
    result = cv2.flip(result, 1).reshape(result.shape)
  return result


def _random_resized(
  image: _Image, crop: Crop, rng: np.random.Generator
) -> np.ndarray:
  size = image.size
  top, left, height, width = sample_box(size, crop, rng)
  # What the whole image becomes when the box becomes the crop.
  target = crop.size[0] * size[0] / height, crop.size[1] * size[1] / width
  pixels = image.pixels(_at_least(target, crop))
  y, x = pixels.shape[0] / size[0], pixels.shape[1] / size[1]
  rows = slice(round(top * y), round((top + height) * y))
  columns = slice(round(left * x), round((left + width) * x))
  return _resize(pixels[rows, columns], crop.size, crop)


def _resized_then_cut(
  image: _Image, crop: Crop, rng: np.random.Generator
) -> np.ndarray:
  target = crop.resized(image.size)
  if target[0] * target[1] > decode.MAX_PIXELS:
    raise UserError(
      f'{image.where} has {image.size[0]} x {image.size[1]} pixels: too long'
      f' to be resized to {target[0]} x {target[1]}'
    )
  pixels = image.pixels(_at_least(target, crop))
  pixels = _resize(pixels, target, crop)
  if crop.pad:
    pad = (crop.pad, crop.pad)
    pixels = np.pad(pixels, (pad, pad, (0, 0)))
  if crop.kind == 'center':
    height, width = pixels.shape[:2]
    top, left = middle((height, width), crop.size, crop.resize_like)
  else:
    top, left = (
      int(rng.integers(have - want + 1))
      for have, want in zip(pixels.shape[:2], crop.size, strict=True)
    )
  return pixels[top : top + crop.size[0], left : left + crop.size[1]]


def sample_box(
  size: Size, crop: Crop, rng: np.random.Generator
) -> tuple[int, int, int, int]:
  """Draws a crop of random area and ratio, as torchvision does.

  Args:
    size: (height, width) of the image.
    crop: Has the ranges of area and ratio.
    rng: Always advances by the same number of draws.

  Returns:
    (top, left, height, width), in whole pixels and within the image.
  """
  areas = rng.uniform(*crop.scale, TRIES) * size[0] * size[1]
  least, greatest = map(math.log, crop.ratio)
  ratios = np.exp(rng.uniform(least, greatest, TRIES))
  down, right = rng.random(2).tolist()
  for area, ratio in zip(areas.tolist(), ratios.tolist(), strict=True):
    height = round(math.sqrt(area / ratio))
    width = round(math.sqrt(area * ratio))
    if 0 < height <= size[0] and 0 < width <= size[1]:
      top = int(down * (size[0] - height + 1))
      return top, int(right * (size[1] - width + 1)), height, width
  height, width = fallback(size, crop.ratio)
  return *middle(size, (height, width)), height, width


def _at_least(target: tuple[float, float], crop: Crop) -> Size:
  """Returns the size below which a JPEG must not be decoded."""
  # What reduces it smooths it, and by another filter.
  if not crop.antialias or crop.resize_like:
    return 0, 0
  return math.ceil(_MARGIN * target[0]), math.ceil(_MARGIN * target[1])


def _resize(pixels: np.ndarray, size: Size, crop: Crop) -> np.ndarray:
  """Returns pixels [h, w, C] resized as `crop` says."""
  if crop.uses_pillow:
    return _resize_by_pillow(pixels, size, crop.interpolation)
  # Each side is shrunk before one grows.
  channels = pixels.shape[-1]
  smaller = min(size[0], pixels.shape[0]), min(size[1], pixels.shape[1])
  if crop.antialias and smaller != pixels.shape[:2]:
    pixels = _shrink(pixels, smaller)
  if pixels.shape[:2] != size:
    pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LINEAR)
  return pixels.reshape(*size, channels)  # OpenCV drops a single channel


def _resize_by_pillow(
  pixels: np.ndarray, size: Size, interpolation: str
) -> np.ndarray:
  """Returns [h, w, C] as Pillow resizes it, smoothed where it shrinks.

  So do timm, torchvision (of PIL images) and transformers; with 'bicubic', a is
  -0.5.
  """
  from PIL import Image  # most runs can do without

  height, width, channels = pixels.shape
  if (height, width) == size:
    return pixels
  resample = Image.Resampling[interpolation.upper()]
  if pixels.dtype == np.uint8:
    # CMYK stands for any four channels: Pillow weighs colours by an alpha.
    mode = {1: 'L', 3: 'RGB', 4: 'CMYK'}[channels]
    contiguous = np.ascontiguousarray(pixels)
    image = Image.frombuffer(
      mode, (width, height), contiguous, 'raw', mode, 0, 1
    )
    resized = np.asarray(image.resize(size[::-1], resample))
    return resized.reshape(*size, channels)
  planes = [
    np.asarray(Image.fromarray(plane).resize(size[::-1], resample))
    for plane in np.moveaxis(pixels, -1, 0).astype(np.float32)
  ]
  most = np.iinfo(pixels.dtype).max
  levels = np.clip(np.rint(np.stack(planes, axis=-1)), 0, most)
  return levels.astype(pixels.dtype)


def _shrink(pixels: np.ndarray, size: Size) -> np.ndarray:
  """Returns the means of the areas that become a pixel, [h, w, C].

  They are cv2.INTER_AREA's to the bit.
  """
  is_whole = pixels.shape[0] % size[0] == pixels.shape[1] % size[1] == 0
  if is_whole or pixels.size > _MAX_FLOATS or pixels.dtype != np.uint8:
    return cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
  # OpenCV takes fractions of bytes in float32, too, but takes longer for it.
  means = cv2.resize(
    pixels.astype(np.float32), size[::-1], interpolation=cv2.INTER_AREA
  )
  return cv2.convertScaleAbs(means)  # rounded
