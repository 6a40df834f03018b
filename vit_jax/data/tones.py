"""Sounds of three tones, labelled by the melody that they make.

The tones have a pitch, a timbre and a length of their own, with noise behind
them, and begin anywhere, so that no frequency and no moment tells the melody.
"""

import dataclasses
from typing import Any
from typing import ClassVar

import ml_collections
import numpy as np

from vit_jax.data import features
from vit_jax.data import made
from vit_jax.data import recordings
from vit_jax.data import spectrogram

# Heights of the three tones of a melody, in intervals.
_MELODIES = {
  'rising': (0, 1, 2),
  'falling': (2, 1, 0),
  'peak': (0, 2, 1),
  'valley': (1, 0, 2),
  'late_peak': (1, 2, 0),
  'late_valley': (2, 0, 1),
}
CLASSES = tuple(_MELODIES)
_SECONDS = 1.0
_PITCH = (250.0, 500.0)  # Hz, of the lowest tone
_INTERVAL = (1.3, 1.6)  # from one height to the next, as a ratio
_LENGTH = (0.14, 0.24)  # seconds of a tone
_GAP = (0.01, 0.05)  # seconds between tones
_LOUDNESS = (0.1, 0.4)
_OVERTONES = 3  # each with a random loudness below that of the one before
_NOISE = 0.01  # standard deviation


class TonesSource(made.MadeSource):
  """The sounds of a split."""

  kind = 'sound'
  sizes: ClassVar = {'train': 6_000, 'test': 1_000}

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    audio = recordings.audio(config)
    samples = round(_SECONDS * audio.sample_rate)
    frames = 1 + (samples - audio.window_length) // audio.hop_length
    self._audio = dataclasses.replace(audio, size=(frames, audio.mels))
    self.features = {'image': self._audio, 'label': features.Label(CLASSES)}
    super().__init__(split, 'tones', self._audio)

  def values(
    self, split: str, row: int, rng: np.random.Generator
  ) -> dict[str, Any]:
    """Returns a spectrogram and the number of its melody."""
    del split
    label = row % len(CLASSES)
    waveform = make(CLASSES[label], self._audio.sample_rate, rng)
    image = spectrogram.from_waveform(waveform, self._audio)
    return {'image': image, 'label': label}


def make(melody: str, rate: int, rng: np.random.Generator) -> np.ndarray:
  """Returns a melody of CLASSES, float32 [S], from -1 to 1; `rate` in Hz."""
  lowest, interval = rng.uniform(*_PITCH), rng.uniform(*_INTERVAL)
  loudness = rng.uniform(*_LOUDNESS)
  timbre = np.cumprod([loudness, *rng.uniform(0, 0.6, _OVERTONES)])
  parts = []
  for height in _MELODIES[melody]:
    pitch = lowest * interval**height * rng.uniform(0.98, 1.02)
    samples = round(rng.uniform(*_LENGTH) * rate)
    parts.append(_tone(pitch, timbre, samples, rate))
    parts.append(np.zeros(round(rng.uniform(*_GAP) * rate)))
  sound = np.concatenate(parts)
  waveform = rng.normal(0, _NOISE, round(_SECONDS * rate))
  start = rng.integers(len(waveform) - len(sound), endpoint=True)
  waveform[start : start + len(sound)] += sound
  return np.clip(waveform, -1, 1).astype(np.float32)


def _tone(
  pitch: float, timbre: np.ndarray, samples: int, rate: int
) -> np.ndarray:
  """Returns a tone that swells and fades, float64 [samples].

  `pitch` is in Hz, and `timbre` the loudness of the tone and its overtones.
  """
  phase = 2 * np.pi * pitch * np.arange(samples) / rate
  waves = [x * np.sin(i * phase) for i, x in enumerate(timbre, 1)]
  return np.sum(waves, axis=0) * np.hanning(samples)
