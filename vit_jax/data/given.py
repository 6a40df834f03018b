"""Images, videos and sounds that a user gives to a model."""

from collections.abc import Iterable
import os
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data import spectrogram
from vit_jax.data.host import clips
from vit_jax.data.host import decode
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host import sound_files
from vit_jax.data.host import video_files


def recordings(images: Any, cut: clips.Cutter) -> np.ndarray:
  """Returns clips of videos, or parts of spectrograms, as evaluation cuts them.

  Args:
    images: A video or sound, or a sequence of them. Each is a path, or an
      array: uint8 [T, h, w, C] of a video, float32 [S] of a waveform with the
      model's sample rate.
    cut: What the model takes.

  Returns:
    uint8 or uint16 [B, T, H, W, C], or [B, T, M, 1].

  Raises:
    UserError: One cannot be read, or is too short.
  """
  is_video = isinstance(cut.kind, features.Video)
  found = []
  for i, image in enumerate(as_sequence(images, 4 if is_video else 1)):
    where = os.fspath(image) if is_path(image) else f'input {i}'
    if isinstance(cut.kind, features.Audio):
      image = _spectrogram(image, cut.kind, cut.crop.size[0], where)
    elif is_path(image):
      image = video_files.open_video(where)
    elif np.ndim(image) != 4 or np.asarray(image).dtype != np.uint8:
      raise UserError(
        f'{where} is no video: give a path, or uint8 [T, h, w, C]'
      )
    found.append(cut(image, None, where))
  if not found:
    raise UserError('there is nothing to predict')
  return np.stack(found)


def _spectrogram(
  sound: Any, how: features.Audio, frames: int, where: str
) -> np.ndarray:
  """Returns the spectrogram of a path or a waveform, uint16 [T, M, 1]."""
  if is_path(sound):
    return sound_files.read(where, how, frames)
  waveform = np.asarray(sound)
  if waveform.ndim != 1 or waveform.dtype != np.float32:
    raise UserError(
      f'{where} is no sound: give a path, or float32 [samples], from -1 to 1'
    )
  waveform = spectrogram.long_enough(waveform, frames, how, where)
  return spectrogram.of_waveform(waveform, how)


def is_path(image: Any) -> bool:
  """Whether an image is given by its path."""
  return isinstance(image, str | os.PathLike)


def as_sequence(images: Any, ndim: int = 3) -> Iterable[Any]:
  """Returns one or several images as several.

  Args:
    images: An image or a sequence of images.
    ndim: Most axes of an array that is one image.
  """
  is_array = isinstance(images, np.ndarray) and images.ndim <= ndim
  is_one = is_array or is_path(images) or isinstance(images, bytes)
  return [images] if is_one or _is_pil(images) else images


def _is_pil(image: Any) -> bool:
  return hasattr(image, 'getexif')  # without importing Pillow


def load(
  image: Any, channels: int, where: str, levels: levels_lib.Levels
) -> bytes | np.ndarray:
  """Returns an encoded image, or pixels [h, w, channels].

  Args:
    image: A path, the bytes of a file, a PIL image or an array.
    channels: Channels of the pixels.
    where: Name of an image that is no path, for errors.
    levels: Bits that are kept.

  Raises:
    UserError: It is of no known kind, or cannot be read.
  """
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
      f'{where} is an array of type {array.dtype} and shape {array.shape}:'
      ' it must be uint8 (0 to 255) or uint16, [h, w] or [h, w, 1 to 4]'
      f'{_advice(array)}'
    )
  return decode.to_channels(levels.keep(array, where), channels)


def _advice(array: np.ndarray) -> str:
  """Returns what to do about an array that is no image of stored values."""
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
