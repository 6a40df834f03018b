"""Crops images of different sizes on the host.

If all images have one size, the device crops them (`vit_jax.data.device`).
"""

from collections.abc import Sequence
import math

import cv2
import numpy as np

from vit_jax.config import UserError
from vit_jax.data.host import decode
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host.geometry import Crop
from vit_jax.data.host.geometry import fallback
from vit_jax.data.host.geometry import middle
from vit_jax.data.host.geometry import padding
from vit_jax.data.host.geometry import Size
from vit_jax.data.host.geometry import TRIES

Box = tuple[int, int, int, int]  # (top, left, height, width), in pixels

# A large JPEG may be decoded at a fraction of its size if it stays this many
# times larger than the resized image: faster, and as sharp.
_MARGIN = 2

# Images with at most this many values, which fit a core's cache as floats, are
# shrunk in float32.
_MAX_FLOATS = 2**21


class StoredImage:
  """An image to crop, decoded once for all of its crops.

  The size of a JPEG is in its header, so decoding waits until the crops are
  known, and uses a fraction of the size if no crop needs more.
  """

  def __init__(
    self,
    image: bytes | np.ndarray,
    channels: int,
    origin: str = 'the image',
    levels: levels_lib.Levels = levels_lib.EIGHT_BITS,
  ):
    """Reads the size of a file, or of pixels; decodes what is no JPEG."""
    self._image, self._channels = image, channels
    self._origin, self._levels = origin, levels
    self._decoded: dict[Size, tuple[Size, np.ndarray]] = {}
    size = decode.jpeg_size(image) if isinstance(image, bytes) else None
    self.size: Size = size or self._pixels((0, 0)).shape[:2]

  def crops(
    self, crops: Sequence[tuple[Crop, np.random.Generator]]
  ) -> list[np.ndarray]:
    """Returns crops, uint8 or uint16 [H, W, channels], each of its own size."""
    needed, boxes = zip(
      *(self._plan(*crop_and_rng) for crop_and_rng in crops), strict=True
    )
    heights, widths = zip(*needed, strict=True)
    pixels = self._pixels((max(heights), max(widths)))
    return [
      self._cut(pixels, *crop_and_rng, box)
      for crop_and_rng, box in zip(crops, boxes, strict=True)
    ]

  def _plan(
    self, crop: Crop, rng: np.random.Generator
  ) -> tuple[Size, Box | None]:
    """Returns the least size to decode a JPEG at, and the box to cut.

    The box is cut first and then resized. None: the whole image is resized,
    and then cropped.
    """
    size, box = self.size, None
    target: tuple[float, float] = crop.resized(size)
    if crop.kind in ('random_resized', 'scaled'):
      sample = zoomed_box if crop.kind == 'scaled' else sample_box
      box = sample(size, crop, rng)
      # Size of the whole image at the scale where the box has the crop's size.
      _, _, height, width = box
      target = crop.size[0] * size[0] / height, crop.size[1] * size[1] / width
    elif math.prod(target) > decode.MAX_PIXELS:
      raise UserError(
        f'{self._origin} has {size[0]} x {size[1]} pixels: too long'
        f' to be resized to {target[0]} x {target[1]}'
      )
    # The decoder smooths when it reduces, so it must not reduce images that are
    # to be resized without smoothing, or with another library's filter.
    if not crop.antialias or crop.resize_like:
      return size, box
    height, width = (
      min(math.ceil(_MARGIN * x), side)
      for x, side in zip(target, size, strict=True)
    )
    return (height, width), box

  def _pixels(self, at_least: Size) -> np.ndarray:
    """Returns pixels [h, w, C], at least as large as `at_least` if possible.

    The decoder takes the smallest fraction that is large enough. So a result is
    reused only for sizes between the requested one and its own: then a crop has
    the same bits as if it were the only one.
    """
    if isinstance(self._image, np.ndarray):
      return self._image
    for size, (least, pixels) in self._decoded.items():
      bounds = zip(least, at_least, size, strict=True)
      if all(low <= x <= high for low, x, high in bounds):
        return pixels
    pixels = decode.decode(
      self._image,
      self._channels,
      origin=self._origin,
      at_least=at_least,
      levels=self._levels,
    )
    height, width = pixels.shape[:2]
    self._decoded[height, width] = at_least, pixels
    return pixels

  def _cut(
    self,
    pixels: np.ndarray,
    crop: Crop,
    rng: np.random.Generator,
    box: Box | None,
  ) -> np.ndarray:
    if box is None:
      result = _resize(pixels, crop.resized(self.size), crop)
      height, width = result.shape[:2]
      result = _padded(result, padding((height, width), crop), crop)
      height, width = result.shape[:2]
      if crop.kind == 'center':
        top, left = middle((height, width), crop.size, crop.resize_like)
      else:
        top = int(rng.integers(height - crop.size[0] + 1))
        left = int(rng.integers(width - crop.size[1] + 1))
      result = result[top : top + crop.size[0], left : left + crop.size[1]]
    else:
      y, x = pixels.shape[0] / self.size[0], pixels.shape[1] / self.size[1]
      top, left, height, width = box
      rows = slice(round(top * y), round((top + height) * y))
      columns = slice(round(left * x), round((left + width) * x))
      # The part of the crop that the box fills, without what is outside.
      inner_height = min(height, self.size[0] - top)
      inner_width = min(width, self.size[1] - left)
      filled = (
        max(round(crop.size[0] * inner_height / height), 1),
        max(round(crop.size[1] * inner_width / width), 1),
      )
      result = _resize(pixels[rows, columns], filled, crop)
      down, right = np.subtract(crop.size, result.shape[:2])
      result = _padded(result, ((0, down), (0, right)), crop)
    if crop.flip and rng.random() < 0.5:
      # Faster than a mirrored view, which NumPy copies pixel by pixel.
      result = cv2.flip(result, 1).reshape(result.shape)
    return result


def transform(
  image: bytes | np.ndarray,
  channels: int,
  crop: Crop,
  rng: np.random.Generator,
  origin: str = 'the image',
  levels: levels_lib.Levels = levels_lib.EIGHT_BITS,
) -> np.ndarray:
  """Returns one crop of an image; see `StoredImage` for the arguments."""
  (result,) = StoredImage(image, channels, origin, levels).crops([(crop, rng)])
  return result


def decode_whole(
  image: bytes | np.ndarray,
  size: tuple[int, ...],
  channels: int,
  origin: str,
  levels: levels_lib.Levels,
) -> np.ndarray:
  """Returns a whole image, which must have the size of all images."""
  if isinstance(image, np.ndarray):
    pixels = decode.to_channels(levels.keep(image, origin), channels)
  else:
    pixels = decode.decode(image, channels, origin=origin, levels=levels)
  check_size(pixels.shape[:-1], size, origin)
  return pixels


def _padded(
  pixels: np.ndarray, sides: tuple[Size, Size], crop: Crop
) -> np.ndarray:
  """Returns pixels [h, w, C] with (before, after) more on each axis."""
  if not np.any(sides):
    return pixels
  (top, bottom), (left, right) = sides
  height, width, channels = pixels.shape
  shape = (top + height + bottom, left + width + right, channels)
  result = np.empty(shape, pixels.dtype)
  result[:] = crop.fill
  result[top : top + height, left : left + width] = pixels
  return result


def check_size(
  actual_size: tuple[int, ...], size: tuple[int, ...], origin: str
) -> None:
  """Checks the size of an image, which must be that of all images."""
  if actual_size != size:
    raise UserError(
      f'{origin} has (height, width) {actual_size}, not the {size} of'
      ' config.data.source_size: set the size that all images have, or where'
      ' they differ --config.data.source_size=None'
    )


def sample_box(size: Size, crop: Crop, rng: np.random.Generator) -> Box:
  """Draws a crop of random area and ratio, as torchvision does."""
  # The random numbers always advance by the same number of draws.
  areas = rng.uniform(*crop.scale, TRIES) * size[0] * size[1]
  least, greatest = map(math.log, crop.ratio)
  ratios = np.exp(rng.uniform(least, greatest, TRIES))
  down, right = rng.random(2).tolist()
  # A loop, since NumPy takes five times as long for so few numbers.
  for area, ratio in zip(areas.tolist(), ratios.tolist(), strict=True):
    height = round(math.sqrt(area / ratio))
    width = round(math.sqrt(area * ratio))
    if 0 < height <= size[0] and 0 < width <= size[1]:
      top = int(down * (size[0] - height + 1))
      return top, int(right * (size[1] - width + 1)), height, width
  height, width = fallback(size, crop.ratio)
  return *middle(size, (height, width)), height, width


def zoomed_box(size: Size, crop: Crop, rng: np.random.Generator) -> Box:
  """Draws a crop of the image at a random size, as mmsegmentation does.

  Of an image that is smaller than the crop, the box reaches beyond the end.
  """
  factor = rng.uniform(*crop.zoom)
  if isinstance(crop.resize, int):
    factor *= crop.resize / min(size)
  down, right = rng.random(2).tolist()
  height, width = (max(round(n / factor), 1) for n in crop.size)
  top = int(down * (max(size[0] - height, 0) + 1))
  return top, int(right * (max(size[1] - width, 0) + 1)), height, width


def _resize(pixels: np.ndarray, size: Size, crop: Crop) -> np.ndarray:
  """Returns pixels [h, w, C] resized as `crop` says."""
  if crop.interpolation == 'nearest':
    rows, columns = (
      ((np.arange(n) + 0.5) * (have / n)).astype(np.int64)
      for n, have in zip(size, pixels.shape[:2], strict=True)
    )
    return pixels[rows[:, None], columns]
  if crop.uses_pillow:
    return _resize_by_pillow(pixels, size, crop.interpolation)
  # Shrink first, then enlarge: a crop may need both, on different sides.
  channels = pixels.shape[-1]
  smaller = min(size[0], pixels.shape[0]), min(size[1], pixels.shape[1])
  if crop.antialias and smaller != pixels.shape[:2]:
    # Unless the sides are whole multiples, OpenCV computes means of uint8 in
    # float32, too, but slower than this, which has the same bits.
    as_floats = (
      pixels.dtype == np.uint8
      and pixels.size <= _MAX_FLOATS
      and any(n % m for n, m in zip(pixels.shape, smaller, strict=False))
    )
    pixels = cv2.resize(
      pixels.astype(np.float32) if as_floats else pixels,
      smaller[::-1],
      interpolation=cv2.INTER_AREA,
    )
    if as_floats:
      pixels = cv2.convertScaleAbs(pixels)  # rounded
  if pixels.shape[:2] != size:
    pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LINEAR)
  return pixels.reshape(*size, channels)  # OpenCV drops a single channel


def _resize_by_pillow(
  pixels: np.ndarray, size: Size, interpolation: str
) -> np.ndarray:
  """Returns pixels resized by Pillow, which smooths when it shrinks.

  timm, torchvision (for PIL images) and transformers do the same. Pillow's
  bicubic kernel has a = -0.5.
  """
  from PIL import Image  # rarely needed

  height, width, channels = pixels.shape
  if (height, width) == size:
    return pixels
  resample = Image.Resampling[interpolation.upper()]
  if pixels.dtype == np.uint8:
    # CMYK for any four channels, since Pillow weights colours of RGBA by alpha.
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
