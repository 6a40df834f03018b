"""Keys and values with fewer heads than queries, and LayerScale beside them."""

import functools
import re

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_models
import tiny

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.parallel import sharding
from vit_jax.train import experiment as experiment_lib

make = functools.partial(small_models.make, num_heads=4, depth=3)
SCALED = {'block': 'block(layer_scale=0.5, layer_scale_mlp=False)'}


def repeated(qkv, times):
  """Returns parameters of attention whose keys have the heads of queries."""
  query, key_value = qkv['query'], qkv['key_value']
  return {
    leaf: jnp.concatenate(
      [
        jnp.expand_dims(query[leaf], -3),
        jnp.repeat(key_value[leaf], times, axis=-2),
      ],
      axis=-3,
    )
    for leaf in query
  }


@pytest.mark.parametrize('key_heads,full_layers', [(1, 0), (2, 0), (2, 1)])
@pytest.mark.parametrize('implementation', ['plain', 'fused'])
def test_heads_of_queries_share_heads_of_keys(
  key_heads, full_layers, implementation
):
  # 128 channels, which the kernel takes where keys have all heads.
  fields = {'hidden_size': 128, 'positions': 'learned + rope'}
  options = f'key_heads={key_heads}, full_layers={full_layers}, qk_norm=True'
  model, params = make(**fields, attention=f'grouped({options})')
  full, _ = make(**fields, attention='attention(qk_norm=True)')
  layers = {}
  for i in range(model.depth):
    layer = params[f'blocks_{i}']
    qkv = layer['attention']['qkv']
    assert ('query' in qkv) == (i == 1 or not full_layers)
    if 'query' in qkv:
      qkv = repeated(qkv, 4 // key_heads)
    attention = layer['attention'] | {'qkv': qkv}
    layers[f'blocks_{i}'] = layer | {'attention': attention}
  actual = models.with_kernel(model, implementation).apply(
    {'params': params}, small_models.IMAGES
  )
  expected = compiled.apply(
    full, {'params': params | layers}, small_models.IMAGES
  )
  np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_layer_scale_of_attention_alone():
  model, params = make(**SCALED)
  full, _ = make(block='block(layer_scale=0.5)')
  layers = {
    name: layer | {'layer_scale2': jnp.ones(16)}
    for name, layer in params.items()
    if name.startswith('blocks_')
  }
  assert len(layers) == 3
  assert not any('layer_scale2' in params[name] for name in layers)
  np.testing.assert_array_equal(
    compiled.apply(model, {'params': params}, small_models.IMAGES),
    compiled.apply(full, {'params': params | layers}, small_models.IMAGES),
  )


def test_a_training_step():
  """It moves all queries and keys, of each layer, and the only scale."""
  fields = small_models.SIZES | SCALED | {'num_heads': 4, 'depth': 3}
  fields['attention'] = 'grouped(key_heads=2, full_layers=1)'
  config = tiny.config(**{f'model__{key}': x for key, x in fields.items()})
  config.optim.warmup = '0 steps'
  experiment_lib.check(config)
  experiment = experiment_lib.build(config)
  state = experiment.init()
  before = jax.device_get(state.params)
  batch = next(experiment.train_batches(0))
  state, metrics = experiment.program.train_step(state, batch, np.int32(0))
  assert np.isfinite(metrics['loss'])
  after = jax.device_get(state.params)
  for layer in ('blocks_0', 'blocks_1', 'blocks_2'):
    changed = jax.tree.map(
      lambda a, b: bool((a != b).any()), before[layer], after[layer]
    )
    assert 'layer_scale2' not in changed and changed['layer_scale1']
    assert all(jax.tree.leaves(changed['attention']['qkv']))


def test_tensor_parallelism_may_have_more_parts_than_keys_have_heads():
  _, params = make(attention='grouped(key_heads=2)')
  mesh = config_lib.default().mesh
  mesh.min_size = 0
  sizes = {'data': 1, 'fsdp': 1, 'tensor': 4}
  actual = sharding.shard_params(mesh, sizes, params)
  kernels = {k: x for k, x in actual.items() if re.search('/qkv/.*kernel', k)}
  assert len(kernels) == 6
  for name, kernel in kernels.items():
    assert ('tensor' in kernel.spec) == ('/query/' in name)
