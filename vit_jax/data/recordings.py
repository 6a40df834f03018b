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
from vit_jax.data import folder
from vit_jax.data import input_kinds
from vit_jax.data.host import sound_files
from vit_jax.data.host import video_files

_MOST_RATE = 1_000_000  # samples per second


class VideoSource(folder.FolderSource):
  """The videos of a split of a folder, whose frames are read later."""

  kind = folder.Kind('videos', video_files.ENDINGS, in_folders=True)

  def _image(self, config: ml_collections.ConfigDict) -> input_kinds.Video:
    channels, video = config.data.channels, config.data.video
    return input_kinds.Video(None, channels, video.stride, video.short)

  def open(self, path: str) -> Any:
    """Returns the frames of a video, not decoded."""
    return video_files.open_video(path)

  def bits(self) -> int:
    """Returns 8, the bits of a decoded frame."""
    return 8


class AudioSource(folder.FolderSource):
  """The sounds of a split of a folder, as spectrograms."""

  kind = folder.Kind('sounds', sound_files.ENDINGS)

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    """Lists the files, as `folder.FolderSource` does.

    A spectrogram has at least the `frames` of the model's input. A file that
    cannot be read raises a UserError when its example is read.
    """
    self._audio = audio(config)
    self._frames = config_lib.sides(config.data.image_size)[0]
    super().__init__(config, split)

  def _image(self, config: ml_collections.ConfigDict) -> input_kinds.Audio:
    return self._audio

  def open(self, path: str) -> Any:
    """Returns the whole spectrogram of a sound, uint16 [T, M, 1]."""
    return sound_files.read(path, self._audio, self._frames)

  def bits(self) -> int:
    """Returns 16, the bits of a spectrogram's values."""
    return 16


def audio(config: ml_collections.ConfigDict) -> input_kinds.Audio:
  """Returns the feature of sounds in files, which may differ in length."""
  size = config_lib.sides(config.data.image_size)
  if len(size) != 2:
    raise UserError(
      f'config.data.image_size is {size}, but the examples of'
      f' {config.data.name} are sounds: write (frames, mels) of a spectrogram'
    )
  return input_kinds.Audio(None, mels=size[1], **config.data.audio.to_dict())


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `data.video`, `data.audio` and `augment.audio`."""
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
