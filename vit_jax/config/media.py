"""The keys of videos and sounds: `config.data` and `config.augment`."""

import ml_collections


def video() -> ml_collections.ConfigDict:
  """Returns the keys `config.data.video`.

  The number of frames of a clip is the first of `config.data.image_size`.
  """
  keys = ml_collections.ConfigDict()
  # The frames of a clip are this many frames of the video apart.
  keys.stride = 1
  # What happens to a video that is shorter than a clip. 'refuse': an error.
  # 'pad': its last frame is repeated.
  keys.short = 'refuse'
  return keys


def audio() -> ml_collections.ConfigDict:
  """Returns the keys `config.data.audio`: log-mel spectrograms, as of AST.

  `config.data.image_size` is (frames, mels) of the model's input.
  """
  keys = ml_collections.ConfigDict()
  # Samples per second.
  keys.sample_rate = 16_000
  # Window function of the spectrogram: 'hamming' or 'hann'.
  keys.window = 'hamming'
  # Length of the window in milliseconds.
  keys.window_ms = 25.0
  # Time between two frames of the spectrogram, in milliseconds.
  keys.hop_ms = 10.0
  # Whether files with another sample rate are resampled. False: they are an
  # error.
  keys.resample = True
  # What happens to a sound that is shorter than the model's input. 'refuse': an
  # error. 'pad': silence is added at its end.
  keys.short = 'pad'
  return keys


def masks() -> ml_collections.ConfigDict:
  """Returns the keys `config.augment.audio`: masks of SpecAugment.

  A mask hides a range of frames or bands of a spectrogram in training. Its
  length is drawn from 0 to the largest, and its place is anywhere.
  """
  keys = ml_collections.ConfigDict()
  # SpecAugment: the largest number of frames that a mask hides. 0: no masks.
  keys.time_mask = 0
  # SpecAugment: the largest number of mel bands that a mask hides. 0: no masks.
  keys.frequency_mask = 0
  # SpecAugment: the number of masks in time, and that in frequency.
  keys.masks = 1
  return keys
