"""Cuts clips of videos and parts of spectrograms on the host.

In comments: T frames of a clip, [h, w] pixels of a stored frame.
"""

import abc
from collections.abc import Sequence
from typing import Any
from typing import cast

import numpy as np

from vit_jax.config import counted
from vit_jax.config import UserError
from vit_jax.data import input_kinds
from vit_jax.data.base import Example
from vit_jax.data.host import decode
from vit_jax.data.host import geometry
from vit_jax.data.host import images as images_lib
from vit_jax.data.host import transforms

# What follows an example's key in that of the place in time.
_TIME = 1


class Frames(abc.ABC):
  """The frames of a stored video, which are decoded when they are asked for."""

  @abc.abstractmethod
  def __len__(self) -> int:
    """Number of frames."""

  @abc.abstractmethod
  def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
    """Returns frames, uint8 or uint16 [h, w, C], by rising numbers."""

  def read_all(self, origin: str) -> np.ndarray:
    """Returns all frames, uint8 or uint16 [T, h, w, C]."""
    return np.stack(_read(self, range(len(self)), origin))


def _read(
  video: Frames | np.ndarray, numbers: Sequence[int], origin: str
) -> Sequence[np.ndarray]:
  """Returns frames, if there are any, and all have one size."""
  if not len(video):
    raise UserError(f'{origin} has no frames: leave it out')
  images = (
    video.read(numbers)
    if isinstance(video, Frames)
    else [*video[list(numbers)]]
  )
  first = images[0].shape[:2]
  for image, number in zip(images, numbers, strict=True):
    if image.shape[:2] != first:
      raise UserError(
        f'{origin}: frame {number} has (height, width) {image.shape[:2]}, but'
        f' frame {numbers[0]} has {first}: all frames of a video must have one'
        ' size'
      )
  return images


class ClipFiller(images_lib.ImageFiller):
  """Cuts clips and parts of spectrograms into rows of a batch."""

  def fill_crops(self, example: Example, rows: list[int]) -> None:
    """Cuts a video or a spectrogram, which has a size of its own."""
    for i in rows:
      key = None if self.maker.in_order else self.key(i)
      self.batch['image'][i] = self._cut(
        example.values['image'], key, example.origin
      )

  def _cut(
    self, image: Any, key: tuple[int, ...] | None, origin: str
  ) -> np.ndarray:
    """Returns a clip [T, H, W, C] or part [T, M, 1], without key the middle."""
    channels, levels = self.maker.channels, self.maker.levels
    kind = cast(input_kinds.Recording, self.maker.image)
    # The number of frames is its first side.
    crop = self.maker.views['image'].crop
    frames, num_frames = crop.size[0], len(image)
    span = kind.span(frames)
    is_video = isinstance(kind, input_kinds.Video)
    if is_video and 0 < num_frames < span and kind.short == 'refuse':
      raise UserError(
        f'{origin} has {counted(num_frames, "frame")}, but a clip of {frames}'
        f' with a stride of {kind.stride} spans {span}: leave it out, or set'
        " config.data.video.short='pad'"
      )
    free = max(num_frames - span, 0)
    first = free // 2
    if key is not None:
      first = int(np.random.default_rng((*key, _TIME)).integers(free + 1))
    if not is_video:
      spectrogram = levels.keep(image, origin)
      part = spectrogram[first : first + frames]
      if part.shape != (*crop.size, 1):
        raise UserError(
          f'{origin} has a spectrogram of {spectrogram.shape}, and'
          f' config.data.image_size wants {crop.size} of it'
        )
      return part
    numbers = first + kind.stride * np.arange(frames)
    numbers = np.minimum(numbers, num_frames - 1).tolist()
    crop = geometry.frame_crop(crop)
    cut = []
    for frame in _read(image, numbers, origin):
      pixels = decode.to_channels(levels.keep(frame, origin), channels)
      rng = np.random.default_rng(key or 0)  # the same for all frames
      cut.append(
        transforms.transform(pixels, channels, crop, rng, origin, levels)
      )
    return np.stack(cut)
