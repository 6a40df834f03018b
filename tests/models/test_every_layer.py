"""Layers of all kinds are one function, however it is computed."""

import functools

import compiled
import jax
import numpy as np
import pytest
import small_models

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.models import layouts
from vit_jax.models.parts import rotary
from vit_jax.parallel import sharding

KINDS = {
  'plain': {},
  'token and mean': {'pool': 'token_and_mean', 'registers': 2},
  'shared bias': {'positions': 'learned + relative_bias'},
  'bias of each layer': {
    'positions': 'learned + relative_bias(shared=False)',
    'attention': 'attention(key_bias=False)',
  },
  'causal': {
    'norm': 'rms_norm',
    'attention': 'attention(causal=True)',
    'mlp': "mlp(gelu='sigmoid')",
    'pool': 'mean',  # a first token would see no other
  },
  **{
    kind: {
      'positions': f"rope(kind='{kind}')",
      'attention': 'attention(qk_norm=True)',
      'registers': 2,
      'hidden_size': 48,
    }
    for kind in rotary.KINDS
  },
  'differential': {
    'attention': 'differential(qk_norm=True)',
    'block': 'branches(2)',
  },
  'fewer keys': {
    'attention': 'grouped(key_heads=1, qk_norm=True)',
    'block': 'block(layer_scale=0.5, layer_scale_mlp=False)',
  },
  'gated': {'mlp': 'geglu(hidden_norm=True)'},
  'an MLP beside': {'block': 'parallel(layer_scale=0.1)'},
  'two branches': {'block': 'branches(2, layer_scale=0.1)'},
  'uniform depth': {'block': 'block(stochastic_depth_uniform=True)'},
}
# Whose attention is another.
ATTENTIONS = (
  *('shared bias', 'bias of each layer', 'causal', 'differential'),
  *('fewer keys', *rotary.KINDS),
)
RATES = {'dropout_rate': 0.2, 'stochastic_depth': 0.3}


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.value_and_grad, argnums=1, has_aux=True)
def gradient(model, params):
  """Returns the loss and the logits in training, and the loss's gradient."""
  logits = model.apply(
    {'params': params},
    small_models.IMAGES,
    train=True,
    rngs={'dropout': jax.random.key(1)},
  )
  return (logits**2).sum(), logits


@pytest.mark.slow
@pytest.mark.parametrize('fields', KINDS.values(), ids=KINDS)
def test_scanned_and_recomputed_it_is_the_same(fields):
  """Outputs and gradients, with dropout and stochastic depth."""
  model, params = small_models.make(**RATES, **fields)
  (_, logits), grads = gradient(model, params)
  assert all(abs(x).max() > 0 for x in jax.tree.leaves(grads))
  twin = model.clone(scan=True, remat='full')
  (_, twins_logits), stacked = gradient(twin, layouts.stack_layers(params))
  np.testing.assert_allclose(twins_logits, logits, rtol=1e-4, atol=1e-5)
  # Without a rotation softmax does not depend on a bias of keys, whose gradient
  # is what rounding leaves.
  largest = max(abs(x).max() for x in jax.tree.leaves(grads))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * largest),
    layouts.unstack_layers(stacked),
    grads,
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', ATTENTIONS)
def test_other_kernels_give_the_same(name):
  model, params = small_models.make(**KINDS[name])
  actual = {
    kernel: compiled.apply(
      models.with_kernel(model, kernel),
      {'params': params},
      small_models.IMAGES,
      method='trunk',
    )['tokens']
    for kernel in ('plain', 'einsum', 'xla')
  }
  for kernel in ('einsum', 'xla'):
    np.testing.assert_allclose(actual[kernel], actual['plain'], atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize('name', ATTENTIONS)
def test_the_last_layer_computes_the_token_that_is_read(name):
  """As where all tokens are asked for."""
  model, params = small_models.make(**KINDS[name], num_classes=0)
  variables, images = {'params': params}, small_models.IMAGES
  outputs = compiled.apply(model, variables, images, method='trunk')
  features = compiled.apply(model, variables, images)
  np.testing.assert_allclose(features, outputs['features'], atol=2e-5)
  if model.pool == 'token':
    np.testing.assert_allclose(features, outputs['tokens'][:, 0], atol=2e-5)


@pytest.mark.parametrize('fields', KINDS.values(), ids=KINDS)
def test_tensor_parallelism_splits_kernels_of_layers(fields):
  _, params = small_models.make(**fields)
  mesh = config_lib.default().mesh
  mesh.min_size = 0
  sizes = {'data': 1, 'fsdp': 1, 'tensor': 2}
  shardings = sharding.shard_params(mesh, sizes, params)
  for name, x in shardings.items():
    if name.startswith('blocks_') and 'kernel' in name:
      has_one_head = '/key_value/' in name
      assert ('tensor' in x.spec) != has_one_head, name
