"""Losses of single images, class weights, and accuracy."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

WEIGHTS = ('balanced', 'inverse')
NAMES = ('softmax', 'sigmoid', 'sigmoid_any')


def cross_entropy(
  logits: jax.Array,
  labels: jax.Array,
  name: str = 'softmax',
  smoothing: float = 0.0,
) -> jax.Array:
  """Returns the cross-entropy of each image, in nats.

  Args:
    logits: [B, classes].
    labels: int32 [B], or shares of the classes, float32 [B, classes].
    name: 'softmax', for mutually exclusive classes; 'sigmoid', the sum of a
      binary cross-entropy for each class, as AugReg (arXiv:2106.10270) and
      big_vision train on ImageNet; or 'sigmoid_any', the same with target 1 for
      every class with a share (DeiT III, arXiv:2204.07118).
    smoothing: Share of each label that is spread evenly over all classes
      (label smoothing, arXiv:1512.00567).

  Returns:
    float32 [B].
  """
  if name == 'softmax' and labels.ndim == 1 and not smoothing:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  targets = shares(labels, logits.shape[-1])
  if name == 'sigmoid_any':
    targets = (targets > 0).astype(jnp.float32)
  targets = optax.smooth_labels(targets, smoothing)
  if name == 'softmax':
    return optax.softmax_cross_entropy(logits, targets)
  return optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)


def weighted_cross_entropy(
  logits: jax.Array,
  labels: jax.Array,
  weights: np.ndarray,
  name: str = 'softmax',
  smoothing: float = 0.0,
) -> jax.Array:
  """Returns `cross_entropy` of each image times the weight of its class.

  The loss of a mixed image is the sum of the weighted losses of its classes,
  times their shares. Divide the sum over a batch by the number of images, not
  by the sum of weights: an image's part then does not depend on the rest of the
  batch.

  Args:
    logits: [B, classes].
    labels: int32 [B], or shares of the classes, float32 [B, classes].
    weights: float32 [classes], more than 0.
    name: As `cross_entropy`.
    smoothing: As `cross_entropy`.

  Returns:
    float32 [B].
  """
  if labels.ndim == 1:
    factor = jnp.asarray(weights)[labels]
  else:
    counted = labels * weights
    factor = counted.sum(axis=-1)
    labels = counted / factor[:, None]
  return factor * cross_entropy(logits, labels, name, smoothing)


def class_weights(
  choice: str | Sequence[float],
  counts: Sequence[int] | None,
  num_classes: int,
) -> np.ndarray | None:
  """Returns the weight of each class, float32 [classes]; None: no weights.

  Args:
    choice: `config.objective.class_weights`.
    counts: Number of images of each class; None if the data are not known: all
      weights are then 1.
    num_classes: Number of the model's classes. Classes without images, or that
      the data do not have, get the weight 1.
  """
  if not choice:
    return None
  weights = np.ones(num_classes)
  if choice not in WEIGHTS:
    weights[: len(choice)] = choice
  elif counts is not None:
    images = np.asarray(counts, np.float64)
    has_some = np.flatnonzero(images)
    inverse = 1 / images[has_some]
    if choice == 'balanced':  # as scikit-learn
      inverse *= images.sum() / len(has_some)
    else:
      inverse /= inverse.mean()
    weights[has_some] = inverse
  return weights.astype(np.float32)


def shares(labels: jax.Array, num_classes: int) -> jax.Array:
  """Returns labels (int32 [B], or shares) as shares, float32 [B, classes]."""
  if labels.ndim == 2:
    return labels
  return jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)


def accuracy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the fraction of images that are classified correctly.

  Args:
    logits: [B, classes].
    labels: int32 [B]; or shares [B, classes]: the class with the largest share
      is the correct one.
  """
  right = labels if labels.ndim == 1 else labels.argmax(axis=-1)
  return (logits.argmax(axis=-1) == right).mean(dtype=jnp.float32)
