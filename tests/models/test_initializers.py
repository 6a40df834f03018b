"""Initial values of parameters, by the statistics of the papers' code."""

import functools

import flax
import jax
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import layouts


def tiny(**overrides):
  fields = {'hidden_size': 32, 'mlp_dim': 48, 'num_heads': 4, 'depth': 3}
  return models.create_model('ViT-Ti/4', 5, **fields | overrides)


def test_deit_initialisation():
  model = tiny(initializers='deit')
  params = models.init_params(model, jax.random.key(0), (8, 16, 3))
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  for name in ('head/kernel', 'blocks_0/mlp/up/kernel', 'position_embedding'):
    assert 0.01 < flat[name].std() < 0.021 and abs(flat[name]).max() < 0.05
  fan_in = np.prod(flat['patch_embedding/kernel'].shape[:-1])
  assert abs(flat['patch_embedding/kernel']).max() <= fan_in**-0.5


def test_paper_initialisation():
  model = tiny(initializers='vit')
  params = models.init_params(model, jax.random.key(0), (8, 16, 3))
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  assert not flat['head/kernel'].any() and not flat['class_token'].any()
  kernel = flat['blocks_0/attention/qkv/kernel']
  bound = (6 / (32 + 32)) ** 0.5  # Xavier, of each of the three matrices
  assert bound * 0.95 < abs(kernel).max() <= bound
  assert 0 < abs(flat['blocks_0/mlp/up/bias']).max() < 1e-5
  assert flat['position_embedding'].std() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize('scan', [False, True])
def test_mimetic_initialisation(scan):
  """Attention is that of arXiv:2305.09828, and all else that of the paper."""
  start = functools.partial(models.init_params, image_shape=(8, 16, 3))
  key, d = jax.random.key(0), 64
  mimetic, paper = (
    tiny(initializers=name, hidden_size=d, scan=scan)
    for name in ('mimetic', 'vit')
  )
  actual = start(mimetic, key)
  if scan:
    actual = layouts.unstack_layers(actual)
  flat, paper_params = (
    flax.traverse_util.flatten_dict(x, sep='/')
    for x in (actual, start(paper.clone(scan=False), key))
  )
  changed = {k for k in flat if (flat[k] != paper_params[k]).any()}
  names = ('attention/qkv/kernel', 'attention/out/kernel')
  assert changed == {f'blocks_{i}/{name}' for i in range(3) for name in names}
  products = []
  for i in range(3):
    qkv, out = (np.asarray(flat[f'blocks_{i}/{name}']) for name in names)
    query, keys, value = (qkv[:, j].reshape(d, -1) for j in range(3))
    for head in np.split(np.arange(d), 4):
      scores = query[:, head] @ keys[:, head].T
      # Of the largest quarter of the scales; of the smallest it is 0.04.
      assert 0.28 < np.trace(scores) / d < 0.36
    values = value @ out.reshape(d, d)
    products.append(values)
    assert np.trace(values) / d == pytest.approx(-0.4, abs=0.03)
    noise = values[~np.eye(d, dtype=bool)]
    assert noise.std() == pytest.approx(0.4 / d**0.5, rel=0.1)
  assert not np.allclose(products[0], products[1])  # each layer has its own
