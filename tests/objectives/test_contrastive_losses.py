"""Losses of image-text pairs, whole and in parts.

tests/golden.py compares them with open_clip's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.objectives import contrastive_losses as losses

_B, _D = 16, 6


def _pairs():
  x = np.random.default_rng(0).standard_normal((2, _B, _D))
  return jnp.float32(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _both_losses(images, texts, scale, bias, parts=1):
  return jnp.stack(
    [
      losses.softmax_loss(images, texts, scale, parts),
      losses.sigmoid_loss(images, texts, scale, bias, parts),
    ]
  )


def test_of_pairs_that_are_told_apart():
  """Orthogonal pairs: the softmax tells them apart at any large scale."""
  x = jnp.eye(8)
  softmax, sigmoid = _both_losses(x, x, 100.0, -50.0)
  assert float(softmax) < 1e-6
  assert float(sigmoid) < 1e-6
  softmax, sigmoid = _both_losses(x, jnp.roll(x, 1, axis=0), 100.0, -50.0)
  np.testing.assert_allclose(softmax, 100.0, rtol=1e-5)
  np.testing.assert_allclose(sigmoid, 100.0, rtol=1e-5)


def test_parts_are_the_same_function():
  x = _pairs()
  args = (*x, jnp.float32(7.0), jnp.float32(-3.0))
  grad = jax.jacrev(_both_losses, argnums=(0, 1, 2, 3))
  expected, parts = grad(*args), grad(*args, 4)
  for first, second in zip(expected, parts, strict=True):
    np.testing.assert_allclose(first, second, atol=1e-6)
  np.testing.assert_allclose(
    _both_losses(*args), _both_losses(*args, 2), rtol=1e-6
  )


def test_parts_need_less_memory():
  """No array of [B, B] is left in the compiled gradient."""
  x = jnp.zeros((512, 8))

  def size(parts):
    grad = jax.grad(losses.softmax_loss, argnums=(0, 1))
    lowered = jax.jit(grad, static_argnums=3).lower(x, x, 1.0, parts)
    return lowered.compile().memory_analysis().temp_size_in_bytes

  assert size(32) < size(1) / 8


def test_parts_that_do_not_divide_the_batch():
  with pytest.raises(ValueError, match='3 parts do not divide 16 pairs'):
    losses.softmax_loss(*_pairs(), 1.0, 3)
