"""Crops and sizes of images, the same on the host and on the device."""

from collections.abc import Mapping
import dataclasses
import itertools
import math
from typing import Any
from typing import cast

import ml_collections

from vit_jax import config as config_lib

CROPS = ('random_resized', 'random', 'pad', 'scaled', 'center')
INTERPOLATIONS = ('bilinear', 'bicubic')
LIKE = ('timm', 'transformers')
TRIES = 10  # random crops to try before the middle of the image is taken

Size = tuple[int, int]  # (height, width), in pixels


@dataclasses.dataclass(frozen=True)
class Crop:
  """A crop of an image, resized to the size of the model's input.

  Attributes:
    kind: One of CROPS.
    size: Size of the result.
    resize: Short side, or size, to which an image is resized before it is
      cropped; 'random_resized' ignores it. None: the image just fills `size`,
      or, with 'scaled', has its own.
    scale: Range of the area of a 'random_resized' crop, as a fraction.
    ratio: Range of width / height of a 'random_resized' crop.
    pad: Pixels added to each side by 'pad', after resizing.
    fill: Their value; 0: black.
    flip: Whether half of the images are mirrored, left to right.
    antialias: Whether images are smoothed when they are shrunk.
    interpolation: One of INTERPOLATIONS; or 'nearest', of a map of classes.
    resize_like: Library whose filters and rounding are used, one of LIKE; '':
      our own.
    zoom: Range of the factor by which 'scaled' multiplies the resized image.
  """

  kind: str
  size: Size
  resize: int | Size | None = None
  scale: tuple[float, float] = (1.0, 1.0)
  ratio: tuple[float, float] = (1.0, 1.0)
  pad: int = 0
  fill: int = 0
  flip: bool = False
  antialias: bool = True
  interpolation: str = 'bilinear'
  resize_like: str = ''
  zoom: tuple[float, float] = (1.0, 1.0)

  @property
  def uses_pillow(self) -> bool:
    """Whether Pillow resizes on the host, and not OpenCV."""
    if self.interpolation == 'nearest':
      return False
    return self.interpolation == 'bicubic' or bool(self.resize_like)

  def resized(self, size: Size) -> Size:
    """Returns the size to which an image is resized.

    This is `resize` if that is a size. Otherwise the aspect ratio is kept, and
    the resized and padded image is never smaller than the crop, so the short
    side of a long image may become larger than `resize`.

    Args:
      size: (height, width) of the image.
    """
    if isinstance(self.resize, tuple):
      return self.resize
    needed = [x - 2 * self.pad * (self.resize is not None) for x in self.size]
    if self.resize is not None and self.resize_like:
      height, width = self._rounded_like(size, self.resize)
      if height >= needed[0] and width >= needed[1]:
        return height, width
    factor = max(n / x for n, x in zip(needed, size, strict=True))
    if self.resize is not None:
      factor = max(factor, self.resize / min(size))
    # The side that sets the factor is exact, however the factor is rounded.
    return (
      max(needed[0], round(size[0] * factor)),
      max(needed[1], round(size[1] * factor)),
    )

  def _rounded_like(self, size: Size, resize: int) -> Size:
    """Returns the size after resizing by timm's or transformers' rules."""
    if self.resize_like == 'timm' and self.size[0] != self.size[1]:
      # timm's ResizeKeepRatio: the image fills a multiple of the crop.
      fraction = crop_fraction(min(self.size), resize)
      filled = [math.floor(x / fraction) for x in self.size]
      ratio = min(x / n for x, n in zip(size, filled, strict=True))
      return round(size[0] / ratio), round(size[1] / ratio)
    # torchvision's Resize: the short side is exact, the other rounded down.
    height, width = size
    return resize * height // min(size), resize * width // min(size)


@dataclasses.dataclass(frozen=True)
class View:
  """Crops of one kind that are taken of each image.

  Attributes:
    crop: Kind and size of each crop.
    count: Number of crops, in a batch [B, count, H, W, C]; None: one, in a
      batch [B, H, W, C].
  """

  crop: Crop
  count: int | None = None


def is_single(views: Mapping[str, View]) -> bool:
  """Whether one crop is taken of each image, which its maps then follow."""
  return list(views) == ['image'] and views['image'].count is None


def for_map(crop: Crop, ignore: int) -> Crop:
  """Returns the crop of a map of classes that fits an image's crop.

  Args:
    crop: Crop of the image.
    ignore: Label of places that do not count; padding becomes this.
  """
  return dataclasses.replace(
    crop, interpolation='nearest', antialias=False, fill=ignore
  )


def of_frame(crop: Crop) -> Crop:
  """Returns the crop of each frame, from that of a clip of a video."""
  return dataclasses.replace(crop, size=crop.size[-2:])


def train_views(config: ml_collections.ConfigDict) -> dict[str, View]:
  """Returns the one view of training, unless the objective has its own."""
  return {'image': View(train_crop(config))}


def eval_views(config: ml_collections.ConfigDict) -> dict[str, View]:
  """Returns the one view of evaluation."""
  return {'image': View(eval_crop(config))}


def train_crop(config: ml_collections.ConfigDict) -> Crop:
  """Returns the crop of training images."""
  data = config.data
  size = _size(config)
  return Crop(
    kind=data.crop,
    size=size,
    resize=_resize(data.resize, size),
    zoom=tuple(data.crop_zoom),
    scale=tuple(data.crop_scale),
    ratio=tuple(data.crop_ratio),
    pad=data.pad if data.crop == 'pad' else 0,
    flip=data.flip,
    **_how(data),
  )


def eval_crop(config: ml_collections.ConfigDict) -> Crop:
  """Returns the crop for evaluation and prediction."""
  data = config.data
  size = _size(config)
  return Crop(
    kind='center',
    size=size,
    resize=_resize(data.eval_resize, size),
    **_how(data),
  )


def _size(config: ml_collections.ConfigDict) -> Size:
  """Returns the size of a crop.

  Crops of volumes and videos have three sides. `device/volumes.py` and
  `device/clips.py` cut them; here only their size counts, as the shape of a
  batch. Those of sounds are (frames, mels).
  """
  return cast(Size, config_lib.sides(config.data.image_size))


def _how(data: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the fields that training and evaluation share."""
  return {
    'antialias': data.antialias,
    'interpolation': data.interpolation or INTERPOLATIONS[0],
    'resize_like': data.resize_like,
  }


def crop_fraction(side: int, resized: int) -> float:
  """Returns timm's `crop_pct`, a fraction f with floor(side / f) = `resized`.

  Among these it has the fewest digits, as people write it.

  Args:
    side: Side of the crop, in pixels.
    resized: Short side of an image after resizing, at least `side`.
  """
  for digits in itertools.count(1):
    most = side * 10**digits // resized
    for numerator in (most, most - 1):
      fraction = numerator / 10**digits
      if fraction > 0 and math.floor(side / fraction) == resized:
        return fraction
  raise AssertionError


def middle(size: Size, crop: Size, like: str = '') -> Size:
  """Returns (top, left) of a crop in the middle of an image.

  Args:
    size: (height, width) of the image.
    crop: (height, width) of the crop.
    like: Library whose rounding is used, one of LIKE. timm and torchvision
      round halves to even numbers.
  """
  top, left = (have - want for have, want in zip(size, crop, strict=True))
  if like == 'timm':
    return round(top / 2), round(left / 2)
  return top // 2, left // 2


def fallback(size: Size, ratio: tuple[float, float]) -> Size:
  """Returns the (height, width) of the largest crop of a ratio in bounds."""
  height, width = size
  if width < height * ratio[0]:
    return min(height, round(width / ratio[0])), width
  if width > height * ratio[1]:
    return height, min(width, round(height * ratio[1]))
  return size


def _resize(value: int | float | Size | None, size: Size) -> int | Size | None:
  """Returns the side or size to resize to; a float is a multiple of `size`."""
  if isinstance(value, float):
    return round(value * size[-2]), round(value * size[-1])
  return (value[0], value[1]) if isinstance(value, list | tuple) else value
