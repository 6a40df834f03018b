"""Nearest neighbours, against scikit-learn's and answers that are known."""

import clusters
import numpy as np
import pytest
from sklearn import neighbors as sklearn_neighbors

from vit_jax.evaluation import knn


def test_clusters_are_told_apart():
  train, labels = clusters.make(40, num_classes=3)
  test, expected = clusters.make(30, num_classes=3, seed=1)
  actual = knn.predict(train, labels, test, k=5)
  np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize('blocks', [None, (150, 64)])
def test_equals_scikit_learn(blocks, monkeypatch):
  """Weighted by the same votes; also where the work is cut into parts."""
  train, labels, test, _ = clusters.digits()
  if blocks:
    monkeypatch.setattr(knn, '_TRAIN', blocks[0])
    monkeypatch.setattr(knn, '_TEST', blocks[1])
  for k, temperature in ((1, 0.07), (20, 0.07), (200, 1.0)):
    expected = sklearn_neighbors.KNeighborsClassifier(
      k,
      metric='cosine',
      weights=lambda distance, t=temperature: np.exp((1 - distance) / t),
    ).fit(train, labels)
    actual = knn.predict(train, labels, test, k, temperature)
    np.testing.assert_array_equal(actual, expected.predict(test))


def test_nearest_are_all_that_are_near(monkeypatch):
  train, _, test, _ = clusters.digits()
  monkeypatch.setattr(knn, '_TRAIN', 100)  # fewer than are looked for
  parts = []
  actual, places = knn.nearest(train, test[:50], 120, lambda: parts.append(1))
  assert len(parts) == 12
  a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test))
  expected = -np.sort(-(b[:50] @ a.T), axis=1)[:, :120]
  np.testing.assert_allclose(actual, expected, atol=1e-5)
  ours = np.take_along_axis(b[:50] @ a.T, places, axis=1)
  np.testing.assert_allclose(ours, expected, atol=1e-5)
  assert all(len(set(row)) == 120 for row in places.tolist())


def test_the_order_of_examples_does_not_matter():
  train, labels, test, _ = clusters.digits()
  before = knn.predict(train, labels, test, k=20)
  order = np.random.default_rng(0).permutation(len(train))
  after = knn.predict(train[order], labels[order], test, k=20)
  np.testing.assert_array_equal(before, after)


def test_the_temperature_weighs_near_against_many():
  similarity = np.array([[0.9, 0.5, 0.5]])
  labels = np.array([[1, 0, 0]])
  for temperature, winner in ((0.07, 1), (10.0, 0)):
    scores = knn.vote(similarity, labels, 2, temperature)
    share = np.exp(0.9 / temperature) / np.exp(0.5 / temperature)
    assert scores.argmax() == winner
    assert scores[0, 1] / scores[0, 0] == pytest.approx(share / 2)


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
def test_length_does_not_matter_and_zeros_are_no_numbers_by_mistake(dtype):
  train = np.array([[10, 0], [0, 0.1], [0, 0]], dtype)
  similarity, places = knn.nearest(train, 5 * train, k=1)
  np.testing.assert_allclose(similarity, [[1], [1], [0]], atol=1e-6)
  assert places.tolist() == [[0], [1], [0]]


def test_what_is_no_number_comes_last(monkeypatch):
  monkeypatch.setattr(knn, '_TRAIN', 2)
  train = np.array([[np.nan, 0], [-1, 0], [1, 0], [0, np.nan]], np.float32)
  similarity, places = knn.nearest(train, np.array([[1.0, 0]]), k=4)
  assert places.tolist() == [[2, 1, 0, 3]]
  np.testing.assert_array_equal(similarity, [[1, -1, np.nan, np.nan]])
  _, places = knn.nearest(train, np.full((1, 2), np.nan), k=4)
  assert places.tolist() == [[0, 1, 2, 3]]
