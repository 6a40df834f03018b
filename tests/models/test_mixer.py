"""The function that a Mixer computes; see test_models, too."""

import functools
import math

import compiled
import jax
import numpy as np
import pytest

from vit_jax.models import layouts
from vit_jax.models import mixer
from vit_jax.models import registry


def tiny(**overrides):
  fields = {
    'num_classes': 5,
    'patch_size': (4, 4),
    'hidden_size': 24,
    'tokens_mlp_dim': 10,
    'mlp_dim': 32,
    'depth': 3,
    'initializers': 'lecun',  # a head of zeros would make all models equal
  }
  return registry.build_model(mixer.Mixer, **(fields | overrides))


@functools.cache
def example():
  """A tiny model's parameters, none of them 0, and images, not square."""
  random = np.random.default_rng(0)
  images = random.normal(size=(6, 8, 16, 3)).astype(np.float32)
  init = functools.partial(tiny().init, jax.random.key(0))
  params = jax.eval_shape(init, images)['params']
  params = jax.tree.map(
    lambda x: random.normal(0, 0.3, x.shape).astype(np.float32), params
  )
  return params, images


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, images):
  return compiled.apply(model, {'params': params}, images)


def normalise(x, params):
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  return x * params['scale'] + params['bias']


def mlp(x, params):
  up, down = params['up'], params['down']
  x = x @ up['kernel'] + up['bias']
  x = x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2
  return x @ down['kernel'] + down['bias']


def test_equals_a_formulation_in_numpy():
  params, images = example()
  actual = apply(tiny(gelu='exact'), params, images)
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  patches = np.asarray(images, np.float64).reshape(6, 2, 4, 4, 4, 3)
  x = np.einsum(
    'bhpwqc,pqcd->bhwd', patches, p['patch_embedding']['kernel']
  ).reshape(6, 8, 24)
  x += p['patch_embedding']['bias']
  for layer in range(3):
    block = p[f'blocks_{layer}']
    for image in range(6):  # [T, D]: rows are tokens
      y = normalise(x[image], block['norm1'])
      x[image] += mlp(y.T, block['token_mlp']).T
      y = normalise(x[image], block['norm2'])
      x[image] += mlp(y, block['channel_mlp'])
  pooled = normalise(x, p['norm']).mean(axis=1)
  expected = pooled @ p['head']['kernel'] + p['head']['bias']
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
  features = apply(tiny(gelu='exact', num_classes=0), params, images)
  np.testing.assert_allclose(features, pooled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('scan', [False, True])
def test_intermediates(scan):
  params, images = example()
  params = layouts.stack_layers(params) if scan else params
  model = tiny(scan=scan)
  logits, state = compiled.apply(
    model, {'params': params}, images, mutable=('intermediates',)
  )
  assert set(state['intermediates']) == {'tokens'}
  tokens = state['intermediates']['tokens']
  assert tokens.shape == (3, 6, 8, 24)  # [L, B, T, D]
  np.testing.assert_allclose(logits, apply(model, params, images), rtol=1e-5)
  pooled = normalise(np.asarray(tokens[-1]), params['norm']).mean(axis=1)
  head = pooled @ params['head']['kernel'] + params['head']['bias']
  np.testing.assert_allclose(head, logits, rtol=1e-4, atol=1e-5)


def test_paper_initialisation():
  model = tiny(initializers='mixer', hidden_size=256, depth=1)
  params = compiled.init(model, jax.random.key(0), example()[1])['params']
  assert not params['head']['kernel'].any()
  up = params['blocks_0']['channel_mlp']['up']
  assert up['kernel'].std() == pytest.approx(256**-0.5, rel=0.1)
  assert not up['bias'].any()


def test_trunk_gives_tokens_and_what_the_head_reads():
  params, images = example()
  outputs = tiny().apply({'params': params}, images, method='trunk')
  assert outputs['tokens'].shape == (6, 8, 24)
  features = tiny(num_classes=0).apply({'params': params}, images)
  np.testing.assert_array_equal(outputs['features'], features)
