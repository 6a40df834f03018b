"""Losses of maps of classes.

Logits are [B, ..., K] and labels int32 [B, ...], of images or volumes; places
whose label is `ignore` do not count. In comments: B images, K classes, P places
of all images of a batch.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

IGNORE = 255
SMOOTH = (1e-5, 1e-5)  # MONAI's, added above and below the fraction of Dice


def counted(labels: jax.Array, ignore: int = IGNORE) -> jax.Array:
  """Returns which places count, bool of the shape of `labels`."""
  return labels != ignore


def each_cross_entropy(
  logits: jax.Array, labels: jax.Array, ignore: int = IGNORE
) -> jax.Array:
  """Returns the cross-entropy (nats) of each place; 0 where it is ignored."""
  valid = counted(labels, ignore)
  loss = optax.softmax_cross_entropy_with_integer_labels(
    logits, jnp.where(valid, labels, 0)
  )
  return jnp.where(valid, loss, 0.0)


def cross_entropy(
  logits: jax.Array,
  labels: jax.Array,
  weights: Sequence[float] | jax.Array | None = None,
  ignore: int = IGNORE,
  over: str = 'all',
) -> jax.Array:
  """Returns the mean cross-entropy of a batch, in nats.

  Args:
    logits: [B, ..., K].
    labels: int32 [B, ...].
    weights: Weight of each class, [K]; None: 1.
    ignore: Label of places that do not count.
    over: What the sum is divided by: 'all' places, also those that are ignored
      (mmsegmentation's default); or 'weights', the sum of the weights of the
      classes of those that count (PyTorch and MONAI, and mmsegmentation with
      avg_non_ignore).
  """
  valid = counted(labels, ignore)
  loss = each_cross_entropy(logits, labels, ignore)
  share = valid.astype(jnp.float32)
  if weights is not None:
    share *= jnp.asarray(weights)[jnp.where(valid, labels, 0)]
  total: Any = labels.size if over == 'all' else share.sum()
  return (share * loss).sum() / jnp.maximum(total, 1e-12)


def dice(
  probabilities: jax.Array,
  targets: jax.Array,
  *,
  valid: jax.Array | None = None,
  over_batch: bool = False,
  squared: bool = False,
  jaccard: bool = False,
  smooth: tuple[float, float] = SMOOTH,
) -> jax.Array:
  """Returns one minus the smoothed Dice coefficient of each class.

  V-Net's loss (arXiv:1606.04797, section 3) with MONAI's smoothing: 1 - (2 sum
  p t + s) / (sum p^k + sum t^k + s). It is float32 [B, K]; [K] with
  `over_batch`.

  Args:
    probabilities: p, [B, ..., K].
    targets: t, 0 or 1 (or between), [B, ..., K].
    valid: Places that count, bool [B, ...]; None: all.
    over_batch: Whether sums are over all images, not over each one.
    squared: Whether k is 2, not 1.
    jaccard: Whether it is one minus the intersection over the union instead.
    smooth: s, above and below the fraction.
  """
  if valid is not None:
    probabilities = jnp.where(valid[..., None], probabilities, 0)
    targets = jnp.where(valid[..., None], targets, 0)
  axes = tuple(range(0 if over_batch else 1, targets.ndim - 1))
  power = 2 if squared else 1
  overlap = (probabilities * targets).sum(axes)
  sizes = (probabilities**power).sum(axes) + (targets**power).sum(axes)
  if jaccard:
    sizes = 2 * (sizes - overlap)
  return 1 - (2 * overlap + smooth[0]) / (sizes + smooth[1])


def mean_dice(
  logits: jax.Array,
  labels: jax.Array,
  *,
  weights: Sequence[float] | jax.Array | None = None,
  background: bool = True,
  ignore: int = IGNORE,
  **options: Any,
) -> jax.Array:
  """Returns the mean over images and classes of `dice`, after a softmax.

  Args:
    logits: [B, ..., K].
    labels: int32 [B, ...].
    weights: Factor of each class's term, [K]; None: 1.
    background: Whether class 0 counts.
    ignore: Label of places that do not count.
    **options: Other arguments of `dice`.
  """
  valid = counted(labels, ignore)
  k = logits.shape[-1]
  targets = jax.nn.one_hot(jnp.where(valid, labels, 0), k)
  loss = dice(jax.nn.softmax(logits, axis=-1), targets, valid=valid, **options)
  if weights is not None:
    loss *= jnp.asarray(weights)
  return loss[..., 0 if background else 1 :].mean()


def dice_cross_entropy(
  logits: jax.Array,
  labels: jax.Array,
  *,
  weights: Sequence[float] | jax.Array | None = None,
  ignore: int = IGNORE,
  **options: Any,
) -> jax.Array:
  """Returns the sum of `mean_dice` and `cross_entropy` (MONAI, UNETR).

  Args:
    logits: [B, ..., K].
    labels: int32 [B, ...].
    weights: Factor of each class in both, [K]; None: 1.
    ignore: Label of places that do not count.
    **options: Other arguments of `mean_dice`.
  """
  overlap = mean_dice(logits, labels, weights=weights, ignore=ignore, **options)
  return overlap + cross_entropy(logits, labels, weights, ignore, 'weights')


def focal(
  logits: jax.Array, labels: jax.Array, gamma: float = 2.0, ignore: int = IGNORE
) -> jax.Array:
  """Returns the mean focal loss over the places that count.

  The cross-entropy times (1 - p)^gamma, p the label's probability (Lin et al.,
  arXiv:1708.02002, equation 4), here after a softmax. `logits` are [B, ..., K],
  `labels` int32 [B, ...].
  """
  loss = each_cross_entropy(logits, labels, ignore)
  factor = (1 - jnp.exp(-loss)) ** gamma
  return (factor * loss).sum() / jnp.maximum(counted(labels, ignore).sum(), 1)


def hard_examples(
  logits: jax.Array,
  labels: jax.Array,
  threshold: float = 0.7,
  least: int = 100_000,
  ignore: int = IGNORE,
) -> jax.Array:
  """Returns the mean cross-entropy of the hard places of a batch.

  Online hard example mining as in mmsegmentation's OHEMPixelSampler: a place is
  hard if the probability of its label is at most `threshold`, or at most that
  of the place which is number `least` B from the lowest.

  Args:
    logits: [B, ..., K].
    labels: int32 [B, ...].
    threshold: Probability.
    least: Number of places for each image of the batch that are hard in any
      case.
    ignore: Label of places that do not count.
  """
  valid = counted(labels, ignore).ravel()
  loss = each_cross_entropy(logits, labels, ignore).ravel()
  probability = jnp.where(valid, jnp.exp(-loss), jnp.inf)
  last = jnp.minimum(least * len(labels), jnp.maximum(valid.sum(), 1)) - 1
  lowest = jnp.sort(jax.lax.stop_gradient(probability))[last]
  hard = valid & (probability <= jnp.maximum(lowest, threshold))
  return jnp.where(hard, loss, 0).sum() / jnp.maximum(hard.sum(), 1)
