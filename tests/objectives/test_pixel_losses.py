"""Losses of maps of classes, against NumPy; equality with MONAI is golden."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.objectives import pixel_losses

K = 4


@pytest.fixture(scope='module')
def maps():
  rng = np.random.default_rng(0)
  logits = 3 * rng.normal(size=(2, 5, 6, K)).astype(np.float32)
  labels = rng.integers(0, K, (2, 5, 6)).astype(np.int32)
  labels[0, :2] = pixel_losses.IGNORE
  return logits, labels


def each_loss(logits, labels):
  """Cross-entropy of the places that count, and their labels."""
  valid = labels != pixel_losses.IGNORE
  log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return -log[valid][np.arange(valid.sum()), labels[valid]], labels[valid]


def test_cross_entropy_and_what_it_is_divided_by(maps):
  loss, labels = each_loss(*maps)
  weights = np.array([1.0, 2.0, 0.5, 3.0], np.float32)
  share = weights[labels]
  for class_weights, over, expected in (
    (None, 'all', loss.sum() / maps[1].size),
    (None, 'weights', loss.mean()),
    (weights, 'weights', (share * loss).sum() / share.sum()),
  ):
    actual = pixel_losses.cross_entropy(*maps, class_weights, over=over)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_hard_examples_against_a_sort(maps):
  loss, _ = each_loss(*maps)
  probability = np.exp(-loss)
  for threshold, least in ((0.3, 1), (0.3, 20), (0.0, 7), (1.0, 10**6)):
    kth = np.sort(probability)[min(2 * least, len(loss)) - 1]  # of two images
    hard = probability <= max(kth, threshold)
    actual = pixel_losses.hard_examples(*maps, threshold=threshold, least=least)
    np.testing.assert_allclose(actual, loss[hard].mean(), rtol=1e-5)


def test_focal_without_gamma_is_the_cross_entropy(maps):
  loss, _ = each_loss(*maps)
  np.testing.assert_allclose(
    pixel_losses.focal(*maps, gamma=0.0), loss.mean(), rtol=1e-5
  )
  expected = ((1 - np.exp(-loss)) ** 2 * loss).mean()
  np.testing.assert_allclose(pixel_losses.focal(*maps), expected, rtol=1e-5)


def test_ignored_places_change_nothing(maps):
  """Neither the losses nor their gradients."""
  logits, labels = maps
  ignored = labels == pixel_losses.IGNORE
  changed = np.where(ignored[..., None], 7.0, logits).astype(np.float32)
  for loss in (
    pixel_losses.cross_entropy,
    pixel_losses.mean_dice,
    pixel_losses.dice_cross_entropy,
    pixel_losses.focal,
    pixel_losses.hard_examples,
  ):
    function = jax.jit(jax.value_and_grad(loss))
    (a, grad), (b, _) = function(logits, labels), function(changed, labels)
    np.testing.assert_allclose(a, b, rtol=1e-6)
    assert (np.asarray(grad)[ignored] == 0).all() and np.abs(grad).max() > 0


def test_nothing_but_ignored_places():
  logits = jnp.ones((1, 2, 2, K))
  labels = jnp.full((1, 2, 2), pixel_losses.IGNORE)
  for loss in (
    pixel_losses.cross_entropy,
    pixel_losses.focal,
    pixel_losses.hard_examples,
  ):
    value, grad = jax.value_and_grad(loss)(logits, labels)
    assert value == 0 and not np.asarray(grad).any()


def test_dice_of_a_perfect_and_of_a_wrong_map():
  labels = jnp.array([[[0, 1], [1, 0]]])
  right = 50.0 * jax.nn.one_hot(labels, 2)
  assert pixel_losses.mean_dice(right, labels) < 1e-4
  assert pixel_losses.mean_dice(-right, labels) > 0.999


def test_smoothing_is_added_above_and_below_the_fraction_of_dice():
  p, t = jnp.array([[[0.5], [1.0]]]), jnp.array([[[0.0], [1.0]]])
  np.testing.assert_allclose(
    pixel_losses.dice(p, t, smooth=(1.0, 3.0)), [[1 - 3 / 5.5]], rtol=1e-6
  )
  logits = jnp.zeros((1, 4, 2))
  labels = jnp.zeros((1, 4), jnp.int32)
  # Of the first class 1 - (4 + 2) / (6 + 2), of the other one 1 - 2 / (2 + 2).
  for loss, added in (
    (pixel_losses.mean_dice, 0.0),
    (pixel_losses.dice_cross_entropy, np.log(2)),
  ):
    np.testing.assert_allclose(
      loss(logits, labels, smooth=(2.0, 2.0)), 0.375 + added, rtol=1e-6
    )
