"""Numbers behind the pictures of predictions and embeddings.

For the confusion matrix, the calibration error and its bins, see
`vit_jax.evaluation`.

In comments: N images, K classes, D' the width of the head's input.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data import target_kinds
from vit_jax.evaluation import predictions as evaluation_predictions
from vit_jax.explore.components import principal_components

PCA_FIRST = 50  # number of components that t-SNE starts from
LEAST_POINTS = 5  # minimum number of images in an embedding map
_FEW_POINTS = 200  # maximum number for which exact t-SNE is fast enough


def class_probabilities(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Returns the probability of each class: the softmax of the logits.

  The probabilities of N images and K classes are float64 [N, K]. Their rows sum
  to one. `images` are the input of `vit.preprocess`.
  """
  if not vit.model.num_classes:
    raise UserError('the model has no head, so it names no classes')
  return softmax(np.asarray(vit.predict(images)))


def probabilities(vit: weights.Loaded, logits: np.ndarray) -> np.ndarray:
  """Returns probabilities by what a model predicts, float64 [N, K].

  The probabilities of a multi-label model are independent: rows do not sum to
  one. `logits` are the output of the model, [N, K].
  """
  target = vit.target
  if isinstance(target, target_kinds.Number):
    raise UserError(
      'the model predicts numbers, which have no probabilities: see those that'
      ' vit_jax.predict prints'
    )
  if isinstance(target, target_kinds.MultiLabel):
    check_finite(logits)
    head = evaluation_predictions.Head.from_loaded(vit, top=1)
    return np.asarray(head.values(jnp.asarray(logits)), np.float64)
  return softmax(logits)


def softmax(logits: np.ndarray) -> np.ndarray:
  """Returns probabilities, float64 [N, K], of finite logits [N, K]."""
  check_finite(logits)
  logits = logits.astype(np.float64)
  shares = np.exp(logits - logits.max(axis=1, keepdims=True))
  return shares / shares.sum(axis=1, keepdims=True)


def check_finite(output: np.ndarray) -> None:
  """Raises a UserError if the output of a model is not finite."""
  if not np.isfinite(output).all():
    raise UserError(
      'the output of the model is not finite: there is nothing to show'
    )


def confident_mistakes(
  predicted: np.ndarray,
  confidence: np.ndarray,
  labels: Sequence[int] | np.ndarray,
) -> np.ndarray:
  """Returns positions of the wrong predictions, the most confident ones first.

  `predicted` are the classes of N images, `confidence` their probabilities, and
  `labels` the true classes. Each array is [N].
  """
  wrong = np.flatnonzero(np.asarray(predicted) != np.asarray(labels))
  order = np.argsort(-np.asarray(confidence)[wrong], kind='stable')
  return wrong[order]


def embedding_map(embeddings: np.ndarray, method: str = 'pca') -> np.ndarray:
  """Projects embeddings onto a plane; returns points, float64 [N, 2].

  Args:
    embeddings: Embeddings of N images from `vit_jax.embeddings`, [N, D'], where
      N is at least 5.
    method: 'pca', the two components with the largest variance, in the units of
      the embeddings; or 'tsne' (van der Maaten and Hinton, 2008) of the first
      50 components, whose distances have no unit.
  """
  if method not in ('pca', 'tsne'):
    raise UserError(f"method is {method!r}: choose 'pca' or 'tsne'")
  components, _ = embedding_components(embeddings)
  return components[:, :2] if method == 'pca' else tsne(components)


def embedding_components(
  embeddings: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the principal components of embeddings [N, D'], and their shares.

  The components are float64 [N, C], by descending variance, where C is between
  2 and 50. Their shares are the fraction of the variance that each explains,
  float64 [C].
  """
  x = np.asarray(embeddings, np.float64)
  if x.ndim != 2 or len(x) < LEAST_POINTS:
    raise UserError(
      f'embeddings have the shape {x.shape}: a map needs [N, D] of at least'
      f' {LEAST_POINTS} images'
    )
  check_finite(x)
  if (x == x[0]).all():
    raise UserError('all embeddings are equal: there is no map of them')
  _, points, shares = principal_components(x, PCA_FIRST)
  if len(shares) == 1:  # the embeddings have one feature
    points, shares = np.pad(points, [(0, 0), (0, 1)]), np.pad(shares, (0, 1))
  return points, shares


def tsne(components: np.ndarray) -> np.ndarray:
  """Returns components [N, C] as points by t-SNE, float64 [N, 2]."""
  from sklearn import manifold

  method = 'exact' if len(components) <= _FEW_POINTS else 'barnes_hut'
  points = manifold.TSNE(
    perplexity=min(30.0, (len(components) - 1) / 3),
    init='pca',
    random_state=0,
    method=method,
  ).fit_transform(components)
  return np.asarray(points, np.float64)
