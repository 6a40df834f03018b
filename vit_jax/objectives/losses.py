"""Losses of single images, and what they are compared with."""

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
    name: 'softmax', over classes that exclude each other; or 'sigmoid', the sum
      over classes of the cross-entropy of each with its absence, as AugReg
      (arXiv:2106.10270) and big_vision train on ImageNet; or 'sigmoid_any', as
      that, with all classes wholly present that have a share (DeiT III,
      arXiv:2204.07118).
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

  A mixed image has the weighted losses of its classes in their shares. The
  losses of a batch are to be averaged as without weights, and not over their
  sum: so they do not depend on what else is in the batch.

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
  """Returns how much each class counts, float32 [classes]; None: all alike.

  Args:
    choice: `config.objective.class_weights`.
    counts: Images of each class; None: not known, as without data; then the
      weights are 1.
    num_classes: Number of the model's classes; those that the data lack weigh
      1, as do classes without images.
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
  """Returns how many images are named rightly, as a fraction.

  Args:
    logits: [B, classes].
    labels: int32 [B]; or shares [B, classes], of which the largest counts.
  """
  right = labels if labels.ndim == 1 else labels.argmax(axis=-1)
  return (logits.argmax(axis=-1) == right).mean(dtype=jnp.float32)
