"""Metrics that are merged over batches."""

import jax
import numpy as np

from vit_jax.evaluation import metrics


def test_confusion_is_merged_on_the_host_and_in_a_compiled_function():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 6, 3)).astype(np.float32)
  labels = rng.integers(0, 3, (2, 6))
  mask = np.arange(6) < 5
  a, b = (
    metrics.Confusion.from_model_output(logits[i], labels[i], mask)
    for i in range(2)
  )
  merged = a.merge(b).compute()
  assert merged.dtype == np.int64 and merged.sum() == 10
  best = logits.argmax(axis=-1)
  expected = np.zeros((3, 3), int)
  np.add.at(expected, (labels[:, mask].ravel(), best[:, mask].ravel()), 1)
  np.testing.assert_array_equal(merged, expected)
  compiled = jax.jit(lambda x, y: x.merge(y))(a, b)
  np.testing.assert_array_equal(compiled.compute(), expected)
