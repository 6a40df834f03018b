"""Cuts clips of videos and parts of spectrograms on the host.

In comments: T frames of a clip, [h, w] pixels of a stored frame.
"""

import abc
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from vit_jax.config import counted
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data import input_kinds
from vit_jax.data.base import Example
from vit_jax.data.host import decode
from vit_jax.data.host import geometry
from vit_jax.data.host import images as images_lib
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host import transforms

# What follows an example's key in that of the place in time.
_TIME = 1

Key = tuple[int, ...] | None


class Frames(abc.ABC):
  """The frames of a stored video, which are decoded when they are asked for."""

  @abc.abstractmethod
  def __len__(self) -> int:
    """Number of frames.

    Raises:
      UserError: The video cannot be read.
    """

  @abc.abstractmethod
  def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
    """Returns frames, each uint8 or uint16 [h, w, C].

    Args:
      numbers: Which ones, from 0, in rising order; some may be equal.

    Raises:
      UserError: The video cannot be read.
    """

  def read_all(self, origin: str) -> np.ndarray:
    """Returns all frames, uint8 or uint16 [T, h, w, C].

    Args:
      origin: File, for errors.

    Raises:
      UserError: The video cannot be read, has no frames, or its frames differ
        in size.
    """
    numbers = range(len(self))
    if not numbers:
      raise UserError(f'{origin} has no frames: leave it out')
    images = self.read(numbers)
    _check_sizes(images, numbers, origin)
    return np.stack(images)


@dataclasses.dataclass(frozen=True)
class Cutter:
  """Cuts the examples of a batch.

  Attributes:
    kind: Video or Audio.
    crop: Crop of the model's input, which has the number of frames as its first
      side.
    channels: C.
    levels: Bits that are kept.
  """

  kind: features.Image
  crop: geometry.Crop
  channels: int
  levels: levels_lib.Levels

  def __call__(self, image: Any, key: Key, origin: str) -> np.ndarray:
    """Returns a clip, [T, H, W, C], or a part of a spectrogram, [T, M, 1].

    Args:
      image: `Frames`, or an array with frames as its first axis.
      key: Seeds the draws; None: the middle.
      origin: File, for errors.

    Raises:
      UserError: It cannot be read, is too short, or its frames differ in size.
    """
    if isinstance(self.kind, input_kinds.Video):
      return self._clip(image, self.kind, key, origin)
    frames = self.crop.size[0]
    spectrogram = self.levels.keep(image, origin)
    first = start(len(spectrogram), frames, key)
    part = spectrogram[first : first + frames]
    if part.shape != (*self.crop.size, 1):
      raise UserError(
        f'{origin} has a spectrogram of {spectrogram.shape}, and'
        f' config.data.image_size wants {self.crop.size} of it'
      )
    return part

  def _clip(
    self, video: Any, kind: input_kinds.Video, key: Key, origin: str
  ) -> np.ndarray:
    num_frames, frames = len(video), self.crop.size[0]
    if not num_frames:
      raise UserError(f'{origin} has no frames: leave it out')
    span = kind.span(frames)
    if num_frames < span and kind.short == 'refuse':
      raise UserError(
        f'{origin} has {counted(num_frames, "frame")}, but a clip of {frames}'
        f' with a stride of {kind.stride} spans {span}: leave it out, or set'
        " config.data.video.short='pad'"
      )
    first = start(num_frames, span, key)
    numbers = first + kind.stride * np.arange(frames)
    numbers = np.minimum(numbers, num_frames - 1).tolist()
    is_stored = isinstance(video, Frames)
    images = video.read(numbers) if is_stored else video[numbers]
    _check_sizes(images, numbers, origin)
    crop = geometry.frame_crop(self.crop)
    cut = []
    for image in images:
      pixels = decode.to_channels(
        self.levels.keep(image, origin), self.channels
      )
      rng = np.random.default_rng(key or 0)  # the same for all frames
      cut.append(
        transforms.transform(
          pixels, self.channels, crop, rng, origin, self.levels
        )
      )
    return np.stack(cut)


class ClipFiller(images_lib.ImageFiller):
  """Cuts clips and parts of spectrograms into rows of a batch."""

  def fill_crops(self, example: Example, rows: list[int]) -> None:
    """Cuts a video or a spectrogram, which has a size of its own."""
    maker = self.maker
    crop = maker.views['image'].crop
    cut = Cutter(maker.image, crop, maker.channels, maker.levels)
    for i in rows:
      key = None if maker.in_order else self.key(i)
      self.batch['image'][i] = cut(example.values['image'], key, example.origin)


def start(total_frames: int, part_frames: int, key: Key) -> int:
  """Returns the first frame of a part: anywhere, or that of the middle.

  Args:
    total_frames: Frames of the whole.
    part_frames: Frames of the part.
    key: Seeds the draw; None: the middle.
  """
  free = max(total_frames - part_frames, 0)
  if key is None:
    return free // 2
  return int(np.random.default_rng((*key, _TIME)).integers(free + 1))


def _check_sizes(
  images: Sequence[np.ndarray], numbers: Sequence[int], origin: str
) -> None:
  first = images[0].shape[:2]
  for image, number in zip(images, numbers, strict=True):
    if image.shape[:2] != first:
      raise UserError(
        f'{origin}: frame {number} has (height, width) {image.shape[:2]}, but'
        f' frame {numbers[0]} has {first}: all frames of a video must have one'
        ' size'
      )
