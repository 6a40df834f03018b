"""The linear probe: answers that are known, and how it chooses its penalty."""

import clusters
import numpy as np
import pytest
from sklearn import linear_model
from sklearn import preprocessing

from vit_jax.config import UserError
from vit_jax.evaluation import linear


def test_clusters_are_told_apart():
  train, labels = clusters.make(60, num_classes=3)
  test, expected = clusters.make(30, num_classes=3, seed=1)
  model, _ = linear.fit(train, labels)
  np.testing.assert_array_equal(model.predict(test), expected)
  order = np.random.default_rng(0).permutation(len(train))
  again, _ = linear.fit(train[order], labels[order])
  np.testing.assert_array_equal(again.predict(test), expected)


def test_it_is_scikit_learns_with_the_penalty_that_it_chose():
  train, labels, test, test_labels = clusters.digits()
  train, labels = train[:400], labels[:400]
  model, penalty = linear.fit(train, labels)
  mean, std = train.mean(axis=0), train.std(axis=0)
  std[std == 0] = 1
  reference = linear_model.LogisticRegression(
    C=1 / (400 * penalty), max_iter=1000
  ).fit((train - mean) / std, labels)
  expected = reference.predict((test - mean) / std)
  actual = model.predict(test)
  assert (actual == expected).mean() > 0.99
  assert (actual == test_labels).mean() > 0.9
  exponent = 2 * np.log10(penalty)
  assert exponent == pytest.approx(round(exponent))  # of the finer search


def test_noise_asks_for_a_large_penalty():
  """Where one feature tells all and 60 tell nothing, small weights are best."""
  rng = np.random.default_rng(0)
  labels = np.arange(80) % 2
  noise = rng.normal(size=(80, 60))
  signal = labels[:, None] + 0.6 * rng.normal(size=(80, 1))
  features = np.concatenate([signal, noise], axis=1)
  assert linear.fit(features, labels)[1] > 1e-3


def test_a_fifth_of_each_class_is_held_out():
  labels = np.repeat([0, 1, 2, 4], [20, 2, 1, 7])
  held = linear.held_out(labels)
  assert np.bincount(labels[held], minlength=5).tolist() == [4, 1, 0, 0, 1]


@pytest.mark.parametrize('labels', [[0] * 9, [0, 1, 2], [0, 0]])
def test_too_few_are_refused(labels):
  features = np.random.default_rng(0).normal(size=(len(labels), 4))
  with pytest.raises(UserError, match='two classes at least'):
    linear.fit(features, np.array(labels))


def test_no_examples_have_no_classes():
  train, labels = clusters.make(20)
  model, _ = linear.fit(train, labels)
  classes = linear.predict(model, train[:0])
  assert classes.shape == (0,) and classes.dtype == labels.dtype


def test_features_are_standardised_once_for_each_penalty(monkeypatch):
  monkeypatch.setattr(linear, '_ITERATIONS', 5)  # of each of several parts
  calls = []
  fit = preprocessing.StandardScaler.fit
  monkeypatch.setattr(
    preprocessing.StandardScaler,
    'fit',
    lambda *args: calls.append(1) or fit(*args),
  )
  parts = []
  train, labels, *_ = clusters.digits()
  linear.fit(train[:300], labels[:300], lambda: parts.append(1))
  assert len(calls) <= 10 < len(parts)


def test_it_tells_of_each_part():
  parts = []
  linear.fit(*clusters.make(20), lambda: parts.append(1))
  assert len(parts) >= 10  # one for each penalty, and the last
