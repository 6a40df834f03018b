"""Masks of blocks, compared with a sample of another implementation."""

import math

import golden_cases
import jax
import numpy as np

from vit_jax.objectives import block_masks

_SIGMAS = 5  # standard errors of the difference of two samples


def compare(
  case: golden_cases.Case, masks: block_masks.BlockMasks
) -> dict[str, golden_cases.Judged]:
  """Draws as many masks as a case, and compares their statistics."""
  key = jax.random.key(case.fields['seed'])
  drawn = masks.draw(jax.random.split(key, case.fields['draws']))
  mask, count = np.asarray(drawn.mask), np.asarray(drawn.num_blocks)
  blocks = np.asarray(drawn.blocks)
  blocks = blocks[np.arange(blocks.shape[1]) < count[:, None]]
  samples = {
    'num_masked': mask.sum(axis=(1, 2)),
    'blocks_per_mask': count,
    'block_area': blocks[:, 2] * blocks[:, 3],
    'block_new': blocks[:, 4],
    'block_height': blocks[:, 2],
    'block_width': blocks[:, 3],
  }
  return {
    name: _compared(name, expected, samples, mask)
    for name, expected in case.expected.items()
    if name == 'coverage' or name.rpartition('_')[0] in samples
  }


def _compared(
  name: str,
  expected: np.ndarray,
  samples: dict[str, np.ndarray],
  mask: np.ndarray,
) -> golden_cases.Judged:
  """Returns how far a statistic is from that of another sample.

  Both samples have about as many values. Differences of fractions and moments
  are in their standard errors.
  """
  if name == 'coverage':
    return _fractions(mask.mean(axis=0), expected, len(mask))
  quantity, _, statistic = name.rpartition('_')
  x = samples[quantity].astype(np.float64)
  if statistic == 'hist':
    counts = np.bincount(samples[quantity], minlength=expected.size)
    if len(counts) > expected.size:
      return golden_cases.Judged(math.inf, 0.0)
    total = max(int(expected.sum()), 1)
    return _fractions(counts / len(x), expected / total, min(len(x), total))
  if statistic in ('min', 'max'):
    return _extremes(x, float(expected), statistic)
  spread = abs(x - x.mean())
  if statistic == 'mean':
    estimate, error = x.mean(), x.std()
  else:
    # Of the standard deviation, by the variance of the squares.
    estimate, error = x.std(), (spread**2).std() / (2 * x.std())
  error *= math.sqrt(2 / len(x))
  return golden_cases.Judged(abs(estimate - float(expected)) / error, _SIGMAS)


def _fractions(
  fractions: np.ndarray, expected: np.ndarray, count: int
) -> golden_cases.Judged:
  """Compares fractions of two samples of `count` values each."""
  p = (fractions + expected) / 2
  error = np.sqrt(2 * p * (1 - p) / count)
  # A handful of values that the other sample lacks is no difference.
  error = np.maximum(error, 1 / count)
  return golden_cases.Judged((abs(fractions - expected) / error).max(), _SIGMAS)


def _extremes(
  x: np.ndarray, expected: float, extreme: str
) -> golden_cases.Judged:
  """Compares extremes: few values of a sample are beyond the other's.

  Of two samples of one distribution, each value that is the most extreme of
  both is as likely in one as in the other: k values of one beyond all of the
  other have the probability 2^-k.
  """
  beyond = x < expected if extreme == 'min' else x > expected
  ordered = np.sort(x) if extreme == 'min' else -np.sort(-x)
  sign = 1 if extreme == 'min' else -1
  # The other extreme shall not be far beyond this sample's own tail.
  tail = abs(ordered[min(20, len(x) - 1)] - ordered[0])
  excess = max(0.0, sign * (ordered[0] - expected))
  too_far = excess > 2 * max(tail, 1.0)
  return golden_cases.Judged(
    float(beyond.sum()) if not too_far else math.inf, 20
  )
