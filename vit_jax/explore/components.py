"""Principal components: of tokens, of embeddings, and of filters."""

from typing import NamedTuple

import numpy as np


class Components(NamedTuple):
  """The first C principal components of n vectors, by descending variance."""

  # Directions of unit length, float64 [C, D]. Their largest weight is positive.
  directions: np.ndarray
  points: np.ndarray  # the vectors along the directions, float64 [n, C]
  shares: np.ndarray  # shares of the variance, float64 [C]; 0 without variance


def principal_components(vectors: np.ndarray, most: int) -> Components:
  """Returns at most `most` components of vectors [n, D]."""
  x = np.asarray(vectors, np.float64)
  x = x - x.mean(axis=0)
  if len(x) > x.shape[1]:  # the covariance is smaller than the data
    variances, columns = np.linalg.eigh(x.T @ x)
    variances, directions = np.maximum(variances[::-1], 0), columns.T[::-1]
  else:
    _, deviations, directions = np.linalg.svd(x, full_matrices=False)
    variances = deviations**2
  directions = directions[:most]
  largest = np.abs(directions).argmax(axis=1)
  signs = np.sign(directions[np.arange(len(directions)), largest])
  directions = directions * signs[:, None]
  shares = variances[:most] / (variances.sum() or 1)
  return Components(directions, x @ directions.T, shares)
