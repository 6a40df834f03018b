"""What prediction needs to know about the data, and does to an image."""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import os
from typing import Any
from typing import Self

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import workdir
from vit_jax.config import UserError
from vit_jax.data import decode
from vit_jax.data import geometry
from vit_jax.data import levels as levels_lib
from vit_jax.data import transforms


@dataclasses.dataclass(frozen=True)
class Preprocess:
  """Turns any images into a model's input, as evaluation does.

  Attributes:
    classes: Names of what the model tells apart.
    image_size: (height, width) of the model's input, in pixels.
    channels: 1 (grey), 3 (RGB) or 4 (RGB and alpha).
    mean: Of pixels in [0, 1], one number or one for each channel.
    std: Likewise.
    resize: As `config.data.eval_resize`.
    antialias: Whether images are smoothed when they are shrunk.
    bits: Of a stored value that are kept until it is normalised, 8 or 16.
    intensity: (low, high), the stored values that become 0 and 1, and what is
      beyond is cut; None: the range of the type.
    interpolation: 'bilinear' or 'bicubic', as `config.data.interpolation`.
    resize_like: As `config.data.resize_like`.
  """

  classes: tuple[str, ...]
  image_size: tuple[int, int]
  channels: int
  mean: tuple[float, ...]
  std: tuple[float, ...]
  resize: int | tuple[int, int] | None = None
  antialias: bool = True
  bits: int = 8
  intensity: tuple[float, float] | None = None
  interpolation: str = 'bilinear'
  resize_like: str = ''

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, classes: Iterable[str]
  ) -> Self:
    """Returns what evaluation does under a config."""
    crop = geometry.eval_crop(config)
    mean, std = config_lib.normalization(config)
    levels = levels_lib.of(config)
    return cls(
      classes=tuple(classes),
      image_size=crop.size,
      channels=config.data.channels,
      mean=mean,
      std=std,
      resize=crop.resize,
      antialias=crop.antialias,
      bits=levels.bits,
      intensity=levels.window,
      interpolation=crop.interpolation,
      resize_like=crop.resize_like,
    )

  @classmethod
  def from_dict(cls, stored: Mapping[str, Any]) -> Self:
    """Returns what `to_dict` gave, or what JSON made of it.

    Raises:
      UserError: It is something else.
    """
    fields: dict[str, Any] = {
      key: tuple(value) if isinstance(value, list) else value
      for key, value in stored.items()
    }
    try:
      result = cls(**fields)
    except TypeError as e:
      raise UserError(
        f'what prediction needs (preprocess.json): {config_lib.one_line(e)}'
      ) from None
    result._check()
    return result

  def _check(self) -> None:
    """Raises a UserError where a value cannot be used."""
    numbers = (*self.mean, *self.std) if self._are_tuples() else ()
    good = (
      numbers
      and all(isinstance(x, int | float) for x in numbers)
      and np.isfinite(numbers).all()
      and min(self.std) > 0
      and {len(self.mean), len(self.std)} <= {1, self.channels}
      and len(self.image_size) == 2
      and all(type(x) is int and x > 0 for x in self.image_size)
      and all(isinstance(name, str) for name in self.classes)
      and self.bits in (8, 16)
      and self._has_window()
      and self.interpolation in geometry.INTERPOLATIONS
      and self.resize_like in ('', *geometry.LIKE)
    )
    if not good:
      raise UserError(
        f'what prediction needs (preprocess.json) cannot be used: {self}'
      )

  def _has_window(self) -> bool:
    """Whether intensity is one that can be used."""
    window = self.intensity
    if window is None:
      return True
    good = isinstance(window, tuple) and len(window) == 2
    good = good and all(isinstance(x, int | float) for x in window)
    return good and 0 <= window[0] < window[1] < np.inf

  def _are_tuples(self) -> bool:
    values = (self.classes, self.image_size, self.mean, self.std)
    return all(isinstance(x, tuple) for x in values)

  def to_dict(self) -> dict[str, Any]:
    """Returns the content of preprocess.json."""
    return dataclasses.asdict(self)

  def to_config(self) -> ml_collections.ConfigDict:
    """Returns a config whose evaluation does the same; it names no data."""
    config = config_lib.default()
    config.data.image_size = self.image_size
    config.data.channels = self.channels
    config.data.mean = self.mean
    config.data.std = self.std
    config.data.eval_resize = self.resize
    config.data.antialias = self.antialias
    config.data.bits = self.bits
    if self.intensity is not None:
      config.data.intensity = self.intensity
    config.data.interpolation = self.interpolation
    config.data.resize_like = self.resize_like
    return config

  @property
  def levels(self) -> levels_lib.Levels:
    """Which stored values become 0 and 1."""
    return levels_lib.Levels(self.bits, self.intensity)

  def __call__(self, images: Any) -> np.ndarray:
    """Decodes, resizes, crops and normalises images.

    Args:
      images: One or a sequence of: a path, the bytes of an image file, a PIL
        image, or an array, uint8 or uint16 [h, w] or [h, w, C]. An array
        [B, h, w, C] is a sequence.

    Returns:
      float32 [B, H, W, C].

    Raises:
      UserError: One is no image, is damaged, or cannot be read.
    """
    scaled = self.levels.scale(self.pixels(images))
    mean, std = (np.asarray(x, np.float32) for x in (self.mean, self.std))
    return (scaled - mean) / std

  def pixels(self, images: Any) -> np.ndarray:
    """Does all but normalise: returns uint8 or uint16 [B, H, W, C].

    Args:
      images: As for a call.

    Raises:
      UserError: Likewise.
    """
    crop = geometry.Crop(
      'center',
      self.image_size,
      self.resize,
      antialias=self.antialias,
      interpolation=self.interpolation,
      resize_like=self.resize_like,
    )
    rng = np.random.default_rng(0)  # nothing is random
    pixels = []
    for i, image in enumerate(_as_sequence(images)):
      where = os.fspath(image) if _is_path(image) else f'image {i}'
      pixels.append(
        transforms.transform(
          _load(image, self.channels, where, self.levels),
          self.channels,
          crop,
          rng,
          where,
          self.levels,
        )
      )
    if not pixels:
      raise UserError('there are no images')
    return np.stack(pixels)


def _is_path(image: Any) -> bool:
  return isinstance(image, str | os.PathLike)


def _as_sequence(images: Any) -> Iterable[Any]:
  is_array = isinstance(images, np.ndarray) and images.ndim < 4
  is_one = is_array or _is_path(images) or isinstance(images, bytes)
  return [images] if is_one or _is_pil(images) else images


def _is_pil(image: Any) -> bool:
  return hasattr(image, 'getexif')  # without importing Pillow


def _load(
  image: Any, channels: int, where: str, levels: levels_lib.Levels
) -> bytes | np.ndarray:
  """Returns an encoded image, or pixels [h, w, channels]."""
  if _is_path(image):
    try:
      with workdir.open_regular(image) as f:
        return f.read()
    except OSError as e:
      raise UserError(f'{where} cannot be read: {e.strerror}') from None
  if isinstance(image, bytes):
    return image
  if _is_pil(image):
    image = _from_pil(image)
  array = np.asarray(image)
  is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] <= 4)
  if array.dtype not in (np.uint8, np.uint16) or not is_image:
    raise UserError(
      f'{where} is an array of type {array.dtype} and shape {array.shape}:'
      ' it must be uint8 (0 to 255) or uint16, [h, w] or [h, w, 1 to 4]'
    )
  return decode.to_channels(levels.keep(array, where), channels)


def _from_pil(image: Any) -> np.ndarray:
  """Returns the pixels of a PIL image, turned as its EXIF asks."""
  from PIL import ImageOps  # the image came from there

  image = ImageOps.exif_transpose(image)
  if image.mode.startswith('I'):  # as which Pillow opens grey of 16 bits, too
    values = np.asarray(image)
    fits = values.min() >= 0 and values.max() <= 65535
    return values.astype(np.uint16) if fits else values
  if image.mode == 'F':
    return np.asarray(image)
  if image.mode in ('LA', 'PA', 'RGBA') or 'transparency' in image.info:
    return np.asarray(image.convert('RGBA'))
  return np.asarray(image.convert('L' if image.mode in ('1', 'L') else 'RGB'))
