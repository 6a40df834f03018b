"""Images that a user gives to a model."""

from collections.abc import Iterable
import dataclasses
import os
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import folder
from vit_jax.data.host import decode
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host import transforms
from vit_jax.data.preprocess import Preprocess


def images(preprocess: Preprocess, images: Any) -> np.ndarray:
  """Returns images as evaluation crops them, uint8 or uint16 [B, H, W, C]."""
  if len(preprocess.image_size) != 2:
    raise UserError(
      'this model takes volumes, and no images: give it files of scans, by'
      ' predict, or measure it, by evaluate'
    )
  channels, levels = preprocess.channels, preprocess.levels
  rng = np.random.default_rng(0)  # unused: evaluation draws nothing
  pixels = []
  for i, image in enumerate(as_sequence(images)):
    image_name = os.fspath(image) if is_path(image) else f'image {i}'
    stored = load(image, channels, image_name, levels)
    pixels.append(
      transforms.transform(
        stored, channels, preprocess.crop, rng, image_name, levels
      )
    )
  if not pixels:
    raise UserError('there are no images')
  return np.stack(pixels)


def covering(
  preprocess: Preprocess, image: Any, image_name: str = 'the image'
) -> tuple[np.ndarray, np.ndarray]:
  """Decodes an image whole, and resizes it to cover the model's input.

  Its sides keep their ratio; one is as long as the input's, the other at least
  as long. With a `resize` that is a number, the short side has at least that
  length, as in evaluation.

  Returns the stored pixels, uint8 or uint16 [h, w, C], and the resized and
  normalised ones, float32 [H, W, C]. `image_name` is for errors about an image
  that is no path.
  """
  image_name = os.fspath(image) if is_path(image) else image_name
  stored = load(image, preprocess.channels, image_name, preprocess.levels)
  if isinstance(stored, bytes):
    stored = decode.decode(
      stored, preprocess.channels, origin=image_name, levels=preprocess.levels
    )
  height, width = stored.shape[:2]
  scale = max(np.divide(preprocess.image_size, (height, width)))
  if isinstance(preprocess.resize, int):
    scale = max(scale, preprocess.resize / min(height, width))
  size = (max(round(height * scale), 1), max(round(width * scale), 1))
  covering_preprocess = dataclasses.replace(
    preprocess, image_size=size, resize=size, crop_pct=None, fill=None
  )
  return stored, covering_preprocess(stored)[0]


def is_path(image: Any) -> bool:
  """Whether an image is given by its path."""
  return isinstance(image, str | os.PathLike)


def as_sequence(images: Any, ndim: int = 3) -> Iterable[Any]:
  """Returns one image, of at most `ndim` axes, or several as several."""
  is_array = isinstance(images, np.ndarray) and images.ndim <= ndim
  is_one = is_array or is_path(images) or isinstance(images, bytes)
  return [images] if is_one or _is_pil(images) else images


def _is_pil(image: Any) -> bool:
  return hasattr(image, 'getexif')  # without importing Pillow


def load(
  image: Any, channels: int, image_name: str, levels: levels_lib.Levels
) -> bytes | np.ndarray:
  """Returns an encoded image, or pixels [h, w, channels]."""
  if is_path(image):
    return folder.read_image(os.fspath(image))
  if isinstance(image, bytes):
    return image
  if _is_pil(image):
    image = _from_pil(image)
  array = np.asarray(image)
  is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] <= 4)
  if array.dtype not in (np.uint8, np.uint16) or not is_image:
    raise UserError(
      f'{image_name} is an array of type {array.dtype} and shape {array.shape}:'
      ' it must be uint8 (0 to 255) or uint16, [h, w] or [h, w, 1 to 4]'
      f'{_advice(array)}'
    )
  return decode.to_channels(levels.keep(array, image_name), channels)


def _advice(array: np.ndarray) -> str:
  if array.ndim == 4:
    return '; of several images give the array itself, not a list of it'
  if array.ndim == 3 and array.shape[0] <= 4:
    return '; channels come last, as in image.transpose(1, 2, 0)'
  if not np.issubdtype(array.dtype, np.floating):
    return ''
  scaled = '(255 * image).round().astype(np.uint8)'
  return (
    f'. If its values are from 0 to 1, give {scaled}; if it is cropped and'
    " normalised already, give batches to vit.model.apply({'params':"
    ' vit.params}, images)'
  )


def _from_pil(image: Any) -> np.ndarray:
  """Returns the pixels of a PIL image, turned as its EXIF asks."""
  from PIL import ImageOps  # already imported: it made the image

  image = ImageOps.exif_transpose(image)
  if image.mode.startswith('I'):  # Pillow's mode of 16-bit grey, too
    values = np.asarray(image)
    fits = values.min() >= 0 and values.max() <= 65535
    return values.astype(np.uint16) if fits else values
  if image.mode == 'F':
    return np.asarray(image)
  if image.mode in ('LA', 'PA', 'RGBA') or 'transparency' in image.info:
    return np.asarray(image.convert('RGBA'))
  return np.asarray(image.convert('L' if image.mode in ('1', 'L') else 'RGB'))
