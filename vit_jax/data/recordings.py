"""Videos and sounds in folders: `{train,val,test}/<class>/**`.

The folders are as in `folder.py`. A video is a file, or a folder that holds its
frames as images. Shorter and longer ones are together: `input_kinds.py`
says what of them is in a batch.
"""

import math

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


class AudioSource(folder.FolderSource):
  """The sounds of a split of a folder, as spectrograms."""

  kind = folder.Kind('sounds', sound_files.ENDINGS)

  def _image(self, config: ml_collections.ConfigDict) -> input_kinds.Audio:
    return audio(config)


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
