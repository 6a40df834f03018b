"""The keys of videos and sounds: `config.data` and `config.augment`."""

import ml_collections


def video() -> ml_collections.ConfigDict:
  """Returns the keys `config.data.video`.

  The number of frames of a clip is the first of `config.data.image_size`.
  """
  keys = ml_collections.ConfigDict()
  keys.stride = 1  # every how many frames of a video a clip has one
  # What becomes of a video that is shorter than a clip: 'refuse', or 'pad',
  # which repeats its last frame.
  keys.short = 'refuse'
  return keys


def audio() -> ml_collections.ConfigDict:
  """Returns the keys `config.data.audio`: log-mel spectrograms, as of AST.

  `config.data.image_size` is (frames, mels) of the model's input.
  """
  keys = ml_collections.ConfigDict()
  keys.sample_rate = 16_000  # samples per second
  keys.window = 'hamming'  # or 'hann'
  keys.window_ms = 25.0  # length of the window, in milliseconds
  keys.hop_ms = 10.0  # from one frame to the next
  # Whether files with another sample rate are resampled; False: refused.
  keys.resample = True
  # What becomes of a sound that is shorter than the model's input: 'refuse', or
  # 'pad', which adds silence at its end.
  keys.short = 'pad'
  return keys


def masks() -> ml_collections.ConfigDict:
  """Returns the keys `config.augment.audio`: masks of SpecAugment.

  A mask hides a range of frames or bands of a spectrogram in training. Its
  length is drawn from 0 to the largest, and its place is anywhere.
  """
  keys = ml_collections.ConfigDict()
  keys.time_mask = 0  # most frames of a mask; 0: none
  keys.frequency_mask = 0  # most bands of a mask; 0: none
  keys.masks = 1  # of each kind
  return keys
