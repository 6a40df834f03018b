"""Frames of videos in files, and of videos that are folders of images."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import os
import re

import cv2
import numpy as np

from vit_jax.config import UserError
from vit_jax.data import folder
from vit_jax.data.host import clips
from vit_jax.data.host import decode

ENDINGS = tuple('.mp4 .webm .avi .mkv .mov .m4v .mpg .mpeg'.split())
# Headers may estimate the number of frames from the duration. So many frames
# may be missing at the end; the last one that is there takes their place.
_ESTIMATE = 2


def open_video(path: str) -> clips.Frames:
  """Returns the frames of a file, or of a folder of images."""
  if os.path.isdir(path):
    return FolderOfFrames(path)
  if not os.path.isfile(path):
    raise UserError(f'{path} cannot be read: there is no such file')
  return VideoFile(path)


class VideoFile(clips.Frames):
  """The frames of a video file, in RGB, as OpenCV decodes them.

  Each clip decodes the file from its beginning, so that frames are exact.
  """

  def __init__(self, path: str):
    self._path = path

  @functools.cached_property
  def _length(self) -> int:
    with self._opened() as file:
      count = int(file.get(cv2.CAP_PROP_FRAME_COUNT))
      if count <= 0:  # the header does not tell
        count = 0
        while file.grab():
          count += 1
      return count

  def __len__(self) -> int:
    return self._length

  def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
    """Returns frames, uint8 [h, w, 3]; see `clips.Frames`."""
    frames: dict[int, np.ndarray] = {}
    distinct_numbers = set(numbers)
    with self._opened() as file:
      for number in range(max(distinct_numbers) + 1):
        if not file.grab():
          break
        if number not in distinct_numbers:
          continue
        good, pixels = file.retrieve()
        if not good:
          raise UserError(
            f'{self._path}: frame {number} cannot be decoded: repair the file,'
            ' or leave it out'
          )
        frames[number] = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
      else:
        return [frames[i] for i in numbers]
      # The file ends at frame `number`.
      if not number or number + _ESTIMATE < len(self):
        raise UserError(
          f'{self._path}: frame {number} of {len(self)} cannot be decoded:'
          ' repair the file, or leave it out'
        )
    if number - 1 not in frames:
      (frames[number - 1],) = self.read([number - 1])
    return [frames[min(i, number - 1)] for i in numbers]

  @contextlib.contextmanager
  def _opened(self) -> Iterator[cv2.VideoCapture]:
    """Opens the file, to be decoded by one thread."""
    # FFmpeg would say on stderr what is raised here.
    os.environ.setdefault('OPENCV_FFMPEG_LOGLEVEL', '-8')
    threads = [cv2.CAP_PROP_N_THREADS, 1]
    try:
      file = cv2.VideoCapture(self._path, cv2.CAP_FFMPEG, threads)
    except (cv2.error, UnicodeError):
      file = cv2.VideoCapture()
    try:
      if not file.isOpened():
        raise UserError(
          f'{self._path} cannot be decoded as a video: repair it, convert it to'
          ' mp4, or leave it out'
        )
      yield file
    finally:
      file.release()


class FolderOfFrames(clips.Frames):
  """The images directly in a folder, in the order of the numbers in names."""

  def __init__(self, path: str):
    """Lists the images."""
    with os.scandir(path) as entries:
      names = [
        x.name
        for x in entries
        if x.name.lower().endswith(folder.ENDINGS) and x.name[0] != '.'
      ]
    if not names:
      raise UserError(f'{path} has no images, which would be frames of a video')
    names.sort(key=_natural)
    self._paths = [os.path.join(path, x) for x in names]

  def __len__(self) -> int:
    return len(self._paths)

  def read(self, numbers: Sequence[int]) -> list[np.ndarray]:
    """Returns frames, uint8 [h, w, 3]; see `clips.Frames`."""
    frames = {}
    for i in set(numbers):
      path = self._paths[i]
      frames[i] = decode.decode(folder.read_image(path), 3, origin=path)
    return [frames[i] for i in numbers]


def _natural(name: str) -> list[tuple[int, str]]:
  """Returns a sort key in which frame 10 comes after frame 9."""
  parts = re.split(r'(\d+)', name)
  return [(int(x), '') if x.isdecimal() else (-1, x) for x in parts]
