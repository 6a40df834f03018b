"""Images, videos and sounds that a user gives to a model."""

from collections.abc import Iterable
import dataclasses
import os
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features as features_lib
from vit_jax.data import folder
from vit_jax.data import input_kinds
from vit_jax.data import spectrogram
from vit_jax.data.host import batches
from vit_jax.data.host import decode
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.preprocess import Preprocess


class GivenSource(base.Source):
  """Images, videos or sounds that are given one by one, with no other feature.

  Each may be a path. Otherwise an image is the bytes of a file, an image of
  Pillow, or an array, uint8 or uint16 [h, w] or [h, w, C]. A video is uint8
  [T, h, w, C], and a sound a waveform, float32 [S], of the model's sample rate.
  """

  def __init__(
    self, inputs: Iterable[Any], preprocess: Preprocess, first: int = 0
  ):
    """Holds inputs for a model; errors number them from `first`."""
    kind = preprocess.input
    self._frames = preprocess.image_size[0]  # least of a spectrogram
    self._channels, self._levels = preprocess.channels, preprocess.levels
    is_recording = isinstance(kind, input_kinds.Recording)
    self._kind = kind if is_recording else features_lib.Image()
    # They may differ in size.
    self.features = {'image': dataclasses.replace(self._kind, size=None)}
    self._inputs, self._first = tuple(inputs), first

  def __len__(self) -> int:
    return len(self._inputs)

  def read(self, position: int) -> base.Example:
    """Returns an example; a file of an image or a video is not decoded."""
    value = self._inputs[position]
    noun = 'input' if isinstance(self._kind, input_kinds.Recording) else 'image'
    name = self.file(position) or f'{noun} {self._first + position}'
    if is_path(value):
      value = self._kind.open(name, self._frames)
    elif isinstance(self._kind, input_kinds.Audio):
      value = _spectrogram(value, self._kind, self._frames, name)
    elif isinstance(self._kind, input_kinds.Video):
      value = np.asarray(value)
      if value.ndim != 4 or value.dtype != np.uint8:
        raise UserError(
          f'{name} is no video: give a path, or uint8 [T, h, w, C]'
        )
    else:
      value = load(value, self._channels, name, self._levels)
    return base.Example({'image': value}, position, name)

  def file(self, position: int) -> str | None:
    """Returns the path of an example's file, None where it has none."""
    value = self._inputs[position]
    return os.fspath(value) if is_path(value) else None

  def fingerprint(self) -> str:
    """Returns a digest of the names of the inputs."""
    names = map(self.file, range(len(self)))
    return base.digest(name or '' for name in names)


def pixels(preprocess: Preprocess, inputs: Any) -> np.ndarray:
  """Returns inputs as evaluation crops them, before they are normalised.

  They are uint8 or uint16 [B, H, W, C], of videos [B, T, H, W, C], of sounds
  [B, T, M, 1]. `inputs` is one of what `GivenSource` takes, or several.
  """
  kind = preprocess.input
  is_recording = isinstance(kind, input_kinds.Recording)
  if len(preprocess.image_size) != 2 and not is_recording:
    raise UserError(
      'this model takes volumes, and no images: give it files of scans, by'
      ' predict, or measure it, by evaluate'
    )
  axes = {input_kinds.Video: 4, input_kinds.Audio: 1}.get(type(kind), 3)
  crops = []
  # One by one, since they may be made as they are asked for.
  for i, value in enumerate(as_sequence(inputs, axes)):
    maker = batches.BatchMaker(
      GivenSource([value], preprocess, i),
      preprocess.channels,
      {'image': geometry.View(preprocess.crop)},
      rows=range(1),
      batch_size=1,
      seed=0,  # evaluation draws nothing
      levels=preprocess.levels,
      in_order=True,
    )
    crops.append(maker(0)['image'])
  if not crops:
    raise UserError(
      'there is nothing to predict' if is_recording else 'there are no images'
    )
  return np.concatenate(crops)


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
  if not array.size:
    raise UserError(
      f'{image_name} is an array of shape {array.shape}, which has no pixels:'
      ' leave it out'
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


def _spectrogram(
  sound: Any, audio: input_kinds.Audio, frames: int, sound_name: str
) -> np.ndarray:
  """Returns the spectrogram of a waveform, uint16 [T, M, 1]."""
  waveform = np.asarray(sound)
  if waveform.ndim != 1 or waveform.dtype != np.float32:
    raise UserError(
      f'{sound_name} is no sound: give a path, or float32 [samples], from -1 to'
      ' 1'
    )
  waveform = spectrogram.long_enough(waveform, frames, audio, sound_name)
  return spectrogram.from_waveform(waveform, audio)
