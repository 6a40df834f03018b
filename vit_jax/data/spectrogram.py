"""Log-mel spectrograms of sounds, as integers of 16 bits.

The settings and steps are AST's (arXiv:2104.01778, section 2.1), which PolyViT
(arXiv:2111.12993) shares: frames of 25 ms every 10 ms, each without its
mean, with a pre-emphasis and a window; energies of triangular mel bands; their
natural logarithm. These are the steps of Kaldi's `fbank`, without dither.

Stored as integers, logarithms in RANGE become 0 to 65,535, in steps of 0.0004.
So a spectrogram is an image of 16 bits with one channel, [T, M, 1]. In
comments: T frames, M bands, S samples.
"""

import functools
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import input_kinds

if TYPE_CHECKING:
  from scipy import sparse  # else imported where it is used: few runs need it

# Natural logarithms that become 0 and the largest integer: of the least energy
# that Kaldi tells from silence, and more than that of a full-scale tone.
RANGE = (-16.0, 12.0)
_MOST = 2**16 - 1
_FLOOR = 1.1920929e-07  # the epsilon of float32
_LOWEST = 20.0  # Hz, the lower end of the first band
_EMPHASIS = 0.97


def from_waveform(waveform: np.ndarray, audio: input_kinds.Audio) -> np.ndarray:
  """Returns the spectrogram of a sound, uint16 [T, M, 1].

  `waveform` is float32 [S], from -1 to 1, at least one window long. Logarithms
  outside RANGE are clipped.
  """
  low, high = RANGE
  scaled = (log_mel(waveform, audio) - low) / (high - low) * _MOST
  return np.clip(np.rint(scaled), 0, _MOST).astype(np.uint16)[..., None]


def log_mel(waveform: np.ndarray, audio: input_kinds.Audio) -> np.ndarray:
  """Returns the logarithms of energies, float32 [T, M], of a waveform [S]."""
  from scipy import fft

  length = audio.window_length
  frames = np.lib.stride_tricks.sliding_window_view(waveform, length)
  frames = frames[:: audio.hop_length].astype(np.float32)  # [T, length]
  frames -= frames.mean(axis=1, keepdims=True)
  frames[:, 1:] -= _EMPHASIS * frames[:, :-1]
  frames[:, 0] *= 1 - _EMPHASIS
  frames *= _window(audio.window, length)
  spectrum = fft.rfft(frames, audio.fft_length)
  power = np.square(spectrum.real) + np.square(spectrum.imag)  # [T, F]
  bands = _bands(audio.mels, audio.fft_length, audio.sample_rate)
  return np.log(np.maximum((bands @ power.T).T, _FLOOR))


def resampled(
  waveform: np.ndarray, rate: int, audio: input_kinds.Audio
) -> np.ndarray:
  """Returns a sound [S] of `rate` Hz with the sample rate of the settings."""
  if rate == audio.sample_rate:
    return waveform
  from scipy import signal

  common = np.gcd(rate, audio.sample_rate)
  up, down = audio.sample_rate // common, rate // common
  return signal.resample_poly(waveform, up, down).astype(np.float32)


def long_enough(
  waveform: np.ndarray, frames: int, audio: input_kinds.Audio, file_name: str
) -> np.ndarray:
  """Returns a sound [S], with silence at its end if it lacks frames."""
  length, needed = len(waveform), audio.samples(frames)
  if length >= needed:
    return waveform
  pads = audio.short == 'pad'
  if length < audio.window_length or audio.short == 'refuse':
    least, parts = needed, f'{frames} frames'
    if pads:
      least, parts = audio.window_length, 'one window'
    hint = '' if pads else ", or set config.data.audio.short='pad'"
    raise UserError(
      f'{file_name} has {length / audio.sample_rate:.3f} s, less than the'
      f' {least / audio.sample_rate:.3f} s of {parts}: leave it out{hint}'
    )
  return np.pad(waveform, (0, needed - length))


@functools.lru_cache(maxsize=8)
def _window(kind: str, length: int) -> np.ndarray:
  from scipy import signal

  return signal.get_window(kind, length, fftbins=False).astype(np.float32)


@functools.lru_cache(maxsize=8)
def _bands(mels: int, fft_length: int, sample_rate: int) -> 'sparse.csr_array':
  """Returns the weights of frequencies in bands, float32 [M, F].

  F is half of the samples of a transform, `fft_length`, and one.
  The bands are triangles over the mel scale, equally wide on it. Most weights
  are 0; a dense product would wake the threads of BLAS for each sound, which
  takes twenty times as long.
  """
  from scipy import sparse

  frequencies = np.arange(fft_length // 2 + 1) * (sample_rate / fft_length)
  edges = np.linspace(_mel(_LOWEST), _mel(sample_rate / 2), mels + 2)
  left, middle, right = (edges[i : mels + i, None] for i in range(3))
  at = _mel(frequencies)
  rising, falling = (
    (at - left) / (middle - left),
    (right - at) / (right - middle),
  )
  weights = np.maximum(0.0, np.minimum(rising, falling))
  return sparse.csr_array(weights.astype(np.float32))


def _mel(frequency: np.ndarray | float) -> np.ndarray:
  """Returns the mel of a frequency in Hz, by Kaldi's formula."""
  return 1127.0 * np.log1p(np.asarray(frequency) / 700.0)
