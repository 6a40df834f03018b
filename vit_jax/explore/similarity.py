"""Similarity of layers by CKA, linear classification of each, near images.

A function of a model and images has the definition of the function of arrays
that it applies. Several pictures share one forward pass with the latter
(`features.reduced`). A model `vit` is a ViT, hybrid or Mixer; `images` are what
`vit.preprocess` accepts, or its output.

In comments: n images, N tokens (the patches come last), D hidden size, L
layers.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from vit_jax import weights
from vit_jax.config import counted
from vit_jax.config import UserError
from vit_jax.evaluation import knn
from vit_jax.evaluation import linear
from vit_jax.weights import features

_BATCH = 32  # images in a minibatch of CKA
LEAST = 4  # images that the unbiased estimate needs
_PENALTIES = np.logspace(-2, 5, 8)  # tried for the linear classifier


def layer_cka(
  vit: weights.Loaded, images: Any, other_vit: weights.Loaded | None = None
) -> np.ndarray:
  """Returns linear CKA between all pairs of layers, of one model or two.

  This is linear CKA (Kornblith et al., 2019, arXiv:1905.00414, section 3) of
  all tokens of a layer. Unbiased estimates of HSIC are averaged over batches of
  images (minibatch CKA: Nguyen et al., 2020, arXiv:2010.15327), so its expected
  value does not depend on the number of images, but with few it is noisy.

  The result is float32 [L, L'], for the L' layers of the second model, which is
  `vit` itself if there is none. It is at most 1: 1 if one representation is a
  rotation of the other, about 0 if they have nothing in common, nan if one is
  the same for all images. There must be at least 4 images, which `preprocess`
  of both models accepts.
  """
  models = [vit] if other_vit is None else [vit, other_vit]
  inputs = [features.prepared(model, images) for model in models]
  count = len(inputs[0])
  if count < LEAST:
    raise UserError(
      f'CKA of {counted(count, "image")} cannot be estimated: give at least'
      f' {LEAST}'
    )
  terms = []
  for part in np.array_split(np.arange(count), -(-count // _BATCH)):
    grams = [
      features.reduced_array(
        model, x[part], 'tokens', _grams, axis=1, batch_size=len(part)
      )
      for model, x in zip(models, inputs, strict=True)
    ]
    terms.append(_hsic(grams[0], grams[-1]))
  cross, first, second = (
    np.mean(term, axis=0) for term in zip(*terms, strict=True)
  )
  return _ratio(cross, first, second)


def layer_decodability(
  vit: weights.Loaded,
  images: Any,
  labels: Sequence[Any] | np.ndarray,
  test_images: Any,
  test_labels: Sequence[Any] | np.ndarray,
) -> np.ndarray:
  """Returns the accuracy of a linear classifier on each layer, float32 [L].

  It is the `decodability` of the mean over the patch tokens.
  """
  prefix = features.prefix_length(vit)
  x, test_x = (
    features.reduced_array(
      vit, x, 'tokens', lambda x: x[:, :, prefix:].mean(axis=2), axis=1
    )
    for x in (images, test_images)
  )
  return decodability(x, labels, test_x, test_labels)


def nearest_images(
  vit: weights.Loaded, images: Any, gallery: Any = None, count: int = 5
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the nearest neighbours of images, by the input of the head.

  The model may be any. `gallery` are the images to search; None stands for
  `images`, where none is its own neighbour. There are fewer neighbours than
  `count` if there are not so many images.

  Returns:
    Cosine similarity, float32 [B, count], in descending order; and positions in
    `gallery`, int32 [B, count].
  """
  x = features.embeddings(vit, images)
  if gallery is None:
    return knn.nearest_others(x, x, np.arange(len(x)), count)
  return knn.nearest_others(x, features.embeddings(vit, gallery), None, count)


def cka(x: np.ndarray, y: np.ndarray) -> float:
  """Returns unbiased linear CKA of x [n, D] and y [n, D']; see `layer_cka`."""
  return float(layers_cka(np.asarray(x)[None], np.asarray(y)[None])[0, 0])


def layers_cka(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns `layer_cka` of [L, n, ...], such as tokens, and [L', n, ...]."""
  return _ratio(*_hsic(_grams(first), _grams(second)))


def decodability(
  x: np.ndarray,
  labels: Sequence[Any] | np.ndarray,
  test_x: np.ndarray,
  test_labels: Sequence[Any] | np.ndarray,
) -> np.ndarray:
  """Returns the accuracy of a linear classifier on each layer, float32 [L].

  The classifier is a ridge regression of standardised features to the classes
  (-1 or 1), whose penalty is chosen by leave-one-out cross-validation. The
  accuracy is measured on the test features.

  Args:
    x: Training features, [L, n, D].
    labels: Classes of the training features, n numbers or names.
    test_x: Test features, [L, n', D].
    test_labels: Classes of the test features, n'.
  """
  from sklearn import linear_model  # here: it takes a second to import

  y, test_y = _checked(labels, x), _checked(test_labels, test_x)
  if len(np.unique(y)) < 2:
    raise UserError('all labels are equal: a classifier needs two classes')
  if not (np.isfinite(x).all() and np.isfinite(test_x).all()):
    raise UserError('the tokens are not finite: nothing can be read off them')
  accuracies = []
  for train, test in zip(x, test_x, strict=True):
    model = linear_model.RidgeClassifierCV(alphas=_PENALTIES)
    classifier = linear.fit_standardised(model, train, y)
    accuracies.append((linear.predict(classifier, test) == test_y).mean())
  return np.asarray(accuracies, np.float32)


def _checked(labels: Any, x: np.ndarray) -> np.ndarray:
  """Returns labels as an array [n], checked against x [L, n, D]."""
  y = np.asarray(labels)
  if y.shape != x.shape[1:2]:
    raise UserError(
      f'there are {x.shape[1]} images, and labels of shape {y.shape}: give one'
      ' label for each image'
    )
  return y


@jax.jit
def _grams(x: jax.Array) -> jax.Array:
  """Returns Gram matrices [L, n, n] of x [L, n, ...].

  Subtracting the first image reduces rounding errors and does not change HSIC.
  """
  x = (x - x[:, :1]).reshape(*x.shape[:2], -1)
  return x @ x.mT


def _hsic(first: Any, second: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns unbiased HSIC of Gram matrices [L, n, n] and [L', n, n].

  The first array is of all pairs, float64 [L, L']. The others are of each
  matrix with itself, [L] and [L'].
  """
  n = first.shape[-1]
  scale = n * (n - 3)
  x, y = (
    _u_centred(np.asarray(features, np.float64)) for features in (first, second)
  )
  cross = x @ y.T
  return cross / scale, (x**2).sum(axis=1) / scale, (y**2).sum(axis=1) / scale


def _u_centred(gram: np.ndarray) -> np.ndarray:
  """Returns U-centred matrices [L, n * n]; inner products are n (n - 3) HSIC.

  This is the estimate of Song et al., 2012 (JMLR 13), in the form of Székely
  and Rizzo, 2014 (arXiv:1310.2926).
  """
  n = gram.shape[-1]
  off_diagonal = 1 - np.eye(n)  # the diagonal is left out
  gram = gram * off_diagonal
  rows = gram.sum(axis=-1) / (n - 2)
  total = gram.sum(axis=(1, 2))[:, None, None] / ((n - 1) * (n - 2))
  centred = (gram - rows[:, :, None] - rows[:, None, :] + total) * off_diagonal
  return centred.reshape(len(gram), -1)


def _ratio(
  cross: np.ndarray, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
  """Returns CKA, float32 [L, L'], from the results of `_hsic`."""
  scale = np.sqrt(first[:, None] * second)
  missing = np.full_like(cross, np.nan)
  cka = np.divide(cross, scale, out=missing, where=scale > 0)
  return cka.astype(np.float32)
