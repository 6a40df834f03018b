"""Losses of single images, and accuracy."""

import jax
import jax.numpy as jnp
import optax

NAMES = ('softmax', 'sigmoid', 'sigmoid_any')


def cross_entropy(
  logits: jax.Array,
  labels: jax.Array,
  name: str = 'softmax',
  smoothing: float = 0.0,
) -> jax.Array:
  """Returns the cross-entropy of each image in nats, float32 [B].

  Args:
    logits: [B, classes].
    labels: int32 [B], or shares of the classes, float32 [B, classes].
    name: 'softmax', for mutually exclusive classes; 'sigmoid', the sum of a
      binary cross-entropy for each class, as AugReg (arXiv:2106.10270) and
      big_vision train on ImageNet; or 'sigmoid_any', the same with target 1 for
      every class with a share (DeiT III, arXiv:2204.07118).
    smoothing: Share of each label that is spread evenly over all classes
      (label smoothing, arXiv:1512.00567).
  """
  if name == 'softmax' and labels.ndim == 1 and not smoothing:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  targets = labels  # shares of the classes
  if labels.ndim == 1:
    targets = jax.nn.one_hot(labels, logits.shape[-1], dtype=jnp.float32)
  if name == 'sigmoid_any':
    targets = (targets > 0).astype(jnp.float32)
  targets = optax.smooth_labels(targets, smoothing)
  if name == 'softmax':
    return optax.softmax_cross_entropy(logits, targets)
  return optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)


def accuracy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the fraction of images that are classified correctly.

  Args:
    logits: [B, classes].
    labels: int32 [B]; or shares [B, classes]: the class with the largest share
      is the correct one.
  """
  right = labels if labels.ndim == 1 else labels.argmax(axis=-1)
  return (logits.argmax(axis=-1) == right).mean(dtype=jnp.float32)
