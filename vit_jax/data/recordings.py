"""Videos and sounds in folders: `{train,val,test}/<class>/**`.

The folders are those of `folder.py`. A video is a file, or a folder that holds
its frames as images. Shorter and longer ones are together: `input_kinds.py`
says what of them is in a batch.
"""

import math
from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import folder
from vit_jax.data import input_kinds
from vit_jax.data.host import sound_files
from vit_jax.data.host import video_files

_MOST_RATE = 1_000_000  # samples per second


class VideoSource(folder.FolderSource):
  """The videos of a split of a folder, whose frames are read later."""

  kind = folder.Kind('videos', video_files.ENDINGS, in_folders=True)

  def __init__(self, root: str, split: str, video: input_kinds.Video):
    """Lists the files and folders, as `folder.FolderSource`."""
    super().__init__(root, split)
    self.features = {**self.features, 'image': video}

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, split: str
  ) -> base.Source:
    """Opens the videos of a split of a folder."""
    return cls(base.data_path(config.data.name), split, video(config))

  def open(self, path: str) -> Any:
    """Returns the frames of a video, not decoded."""
    return video_files.open_video(path)

  def bits(self) -> int:
    """Returns 8, the bits of a decoded frame."""
    return 8


class AudioSource(folder.FolderSource):
  """The sounds of a split of a folder, as spectrograms."""

  kind = folder.Kind('sounds', sound_files.ENDINGS)

  def __init__(
    self, root: str, split: str, audio: input_kinds.Audio, frames: int
  ):
    """Lists the files, as `folder.FolderSource`.

    Spectrograms have at least `frames` frames.
    """
    super().__init__(root, split)
    self.features = {**self.features, 'image': audio}
    self._audio, self._frames = audio, frames

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, split: str
  ) -> base.Source:
    """Opens the sounds of a split of a folder."""
    frames = config_lib.sides(config.data.image_size)[0]
    root = base.data_path(config.data.name)
    return cls(root, split, audio(config), frames)

  def open(self, path: str) -> Any:
    """Returns the whole spectrogram of a sound, uint16 [T, M, 1]."""
    return sound_files.read(path, self._audio, self._frames)

  def bits(self) -> int:
    """Returns 16, the bits of a spectrogram's values."""
    return 16


def video(config: ml_collections.ConfigDict) -> input_kinds.Video:
  """Returns the feature of videos in files, which may differ in size."""
  data = config.data
  return input_kinds.Video(
    None, data.channels, data.video.stride, data.video.short
  )


def audio(config: ml_collections.ConfigDict) -> input_kinds.Audio:
  """Returns the feature of sounds in files, which may differ in length.

  Raises:
    UserError: The model's input is no spectrogram.
  """
  size = config_lib.sides(config.data.image_size)
  if len(size) != 2:
    raise UserError(
      f'config.data.image_size is {size}, but the examples of'
      f' {config.data.name} are sounds: write (frames, mels) of a spectrogram'
    )
  return input_kinds.Audio(None, mels=size[1], **config.data.audio.to_dict())


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.data.video`, `config.data.audio` and `config.augment.audio`.

  Raises:
    UserError: A value cannot be used.
  """
  config_lib.within(config, 'data.video.stride', '[1, inf)')
  config_lib.check_choice(config, 'data.video.short', input_kinds.SHORT)
  config_lib.check_choice(config, 'data.audio.short', input_kinds.SHORT)
  config_lib.check_choice(config, 'data.audio.window', input_kinds.WINDOWS)
  for key in ('time_mask', 'frequency_mask', 'masks'):
    config_lib.within(config, f'augment.audio.{key}', '[0, inf)')
  audio_config = config.data.audio
  if not 1 <= audio_config.sample_rate <= _MOST_RATE:
    raise UserError(
      f'config.data.audio.sample_rate is {audio_config.sample_rate}: write'
      f' samples per second, from 1 to {_MOST_RATE}'
    )
  for key in ('window_ms', 'hop_ms'):
    samples = audio_config[key] * audio_config.sample_rate / 1000
    if not math.isfinite(samples) or not 2 <= samples <= _MOST_RATE:
      raise UserError(
        f'config.data.audio.{key} is {audio_config[key]}: write milliseconds,'
        f' of at least two samples at {audio_config.sample_rate} per second'
      )
