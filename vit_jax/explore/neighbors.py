"""Nearest neighbours of images in the space of a model's features.

In comments: B images, N other images, D' the width of the head's input.
"""

from typing import Any

import numpy as np

from vit_jax import weights
from vit_jax.evaluation import knn
from vit_jax.weights import features


def nearest_images(
  vit: weights.Loaded, images: Any, gallery: Any = None, count: int = 5
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the nearest neighbours of images, by the input of the head.

  gallery: The images to search, in the same form; None: `images`, where none is
  its own neighbour.
  Cosine similarity, float32 [B, count], in descending order; and positions in
  `gallery`, int32 [B, count].
  """
  x = features.embeddings(vit, images)
  if gallery is None:
    return nearest(x, x, np.arange(len(x)), count)
  return nearest(x, features.embeddings(vit, gallery), None, count)


def nearest(
  x: np.ndarray, gallery: np.ndarray, positions: np.ndarray | None, count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the nearest neighbours of vectors; see `nearest_images`.

  x: float32 [B, D'].
  gallery: float32 [N, D'].
  positions: Positions of `x` in `gallery`, [B], which are left out; None: it
  has none there.
  """
  if positions is None:
    return knn.nearest(gallery, x, min(count, len(gallery)))
  count = min(count, len(gallery) - 1)
  similarity, neighbors = knn.nearest(gallery, x, count + 1)
  # Others may be as near as the vector itself, and come before it.
  is_own = neighbors == positions[:, None]
  is_own[~is_own.any(axis=1), -1] = True
  shape = len(x), count
  return similarity[~is_own].reshape(shape), neighbors[~is_own].reshape(shape)
