"""Waveforms of sounds in files."""

import re

import numpy as np

from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.data import input_kinds
from vit_jax.data import spectrogram
from vit_jax.runs import safe_io

# What libsndfile logs of a WAV that is shorter than its header says. It says
# nothing of an RF64 or W64, and refuses a FLAC or OGG by itself.
_CUT = re.compile(r'^data : (\d+) \(should be (\d+)\)', re.MULTILINE)
# Programs that write into pipes, and cannot know the size, name one from here.
_STREAM = 0x7FFF0000

ENDINGS = tuple('.wav .flac .ogg .mp3'.split())


def read(path: str, audio: input_kinds.Audio, frames: int) -> np.ndarray:
  """Returns the spectrogram of a file, uint16 [T, M, 1].

  Several channels are averaged. A sound of fewer `frames` gets silence at its
  end, or is refused.
  """
  try:
    import soundfile
  except (ImportError, OSError):  # the latter without its C library
    raise UserError(
      f"{path}: sounds need soundfile: run pip install -e '.[audio]'"
    ) from None
  try:
    with safe_io.open_regular(path) as file:
      with soundfile.SoundFile(file) as sound:
        waveform = sound.read(dtype='float32', always_2d=True)
        rate, log = sound.samplerate, sound.extra_info
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror}') from None
  # A damaged header may name more samples than memory holds.
  except (soundfile.SoundFileError, RuntimeError, MemoryError) as e:
    raise UserError(
      f'{path} cannot be decoded as a sound ({one_line(e)}): repair it, or'
      ' leave it out'
    ) from None
  cut = _CUT.search(log)
  if cut and int(cut[2]) < int(cut[1]) < _STREAM:
    raise UserError(
      f'{path} ends after {cut[2]} of {cut[1]} bytes of its sound: repair it,'
      ' or leave it out'
    )
  if rate != audio.sample_rate and not audio.resample:
    raise UserError(
      f'{path} has {rate} samples per second, but'
      f' config.data.audio.sample_rate is {audio.sample_rate}: convert it, or'
      ' set config.data.audio.resample=True'
    )
  mono = waveform.mean(axis=1)
  if not np.isfinite(mono).all():
    raise UserError(f'{path} has samples that are not finite: leave it out')
  mono = spectrogram.resampled(mono, rate, audio)
  mono = spectrogram.long_enough(mono, frames, audio, path)
  return spectrogram.from_waveform(mono, audio)
