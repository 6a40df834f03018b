"""Nearest neighbours of vectors, and classification by their votes.

The k training examples with the largest cosine similarity s vote for their
classes with weights exp(s / temperature), as in instance discrimination
(arXiv:1805.01978, section 3.4) and DINO (arXiv:2104.14294, section 3.2). The
temperature and k = 20 come from DINO's code (`eval_knn.py`). scikit-learn's
KNeighborsClassifier could do the same, but only on the host; here similarities
are computed on the device, in blocks.

In comments: N training examples, M others, D the size of an embedding.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Annotated

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax.config import counted
from vit_jax.config import options
from vit_jax.evaluation import base
from vit_jax.evaluation import embedded
from vit_jax.evaluation import probes

TEMPERATURE = 0.07

# Numbers of examples that are compared at a time: similarities take 128 MiB.
_TRAIN, _TEST = 2**15, 2**10
# Stands for nan while neighbours are compared; -inf is a place without one.
_NAN = np.finfo(np.float32).min


class Knn(probes.Probe):
  """Accuracy of the nearest neighbours' votes."""

  metrics: Mapping[str, str] = {'accuracy': 'max', 'examples': 'max'}

  def __init__(
    self,
    spec: ml_collections.ConfigDict,
    train_split: str,
    features: str = 'head',
    k: Annotated[int, options.Interval('[1, inf)')] = 20,
  ):
    """Takes the options of a probe, and the number of neighbours that vote."""
    super().__init__(spec, train_split, features)
    self.k = k

  def check_count(self, images: int, classes: int = 0) -> None:
    """Checks that there are at least k images to learn from."""
    del classes
    if images < self.k:
      raise base.EvaluationError(
        f'{self.train_split!r} has {counted(images, "image")}, fewer'
        f' than the {self.k} neighbours that vote: give a larger'
        ' train_split, or a smaller k'
      )

  def measure(
    self,
    train: embedded.Embedded,
    test: embedded.Embedded,
    after_block: Callable[[], object],
  ) -> base.Scalars:
    """Classifies the test examples by their nearest training examples."""
    classes = predict(
      train.features,
      train.labels,
      test.features,
      self.k,
      after_block=after_block,
    )
    return {'accuracy': probes.accuracy(classes, test)}


def predict(
  train: np.ndarray,
  train_labels: np.ndarray,
  test: np.ndarray,
  k: int,
  temperature: float = TEMPERATURE,
  after_block: Callable[[], object] = lambda: None,
) -> np.ndarray:
  """Returns the classes that the k nearest neighbours vote for, int32 [M].

  The arrays are [N, D], [N] and [M, D]; k is at most N. `temperature` is that
  of `vote`. `after_block` is called between the parts of the work.
  """
  similarity, neighbors = nearest(train, test, k, after_block)
  labels = train_labels[neighbors]
  num_classes = int(train_labels.max()) + 1
  result = np.empty(len(test), np.int32)
  for start in range(0, len(test), _TEST):
    rows = slice(start, start + _TEST)
    scores = vote(similarity[rows], labels[rows], num_classes, temperature)
    result[rows] = scores.argmax(axis=1)
  return result


def vote(
  similarity: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  temperature: float = TEMPERATURE,
) -> np.ndarray:
  """Returns the sums of the neighbours' votes, float64 [M, classes].

  The neighbours have cosine similarities, the largest first, and labels, [M, k]
  each. The nearest one's weight is 1. A lower `temperature` makes other
  weights smaller.
  """
  similarity = similarity.astype(np.float64)
  weights = np.exp((similarity - similarity[:, :1]) / temperature)
  scores = np.zeros((len(labels), num_classes))
  np.add.at(scores, (np.arange(len(labels))[:, None], labels), weights)
  return scores


def nearest(
  train: np.ndarray,
  test: np.ndarray,
  k: int,
  after_block: Callable[[], object] = lambda: None,
  cosine: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the nearest neighbours exactly, on the default device.

  Args:
    train: float [N, D].
    test: float [M, D].
    k: Neighbours, at most N.
    after_block: Called between the parts of the work.
    cosine: Whether vectors are normalised, so that the similarity is their
      cosine; otherwise it is their inner product.

  Returns:
    float32 [M, k], the largest similarities in descending order; and int32
    [M, k], their positions in `train`. Ties are in the order of `train`. A
    similarity that is not a number, nan, comes after all others.
  """
  # The least norm of `normalised` is 0 in float16.
  train, test = (np.asarray(x, np.float32) for x in (train, test))
  if cosine:
    train, test = embedded.normalised(train), embedded.normalised(test)
  similarity = np.full((len(test), k), -np.inf, np.float32)
  neighbors = np.zeros((len(test), k), np.int32)
  for first in range(0, len(train), _TRAIN):
    block = jnp.asarray(train[first : first + _TRAIN])
    for start in range(0, len(test), _TEST):
      rows = slice(start, start + _TEST)
      similarity[rows], neighbors[rows] = jax.device_get(
        _merge(test[rows], block, first, similarity[rows], neighbors[rows])
      )
      after_block()
  return np.where(similarity == _NAN, np.nan, similarity), neighbors


@jax.jit
def _merge(
  test: jax.Array,
  train: jax.Array,
  first: int,
  similarity: jax.Array,
  neighbors: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Merges a block of the training examples into the nearest neighbours.

  `test` is [m, D], and `train` the block, [n, D], whose first example has the
  position `first`. `similarity` and `neighbors`, [m, k], are of the nearest
  neighbours so far; both are returned with the block's.
  """
  k = similarity.shape[1]
  block = jnp.matmul(test, train.T, precision=jax.lax.Precision.HIGHEST)
  # top_k takes nan for the largest number.
  block = jnp.where(jnp.isnan(block), _NAN, block)
  block, places = jax.lax.top_k(block, min(k, len(train)))
  candidates = jnp.concatenate([similarity, block], axis=1)
  places = jnp.concatenate([neighbors, first + places], axis=1)
  best, chosen = jax.lax.top_k(candidates, k)
  return best, jnp.take_along_axis(places, chosen, axis=1)


def nearest_others(
  x: np.ndarray, gallery: np.ndarray, positions: np.ndarray | None, k: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns what `nearest` does of x [M, D], but none is its own neighbour.

  `positions`, int [M], say where the vectors are in the gallery [N, D]; None:
  they are not in it. There are fewer than k neighbours if N is not so large.
  """
  if positions is None:
    return nearest(gallery, x, min(k, len(gallery)))
  k = min(k, len(gallery) - 1)
  similarity, neighbors = nearest(gallery, x, k + 1)
  # Others may be as near as the vector itself, and come before it.
  is_self = neighbors == positions[:, None]
  is_self[~is_self.any(axis=1), -1] = True
  shape = len(x), k
  return similarity[~is_self].reshape(shape), neighbors[~is_self].reshape(shape)
