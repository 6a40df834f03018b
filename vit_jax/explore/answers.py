"""What a model answers, and by what: numbers behind the pictures.

The confusion matrix and the calibration error are `confusion` and
`calibration_error` of `vit_jax.evaluation.report`.

In comments: N images, K classes, D' the width of what the head reads.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.evaluation import report

BINS = 15  # of the confidence
PCA_FIRST = 50  # components that t-SNE starts from
LEAST_POINTS = 5  # of a map
_FEW_POINTS = 200  # up to which t-SNE need not be approximated


class Bin(NamedTuple):
  """The examples whose confidence is in one range.

  Attributes:
    confidence: Mean of them, 0 to 1.
    accuracy: Part of them that is right.
    interval: Of the accuracy, 95% (Wilson), from and to.
    examples: Number of them.
  """

  confidence: float
  accuracy: float
  interval: tuple[float, float]
  examples: int


def class_probabilities(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Returns how probable each class is: the softmax of the logits.

  Args:
    vit: A model with a head.
    images: What `vit.preprocess` takes.

  Returns:
    float64 [N, K], whose rows sum to one.

  Raises:
    UserError: The model has no head, its output is not finite, or an image
      cannot be read.
  """
  if not vit.model.num_classes:
    raise UserError('the model has no head, so it names no classes')
  return softmax(np.asarray(vit.predict(images)))


def softmax(logits: np.ndarray) -> np.ndarray:
  """Returns probabilities, float64 [N, K], of logits [N, K].

  Raises:
    UserError: They are not finite.
  """
  check_finite(logits)
  logits = logits.astype(np.float64)
  shares = np.exp(logits - logits.max(axis=1, keepdims=True))
  return shares / shares.sum(axis=1, keepdims=True)


def check_finite(output: np.ndarray) -> None:
  """Raises a UserError where what a model puts out is not finite."""
  if not np.isfinite(output).all():
    raise UserError('the output of the model is not finite: nothing is seen')


def confident_mistakes(
  predicted: np.ndarray,
  confidence: np.ndarray,
  labels: Sequence[int] | np.ndarray,
) -> np.ndarray:
  """Returns which answers are wrong, those given with most confidence first.

  Args:
    predicted: Most probable classes, int [N].
    confidence: Their probabilities, float [N].
    labels: The right classes, int [N].

  Returns:
    Positions, int64 [number of mistakes].
  """
  wrong = np.flatnonzero(np.asarray(predicted) != np.asarray(labels))
  order = np.argsort(-np.asarray(confidence)[wrong], kind='stable')
  return wrong[order]


def reliability_bins(confidence: np.ndarray, right: np.ndarray) -> list[Bin]:
  """Returns the ranges of confidence that have examples.

  They are 15 of equal width, as of `calibration_error` (arXiv:1706.04599).

  Args:
    confidence: Probability of what is predicted, float [N], 0 to 1.
    right: Whether that is right, bool [N].
  """
  numbers = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
  bins = []
  for number in np.unique(numbers):
    members = numbers == number
    count, correct = int(members.sum()), int(right[members].sum())
    bins.append(
      Bin(
        float(confidence[members].mean()),
        correct / count,
        report.wilson(correct, count),
        count,
      )
    )
  return bins


def embedding_map(embeddings: np.ndarray, method: str = 'pca') -> np.ndarray:
  """Returns embeddings as points of a plane.

  Args:
    embeddings: What `vit_jax.embeddings` returns, [N, D'], N at least 5.
    method: 'pca', the plane of the two components of most variance, in the
      units of the embeddings; or 'tsne' (van der Maaten and Hinton, 2008) of
      the first 50 components, whose distances have no unit.

  Returns:
    float64 [N, 2].

  Raises:
    UserError: There is no such method, embeddings are too few, not finite, or
      all equal.
  """
  if method not in ('pca', 'tsne'):
    raise UserError(f"method is {method!r}: choose 'pca' or 'tsne'")
  components, _ = principal_components(embeddings)
  return components[:, :2] if method == 'pca' else tsne(components)


def principal_components(
  embeddings: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns embeddings by their principal components.

  Args:
    embeddings: [N, D'].

  Returns:
    Components, float64 [N, C], the one of most variance first, C being 50 or
    as many as there are, at least 2; and the part of the variance that each
    has, float64 [C].

  Raises:
    UserError: As `embedding_map`.
  """
  from sklearn import decomposition  # here: it takes a second to import

  x = np.asarray(embeddings, np.float64)
  if x.ndim != 2 or len(x) < LEAST_POINTS:
    raise UserError(
      f'embeddings have the shape {x.shape}: a map needs [N, D] of at least'
      f' {LEAST_POINTS} images'
    )
  check_finite(x)
  if (x == x[0]).all():
    raise UserError('all embeddings are equal: there is no map of them')
  pca = decomposition.PCA(min(PCA_FIRST, *x.shape), svd_solver='full')
  components, parts = pca.fit_transform(x), pca.explained_variance_ratio_
  if len(parts) == 1:  # of a single feature
    components = np.pad(components, [(0, 0), (0, 1)])
    parts = np.pad(parts, (0, 1))
  return components, parts


def tsne(components: np.ndarray) -> np.ndarray:
  """Returns points of a plane, float64 [N, 2], by t-SNE.

  Args:
    components: Of `principal_components`, [N, C].
  """
  from sklearn import manifold

  method = 'exact' if len(components) <= _FEW_POINTS else 'barnes_hut'
  found = manifold.TSNE(
    perplexity=min(30.0, (len(components) - 1) / 3),
    init='pca',
    random_state=0,
    method=method,
  ).fit_transform(components)
  return np.asarray(found, np.float64)
