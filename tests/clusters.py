"""Points whose classes are known, for probes."""

import numpy as np


def make(
  count: int, num_classes: int = 2, spread: float = 0.05, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
  """Returns points around as many centres: float32 [N, 8], int32 [N]."""
  rng = np.random.default_rng(seed)
  labels = np.arange(count, dtype=np.int32) % num_classes
  centres = np.random.default_rng(7).normal(size=(num_classes, 8))
  points = centres[labels] + spread * rng.normal(size=(count, 8))
  return points.astype(np.float32), labels


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns the digits' pixels and labels: 1,200 to learn from, 597 others."""
  from vit_jax.data import digits as digits_lib

  source = digits_lib.DigitsSource('train', 1)
  pixels = source.arrays['image'].reshape(len(source), -1).astype(np.float32)
  labels = source.column('label')
  return pixels[:1200], labels[:1200], pixels[1200:], labels[1200:]
