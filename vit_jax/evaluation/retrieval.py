"""Retrieval: whether the right items are among the k most similar ones.

Recall at k is the share of the queries with at least one of their own items
among the k nearest (arXiv:2102.05918, section 4.2). The earlier of two equally
similar items counts as nearer.
"""

from collections.abc import Sequence

import numpy as np

AT = (1, 5, 10)


def ranks(similarity: np.ndarray, is_own: np.ndarray) -> np.ndarray:
  """Returns the rank of each query's nearest own item, from 0, int [queries].

  Args:
    similarity: [queries, items].
    is_own: bool [queries, items], whether an item belongs to a query; each
      query has at least one.
  """
  order = np.argsort(-similarity, axis=1, kind='stable')
  return np.take_along_axis(is_own, order, axis=1).argmax(axis=1)


def recalls(
  similarity: np.ndarray, is_own: np.ndarray, at: Sequence[int] = AT
) -> np.ndarray:
  """Returns the recall at each k, float64 [len(at)]; arguments as `ranks`."""
  found = ranks(similarity, is_own)
  return np.array([(found < k).mean() for k in at])


def both_ways(
  similarity: np.ndarray, image_of_text: np.ndarray, at: Sequence[int] = AT
) -> dict[str, float]:
  """Returns the recalls of texts by images, and of images by texts.

  Args:
    similarity: [images, texts].
    image_of_text: Image that each text describes, int [texts]; an image may
      have several texts.
    at: Values of k.

  Returns:
    'image_to_text@1', ..., 'text_to_image@10'.
  """
  is_own = np.arange(len(similarity))[:, None] == image_of_text
  ways = {
    'image_to_text': recalls(similarity, is_own, at),
    'text_to_image': recalls(similarity.T, is_own.T, at),
  }
  return {
    f'{way}@{k}': float(x)
    for way, found in ways.items()
    for k, x in zip(at, found, strict=True)
  }
