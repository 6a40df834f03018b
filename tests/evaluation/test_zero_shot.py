"""Classes from prompts; tests/golden.py compares with open_clip."""

import clusters
import numpy as np
import pytest

from vit_jax.evaluation import zero_shot


def test_images_near_their_prompts():
  prompts, labels = clusters.make(12, num_classes=3)
  images, expected = clusters.make(30, num_classes=3, seed=1)
  weights = zero_shot.class_weights(prompts, labels, 3)
  np.testing.assert_allclose(np.linalg.norm(weights, axis=1), 1, rtol=1e-6)
  actual = zero_shot.logits(images, weights, 100.0).argmax(axis=1)
  np.testing.assert_array_equal(actual, expected)


def test_a_long_prompt_counts_as_one():
  x = np.array([[1.0, 0.0], [0.0, 9.0]], np.float32)
  actual = zero_shot.class_weights(x, np.array([0, 0]), 1)
  np.testing.assert_allclose(actual, [[0.5**0.5] * 2], rtol=1e-6)


def test_a_class_without_prompts():
  with pytest.raises(ValueError, match='class 1 has no prompt'):
    zero_shot.class_weights(np.ones((2, 3)), np.array([0, 2]), 3)
