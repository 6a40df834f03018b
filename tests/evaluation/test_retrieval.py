"""Recall both ways; tests/golden.py compares with big_vision."""

import numpy as np

from vit_jax.evaluation import retrieval


def test_recall_of_known_ranks():
  similarity = np.array([[0.9, 0.1, 0.5], [0.8, 0.2, 0.3]])
  found = retrieval.both_ways(similarity, np.array([0, 1, 1]), at=(1, 2))
  assert found == {
    'image_to_text@1': 0.5,
    'image_to_text@2': 1.0,
    'text_to_image@1': 2 / 3,
    'text_to_image@2': 1.0,
  }


def test_the_earlier_of_equals_is_nearer():
  own = np.eye(4, dtype=bool)
  found = retrieval.ranks(np.zeros((4, 4)), own)
  np.testing.assert_array_equal(found, [0, 1, 2, 3])
