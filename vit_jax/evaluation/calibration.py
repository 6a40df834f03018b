"""Calibration: confidence against accuracy, in bins (arXiv:1706.04599)."""

from typing import NamedTuple

import numpy as np

from vit_jax.evaluation import intervals

BINS = 15  # of equal width, as in the paper


class Bin(NamedTuple):
  """The examples whose confidence is in one range."""

  confidence: float  # their mean confidence, 0 to 1
  accuracy: float  # fraction that is classified correctly
  interval: tuple[float, float]  # 95% interval of the accuracy (Wilson)
  examples: int  # number of examples


def bin_numbers(confidence: np.ndarray) -> np.ndarray:
  """Returns the bins of confidences, int [N].

  Bin m is (m / BINS, (m + 1) / BINS].
  """
  return np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
  """Returns the expected calibration error over 15 bins of equal width.

  That is the difference between accuracy and mean confidence in each bin,
  averaged over the examples (arXiv:1706.04599, equation 3). `confidence` is the
  probability of the predicted class, float [N], and `correct` bool [N].
  """
  gaps = correct.astype(np.float64) - confidence
  sums = np.bincount(bin_numbers(confidence), gaps, BINS)
  return float(np.abs(sums).sum() / len(confidence))


def reliability_bins(confidence: np.ndarray, right: np.ndarray) -> list[Bin]:
  """Returns the bins of `calibration_error` that contain examples."""
  numbers = bin_numbers(confidence)
  bins = []
  for number in np.unique(numbers):
    members = numbers == number
    count, correct = int(members.sum()), int(right[members].sum())
    mean = float(confidence[members].mean())
    interval = intervals.wilson(correct, count)
    bins.append(Bin(mean, correct / count, interval, count))
  return bins
