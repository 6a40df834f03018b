"""Tubelets: patches of videos, of some frames each."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import patches


def test_a_tubelet_is_a_convolution_whose_stride_is_its_size():
  """As ViViT embeds them (arXiv:2103.15691, section 3.2)."""
  rng = np.random.default_rng(0)
  clips = rng.normal(size=(2, 4, 6, 9, 3)).astype(np.float32)
  layer = patches.Patches(5, (2, 3, 3))
  params = compiled.init(layer, jax.random.key(0), clips)
  kernel = params['params']['kernel']
  assert kernel.shape == (2, 3, 3, 3, 5)
  expected = jax.lax.conv_general_dilated(
    clips,
    kernel,
    window_strides=(2, 3, 3),
    padding='VALID',
    dimension_numbers=('NDHWC', 'DHWIO', 'NDHWC'),
    precision=jax.lax.Precision.HIGHEST,
  )
  actual = compiled.apply(layer, params, clips)
  assert actual.shape == (2, 2, 2, 3, 5)
  np.testing.assert_allclose(actual, expected, atol=1e-4)


def video_model(**fields):
  return models.create_model(
    'ViT-Ti/8',
    3,
    patch_size=(2, 4, 4),
    hidden_size=16,
    mlp_dim=32,
    num_heads=2,
    depth=2,
    pool='mean',
    **fields,
  )


def test_the_order_of_frames_counts():
  """There is a position for each tubelet, and none without an embedding."""
  clips = jax.random.normal(jax.random.key(1), (2, 4, 8, 8, 1))
  swapped = jnp.concatenate([clips[:, 2:], clips[:, :2]], axis=1)
  for position, is_told in (('learned', True), ('none', False)):
    model = video_model(positions=position)
    params = models.init_params(model, jax.random.key(0), clips.shape[1:])
    if is_told:
      assert params['position_embedding'].shape == (1, 8, 16)
      params['position_embedding'] *= 50
    params['head']['kernel'] = jax.random.normal(jax.random.key(2), (16, 3))
    actual, swapped_logits = (
      compiled.apply(model, {'params': params}, x) for x in (clips, swapped)
    )
    assert actual.shape == (2, 3)
    assert (np.abs(actual - swapped_logits).max() > 1e-3) == is_told


def test_what_does_not_fit_is_refused():
  config = {'name': 'ViT-Ti/8', 'patch_size': (2, 4, 4)}
  with pytest.raises(ValueError, match='three for volumes and videos'):
    models.check(config, (8, 8), 3)
  with pytest.raises(ValueError, match='does not divide'):
    models.check(config, (5, 8, 8), 3)
