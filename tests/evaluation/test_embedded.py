"""What probes read of a trunk."""

import jax
import numpy as np
import pytest

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.evaluation import embedded
from vit_jax.evaluation import loaded

SIZES = {'hidden_size': 16, 'mlp_dim': 32, 'num_heads': 2, 'depth': 3}
IMAGES = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)


def build(name='ViT-Ti/4', **fields):
  """A model with random parameters, and these."""
  model = models.create_model(name, 5, **fields)
  return model, models.init_params(model, jax.random.key(0), IMAGES.shape[1:])


def read(name, model, params):
  batch = {'image': IMAGES, 'index': np.arange(4)}
  actual = embedded.READS[name](loaded.Trunk(model), params, batch)
  assert actual.keys() == {'embedding', 'index'}
  assert actual['embedding'].dtype == np.float32
  return np.asarray(actual['embedding'])


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'scan': True},
    {'registers': 2, 'pool': 'mean'},
    {'pool': 'token_and_mean'},
  ],
)
def test_layers_are_means_of_their_normalised_patches(fields):
  model, params = build(**SIZES | fields)
  actual = read('layers', model, params)
  _, state = model.apply(
    {'params': params}, IMAGES, method='trunk', mutable=['intermediates']
  )
  expected = []
  for tokens in np.asarray(state['intermediates']['tokens'], np.float64):
    patches = tokens[:, -4:]
    mean = patches.mean(axis=-1, keepdims=True)
    normal = (patches - mean) / patches.std(axis=-1, keepdims=True)
    expected.append(normal.mean(axis=1))
  expected = np.concatenate(expected, axis=-1)
  assert actual.shape == expected.shape == (4, 3 * 16)
  np.testing.assert_allclose(actual, expected, atol=1e-3)


def test_tokens_are_side_by_side():
  model, params = build(**SIZES)
  tokens = model.apply({'params': params}, IMAGES, method='trunk')['tokens']
  np.testing.assert_allclose(
    read('tokens', model, params), tokens.reshape(4, -1), atol=1e-5
  )


@pytest.mark.parametrize(
  ('name', 'fields', 'message'),
  [
    ('ViT-Ti/4', SIZES | {'block': 'merging(1)'}, 'ViT that merges'),
    ('Mixer-S/4', {}, 'Mixer'),
    ('BiT-R50x1', {}, 'BiT'),
  ],
)
def test_layers_that_cannot_be_read(name, fields, message):
  model = models.create_model(name, 5, **fields)
  with pytest.raises(UserError, match=f"^features='layers' is .*{message}"):
    read('layers', model, {})
