"""Videos and sounds that a user gives to a model."""

import os
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import given
from vit_jax.data import input_kinds
from vit_jax.data import spectrogram
from vit_jax.data.host import clips
from vit_jax.data.host import sound_files
from vit_jax.data.host import video_files
from vit_jax.data.preprocess import Preprocess


def pixels(preprocess: Preprocess, images: Any) -> np.ndarray:
  """Returns clips of videos, or parts of spectrograms, as evaluation cuts them.

  They are uint8 or uint16 [B, T, H, W, C], or [B, T, M, 1]. `images` is a video
  or sound, or a sequence of them: each is a path, or an array, uint8
  [T, h, w, C] of a video or float32 [S] of a waveform with the model's sample
  rate.
  """
  crop, channels = preprocess.crop, preprocess.channels
  cut = clips.Cutter(preprocess.input, crop, channels, preprocess.levels)
  is_video = isinstance(cut.kind, input_kinds.Video)
  inputs = []
  for i, image in enumerate(given.as_sequence(images, 4 if is_video else 1)):
    input_name = os.fspath(image) if given.is_path(image) else f'input {i}'
    if isinstance(cut.kind, input_kinds.Audio):
      image = _spectrogram(image, cut.kind, cut.crop.size[0], input_name)
    elif given.is_path(image):
      image = video_files.open_video(input_name)
    elif np.ndim(image) != 4 or np.asarray(image).dtype != np.uint8:
      raise UserError(
        f'{input_name} is no video: give a path, or uint8 [T, h, w, C]'
      )
    inputs.append(cut(image, None, input_name))
  if not inputs:
    raise UserError('there is nothing to predict')
  return np.stack(inputs)


def _spectrogram(
  sound: Any, audio: input_kinds.Audio, frames: int, sound_name: str
) -> np.ndarray:
  """Returns the spectrogram of a path or a waveform, uint16 [T, M, 1]."""
  if given.is_path(sound):
    return sound_files.read(sound_name, audio, frames)
  waveform = np.asarray(sound)
  if waveform.ndim != 1 or waveform.dtype != np.float32:
    raise UserError(
      f'{sound_name} is no sound: give a path, or float32 [samples], from -1 to'
      ' 1'
    )
  waveform = spectrogram.long_enough(waveform, frames, audio, sound_name)
  return spectrogram.from_waveform(waveform, audio)
