"""Crops and sizes of images, the same on the host and on the device."""

from collections.abc import Mapping
import dataclasses
from typing import Annotated
from typing import Any
from typing import cast

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.config import parts

CROPS = {
  'random_resized': 'vit_jax.data.host.geometry:RandomResized',
  'random': 'vit_jax.data.host.geometry:Random',
  'pad': 'vit_jax.data.host.geometry:Pad',
  'scaled': 'vit_jax.data.host.geometry:Scaled',
  'center': 'vit_jax.data.host.geometry:Center',
}
INTERPOLATIONS = ('bilinear', 'bicubic')
LIKE = ('timm', 'transformers')
TRIES = 10  # random crops to try before the middle of the image is taken

Size = tuple[int, int]  # (height, width), in pixels


Range = Annotated[tuple[float, float], options.Interval('(0, inf)')]
Fractions = Annotated[tuple[float, float], options.Interval('(0, 1]')]


@dataclasses.dataclass(frozen=True)
class RandomResized:
  """A random rectangle, resized to the model's input.

  Attributes:
    scale: Range of its area, as a fraction of the image's.
    ratio: Range of its width / height.
  """

  scale: Fractions = (0.08, 1.0)
  ratio: Range = (3 / 4, 4 / 3)

  def __post_init__(self) -> None:
    options.check_growing(self)


@dataclasses.dataclass(frozen=True)
class Random:
  """A random crop of the resized image."""


@dataclasses.dataclass(frozen=True)
class Pad:
  """A random crop after black pixels are added.

  Attributes:
    pad: Pixels on each side.
  """

  pad: Annotated[int, options.Interval('[0, inf)')] = 4


@dataclasses.dataclass(frozen=True)
class Scaled:
  """A random crop after both sides are multiplied by a random factor.

  Attributes:
    zoom: Range of the factor.
  """

  zoom: Range = (0.5, 2.0)

  def __post_init__(self) -> None:
    options.check_growing(self)


@dataclasses.dataclass(frozen=True)
class Center:
  """The middle of the resized image."""


@dataclasses.dataclass(frozen=True)
class Crop:
  """A crop of an image, resized to the size of the model's input."""

  kind: str  # one of CROPS
  size: Size
  # Short side, or size, to which an image is resized before it is cropped;
  # 'random_resized' ignores it. None: the image just fills `size`, or, with
  # 'scaled', has its own.
  resize: int | Size | None = None
  # Range of the area of a 'random_resized' crop, as a fraction.
  scale: tuple[float, float] = (1.0, 1.0)
  # Range of width / height of a 'random_resized' crop.
  ratio: tuple[float, float] = (1.0, 1.0)
  pad: int = 0
  # Stored value of padding, 0 is black; or that of each channel.
  fill: int | tuple[int, ...] = 0
  flip: bool = False  # whether half of the images are mirrored, left to right
  antialias: bool = True  # whether images are smoothed when they are shrunk
  # One of INTERPOLATIONS; or 'nearest', of a map of classes.
  interpolation: str = 'bilinear'
  # Library whose filters and rounding are used, one of LIKE; '': our own.
  resize_like: str = ''
  # Range of the factor by which 'scaled' multiplies the resized image.
  zoom: tuple[float, float] = (1.0, 1.0)
  # timm's share of the sides of `resize` that `size` is; None: none was set.
  crop_pct: float | None = None
  # Whether an image keeps its ratio and fits into `resize`, a size, and is
  # padded to `size` where it is smaller, as with timm's 'border'.
  border: bool = False

  @property
  def uses_pillow(self) -> bool:
    """Whether Pillow resizes on the host, and not OpenCV."""
    if self.interpolation == 'nearest':
      return False
    return self.interpolation == 'bicubic' or bool(self.resize_like)

  @property
  def least_size(self) -> Size:
    """The size of the smallest resized image that it is cut from."""
    pad = 2 * self.pad * (self.resize is not None)
    return cast(Size, tuple(side - pad for side in self.size))

  def resized(self, size: Size) -> Size:
    """Returns the (height, width) to which an image of a size is resized.

    This is `resize` if that is a size, or the largest size of the image's
    ratio in it with a border. Otherwise the aspect ratio is kept, and the
    resized and padded image is never smaller than the crop, so the short side
    of a long image may become larger than `resize`.
    """
    if self.resize_like or self.border:
      as_library = config_lib.wing('vit_jax.data.host.crop_modes:resized')
      library_size: Size | None = as_library(self, size)
      if library_size is not None:
        return library_size
    if isinstance(self.resize, tuple):
      return self.resize
    needed = self.least_size
    factor = max(n / x for n, x in zip(needed, size, strict=True))
    if self.resize is not None:
      factor = max(factor, self.resize / min(size))
    # The side that sets the factor is exact, however the factor is rounded.
    return (
      max(needed[0], round(size[0] * factor)),
      max(needed[1], round(size[1] * factor)),
    )


@dataclasses.dataclass(frozen=True)
class View:
  """Crops of one kind that are taken of each image."""

  crop: Crop  # kind and size of each crop
  # Number of crops, in a batch [B, count, H, W, C]. None: one, in a batch
  # [B, H, W, C].
  count: int | None = None


def is_single(views: Mapping[str, View]) -> bool:
  """Whether one crop is taken of each image, which its maps then follow."""
  return list(views) == ['image'] and views['image'].count is None


def for_map(crop: Crop, ignore: int) -> Crop:
  """Returns the crop of a map that fits an image's; padding gets `ignore`."""
  return dataclasses.replace(
    crop, interpolation='nearest', antialias=False, fill=ignore
  )


def frame_crop(crop: Crop) -> Crop:
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
  crop = config_lib.build(config.data.crop, 'data.crop', CROPS)
  return _crop(
    config,
    'resize',
    kind=crop_kind(config),
    flip=config.data.flip,
    **dataclasses.asdict(crop),
  )


def crop_kind(config: ml_collections.ConfigDict) -> str:
  """Returns the name of `data.crop`, without its options."""
  return parts.parse(config.data.crop, 'data.crop').name


def eval_crop(config: ml_collections.ConfigDict) -> Crop:
  """Returns the crop for evaluation and prediction."""
  return _crop(config, 'eval_resize', kind='center')


def _crop(config: ml_collections.ConfigDict, key: str, **fields: Any) -> Crop:
  """Returns a crop that is resized as a key of `config.data` says.

  Crops of volumes and videos have three sides. `device/volumes.py` and
  `device/clips.py` cut them; here only their size counts, as the shape of a
  batch. Those of sounds are (frames, mels).
  """
  data = config.data
  size = cast(Size, config_lib.sides(data.image_size))
  return Crop(
    size=size,
    antialias=data.antialias,
    interpolation=data.interpolation or INTERPOLATIONS[0],
    resize_like=data.resize_like,
    **resizing(data[key], size, f'data.{key}'),
    **fields,
  )


def padding(size: Size, crop: Crop) -> tuple[Size, Size]:
  """Returns the pixels that are added (above, below) and (left, right)."""
  if not crop.border:
    return (crop.pad, crop.pad), (crop.pad, crop.pad)
  rows, columns = (
    (max(n - have, 0) // 2, (max(n - have, 0) + 1) // 2)
    for have, n in zip(size, crop.size, strict=True)
  )
  return rows, columns


def middle(size: Size, crop: Size, like: str = '') -> Size:
  """Returns (top, left) of a crop in the middle of an image."""
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


def resizing(value: Any, size: Size, key: str) -> dict[str, Any]:
  """Returns the fields of a `Crop` that say how an image is resized before.

  `value` is as `config.data.eval_resize`; the last sides of the crop's `size`
  are (height, width).
  """
  size = size[-2], size[-1]
  if isinstance(value, float):
    return {'resize': (round(value * size[0]), round(value * size[1]))}
  if not isinstance(value, str):
    is_size = isinstance(value, list | tuple)
    return {'resize': (value[0], value[1]) if is_size else value}
  by_mode = config_lib.wing('vit_jax.data.host.crop_modes:resizing')
  fields: dict[str, Any] = by_mode(value, size, key)
  return fields


def is_fill(value: Any, bits: int = 16) -> bool:
  """Whether it has stored values of channels, of so many bits."""
  return isinstance(value, tuple) and all(
    type(x) is int and 0 <= x < 2**bits for x in value
  )
