"""Few-shot least squares, against NumPy's and answers that are known."""

import clusters
import numpy as np
import pytest
from sklearn import linear_model

from vit_jax.evaluation import few_shot
from vit_jax.evaluation import linear
from vit_jax.evaluation import probes


@pytest.mark.parametrize('n', [5, 40])
def test_a_fit_is_least_squares_with_more_rows(n):
  """A row of sqrt(penalty) for each weight, which is to give 0; or fewer
  examples than features."""
  rng = np.random.default_rng(0)
  x, labels = rng.normal(size=(n, 12)) + 3, np.arange(n) % 4
  model = few_shot.fit(x, labels)[-1]
  std = x.std(axis=0) + 1e-5
  rows = np.block(
    [
      [(x - x.mean(axis=0)) / std, np.ones((n, 1))],
      [np.sqrt(few_shot.PENALTY) * np.eye(12), np.zeros((12, 1))],
    ]
  )
  targets = np.concatenate([2 * np.eye(4)[labels] - 1, np.zeros((12, 4))])
  expected = np.linalg.lstsq(rows, targets)[0]
  np.testing.assert_allclose(model.coef_.T, expected[:-1], atol=1e-10)
  np.testing.assert_allclose(model.intercept_, expected[-1], atol=1e-10)


def test_a_fit_is_that_of_standardised_features():
  train, labels, test, _ = clusters.digits()
  model = few_shot.fit(train[:300], labels[:300])
  x = train[:300].astype(np.float64)
  mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
  targets = 2 * np.eye(10)[labels[:300]] - 1
  theirs = linear_model.Ridge(1024).fit((x - mean) / std, targets)
  expected = theirs.predict((test - mean) / std).argmax(axis=1)
  np.testing.assert_array_equal(linear.predict(model, test), expected)
  scaled = few_shot.fit(100 * train[:300] + 7, labels[:300])
  np.testing.assert_array_equal(
    linear.predict(scaled, 100 * test + 7), expected
  )


def test_clusters_are_told_apart_by_one_example():
  train, labels = clusters.make(60, num_classes=3)
  test, expected = clusters.make(30, num_classes=3, seed=1)
  parts = []
  actual = few_shot.accuracies(
    train, labels, test, expected, (1, 5), after_block=lambda: parts.append(1)
  )
  assert actual == {1: [1.0] * 5, 5: [1.0] * 5} and len(parts) == 10


def test_more_shots_know_more():
  actual = few_shot.accuracies(*clusters.digits(), (1, 5, 25))
  means = [np.mean(x) for x in actual.values()]
  assert 0.3 < means[0] < means[1] < means[2] < 0.95
  assert len(set(actual[1])) == 5  # each draw has others


def test_the_order_of_examples_does_not_matter():
  train, labels, test, _ = clusters.digits()
  order = np.random.default_rng(0).permutation(300)
  models = [
    few_shot.fit(train[rows], labels[rows]) for rows in (np.arange(300), order)
  ]
  np.testing.assert_array_equal(
    *(linear.predict(model, test) for model in models)
  )


def test_draws_have_so_many_of_each_class():
  labels = np.array([2, 0, 2, 0, 2, 2, 0, 2, 1])
  two, three = (probes.draw(labels, np.full(3, n), seed=3) for n in (2, 3))
  assert np.bincount(labels[two]).tolist() == [2, 1, 2]
  assert np.bincount(labels[three]).tolist() == [3, 1, 3]
  assert set(two) < set(three)
  mixed = probes.draw(labels, np.array([0, 1, 4]), seed=0)
  assert np.bincount(labels[mixed]).tolist() == [0, 1, 4]
  others = [probes.draw(labels, np.full(3, 2), seed=s) for s in range(8)]
  assert len({frozenset(rows.tolist()) for rows in others}) > 3
