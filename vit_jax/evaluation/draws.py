"""Random examples of each class."""

import numpy as np


def draw(labels: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
  """Draws examples of each class.

  With the same seed, larger counts include the examples of smaller counts.

  labels: int [N], each below K.
  counts: int [K], number of examples to draw from each class; all of a class
  with fewer examples.
  Positions of the examples, grouped by class.
  """
  order = np.random.default_rng(seed).permutation(len(labels))
  order = order[np.argsort(labels[order], kind='stable')]
  grouped = labels[order]
  place = np.arange(len(labels)) - np.searchsorted(grouped, grouped)
  return order[place < counts[grouped]]
