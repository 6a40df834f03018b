"""Nearest neighbours of planted clusters."""

import numpy as np
import planted

from vit_jax import explore
from vit_jax.evaluation import knn
from vit_jax.weights import features


def clusters(size=4, count=3, noise=0.01):
  """Returns vectors near `count` directions of any length, and which."""
  random = np.random.default_rng(0)
  number = np.tile(np.arange(count), size)
  x = np.eye(count, 8)[number] + random.normal(0, noise, (size * count, 8))
  x *= random.uniform(0.1, 10, (len(x), 1))
  return x.astype(np.float32), number


def test_neighbours_are_of_the_same_cluster():
  x, number = clusters()
  similarity, actual = knn.nearest_others(x, x, np.arange(len(x)), 5)
  assert similarity.shape == actual.shape == (12, 5)
  assert (actual != np.arange(12)[:, None]).all()
  is_same_cluster = number[actual] == number[:, None]
  assert is_same_cluster[:, :3].all() and not is_same_cluster[:, 3:].any()
  assert similarity[:, :3].min() > 0.99 and similarity[:, 3:].max() < 0.1
  assert (np.diff(similarity, axis=1) <= 0).all()


def test_twins_do_not_hide_each_other():
  """The image itself is left out by its place, and not as the nearest."""
  x = np.ones((4, 2), np.float32)
  _, actual = knn.nearest_others(x, x, np.arange(4), 2)
  for index, row in enumerate(actual.tolist()):
    assert index not in row and len(set(row)) == 2


def test_queries_among_others_and_elsewhere():
  x, number = clusters()
  rows = np.array([7, 2])
  _, actual = knn.nearest_others(x[rows], x, rows, 20)
  assert [sorted(row) for row in actual.tolist()] == [
    [i for i in range(12) if i != row] for row in rows
  ]
  _, actual = knn.nearest_others(x[:3], x[3:], None, 1)
  np.testing.assert_array_equal(number[3:][actual[:, 0]], number[:3])
  _, actual = knn.nearest_others(x[:1], x[:1], np.zeros(1, int), 5)
  assert actual.shape == (1, 0)


def test_neighbours_of_images():
  """Cosines of what the head reads; of any model."""
  for vit in (
    planted.loaded(planted.tiny()),
    planted.loaded(planted.tiny_bit()),
  ):
    images = planted.images(6)
    x = features.embeddings(vit, images)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine = unit @ unit.T
    similarity, actual = explore.nearest_images(vit, images, count=2)
    expected = np.take_along_axis(cosine, actual, axis=1)
    np.testing.assert_allclose(similarity, expected, atol=1e-5)
    np.fill_diagonal(cosine, -np.inf)
    best = np.sort(cosine, axis=1)[:, ::-1][:, :2]
    np.testing.assert_allclose(similarity, best, atol=1e-5)
    similarity, actual = explore.nearest_images(vit, images[:1], images, 1)
    assert actual.tolist() == [[0]]
    np.testing.assert_allclose(similarity, 1, atol=1e-5)
