"""Answers and maps of embeddings in cases whose answer is known."""

import numpy as np
import planted
import pytest

from vit_jax import explore
from vit_jax.config import UserError


def test_probabilities_are_the_softmax():
  vit = planted.loaded(planted.tiny())
  for x in (vit.params['head']['kernel'], vit.params['head']['bias']):
    x[:] = 0
  vit.params['head']['bias'][:] = np.log([1, 2, 3, 4, 10])
  pixels = np.zeros((3, *planted.SIZE, 3), np.uint8)
  actual = explore.class_probabilities(vit, pixels)
  np.testing.assert_allclose(
    actual, np.tile([0.05, 0.1, 0.15, 0.2, 0.5], (3, 1)), rtol=1e-5
  )
  vit.params['head']['bias'][2] = np.inf
  with pytest.raises(UserError, match='not finite'):
    explore.class_probabilities(vit, pixels)
  headless = planted.loaded(planted.tiny(num_classes=0))
  with pytest.raises(UserError, match='no head'):
    explore.class_probabilities(headless, pixels)


def test_mistakes_are_in_the_order_of_confidence():
  predicted = np.array([0, 1, 2, 1, 0])
  confidence = np.array([0.9, 0.5, 0.7, 0.99, 0.7])
  actual = explore.confident_mistakes(predicted, confidence, [1, 0, 1, 1, 2])
  assert actual.tolist() == [0, 2, 4, 1]
  actual = explore.confident_mistakes(predicted, confidence, predicted)
  assert not actual.size


def test_rows_of_a_confusion_matrix_are_true_classes():
  actual = explore.confusion(np.array([0, 0, 2]), np.array([0, 2, 1]), 3)
  assert actual.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_bins_of_confidence():
  random = np.random.default_rng(0)
  confidence = np.concatenate([random.uniform(0, 1, 500), [0.0, 1.0]])
  right = random.uniform(size=502) < confidence**2
  bins = explore.reliability_bins(confidence, right)
  error = sum(b.examples * abs(b.accuracy - b.confidence) for b in bins) / len(
    right
  )
  assert error == pytest.approx(explore.calibration_error(confidence, right))
  assert sum(b.examples for b in bins) == 502
  assert all(b.interval[0] <= b.accuracy <= b.interval[1] for b in bins)


def test_a_planted_plane_is_found():
  """Points of a rectangle in 60 dimensions, and a little noise."""
  random = np.random.default_rng(0)
  plane = random.uniform(-1, 1, (40, 2)) * (5, 2)
  axes, _ = np.linalg.qr(random.normal(size=(60, 2)))
  x = plane @ axes.T + 7 + random.normal(0, 1e-4, (40, 60))
  actual = explore.embedding_map(x)
  assert actual.shape == (40, 2)

  def apart(points):
    return np.linalg.norm(points[:, None] - points, axis=-1)

  np.testing.assert_allclose(apart(actual), apart(plane), atol=5e-3)
  first, second = actual.var(axis=0)
  assert first > second


def test_groups_stay_together():
  count = 30
  random = np.random.default_rng(0)
  group = np.arange(count) % 3
  x = 20 * random.normal(size=(3, 16))[group] + random.normal(size=(count, 16))
  for method in ('pca', 'tsne'):
    actual = explore.embedding_map(x, method)
    apart = np.linalg.norm(actual[:, None] - actual, axis=-1)
    np.fill_diagonal(apart, np.inf)
    assert (group[apart.argmin(axis=1)] == group).all()


def test_embeddings_of_one_number_have_a_map():
  x = np.arange(8.0)[:, None]
  actual = explore.embedding_map(x)
  np.testing.assert_allclose(abs(actual[:, 0]), abs(x[:, 0] - 3.5))
  assert not actual[:, 1].any()


def test_patches_are_in_the_order_of_reading():
  vit = planted.loaded(planted.tiny())
  actual = explore.image_patches(vit, planted.with_bright_patches((0, 3)))
  assert actual.shape == (1, 8, 4, 4, 3)
  assert actual[0, 3].min() == 4 and not actual[0, [0, 1, 2, 4, 5, 6, 7]].any()
  images = planted.images(2)
  actual = explore.image_patches(vit, images)
  np.testing.assert_array_equal(actual[1, 6], images[1, 4:8, 8:12])
  hybrid = planted.tiny(patches='hybrid(width=32)', patch_size=(1, 2))
  actual = explore.image_patches(planted.loaded(hybrid), images)
  assert actual.shape == (2, 4, 4, 8, 3)
