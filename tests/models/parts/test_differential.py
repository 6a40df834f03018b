"""Differential attention, as the paper writes it."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import context as context_lib

TINY = {'hidden_size': 16, 'mlp_dim': 32, 'num_heads': 2, 'depth': 2}
LAYER = 1


def apply(module, params, x, added=None):
  """Returns the output of a layer's attention, and its weights."""

  def call(params, x, added):
    outputs = context_lib.Outputs()
    context = context_lib.Context(
      layer=jnp.int32(LAYER),
      perturbation=added,
      captures=('attention',),
      outputs=outputs,
    )
    y = module.apply({'params': params}, x, context)
    return y, outputs['attention']

  return jax.jit(call)(params, x, added)


@pytest.fixture
def layer():
  """Attention, its parameters, and tokens."""
  model = models.create_model('ViT-Ti/4', 3, **TINY, attention='differential')
  module = model.block.attention
  x = jax.random.normal(jax.random.key(0), (2, 5, 16))
  context = context_lib.Context(layer=jnp.int32(LAYER))
  params = compiled.init(module, jax.random.key(1), x, context)['params']
  keys = iter(jax.random.split(jax.random.key(2), 100))

  def shift(x):
    return x + 0.2 * jax.random.normal(next(keys), x.shape)

  return module, jax.tree.map(shift, params), x


def factor(params):
  """Returns equation 2's factor, and equation 3's of this layer."""
  p = params['difference']
  start = 0.8 - 0.6 * np.exp(-0.3 * LAYER)
  first, second = (np.exp(p[f'query{i}'] @ p[f'key{i}']) for i in (1, 2))
  return first - second + start, start


def test_a_head_is_a_difference_of_two_softmaxes(layer):
  module, params, x = layer
  y, weights = apply(module, params, x)
  by, start = factor(params)
  qkv = jnp.einsum('btd,dihk->ibthk', x, params['qkv']['kernel'])
  query, key, value = qkv + params['qkv']['bias'][:, None, None]
  heads = []
  for h in range(2):
    parts = []
    for half in (slice(4), slice(4, 8)):
      q, k = query[:, :, h, half], key[:, :, h, half]
      parts.append(jax.nn.softmax(q @ k.swapaxes(1, 2) / 2, axis=-1))
    difference = parts[0] - by * parts[1]
    np.testing.assert_allclose(weights[:, h], difference, atol=1e-6)
    head = difference @ value[:, :, h]
    head /= jnp.sqrt((head**2).mean(axis=-1, keepdims=True) + 1e-5)
    scale = params['difference']['norm']['scale']
    heads.append(head * scale * (1 - start))
  kernel = params['out']['kernel'].reshape(16, 16)
  expected = jnp.concatenate(heads, axis=-1) @ kernel + params['out']['bias']
  np.testing.assert_allclose(y, expected, atol=1e-5)


def test_what_is_added_to_the_weights_is_added_to_the_difference(layer):
  module, params, x = layer
  added = jax.random.normal(jax.random.key(3), (2, 2, 5, 5))
  plain = apply(module, params, x)
  perturbed = apply(module, params, x, added)
  np.testing.assert_allclose(perturbed[1], plain[1] + added, atol=1e-5)
  assert abs(perturbed[0] - plain[0]).max() > 1e-2
