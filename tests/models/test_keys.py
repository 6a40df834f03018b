"""Keys and values with fewer heads than queries, and LayerScale beside them."""

import re

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.parallel import sharding
from vit_jax.train import experiment as experiment_lib

IMAGES = jax.random.normal(jax.random.key(0), (2, 8, 12, 3))
TINY = {'hidden_size': 16, 'mlp_dim': 32, 'num_heads': 4, 'depth': 3}
MIDDLE = {'attention': 'grouped(key_heads=2, full_layers=1)'}
SCALED = {'block': 'block(layer_scale=0.5, layer_scale_mlp=False)'}


def make(**fields):
  """Returns a model, and parameters none of which is zero."""
  model = models.create_model('ViT-Ti/4', 3, **TINY | fields)
  shapes = models.abstract_params(model, IMAGES.shape[1:])
  rng = np.random.default_rng(0)
  return model, jax.tree.map(
    lambda x: jnp.asarray(0.3 * rng.standard_normal(x.shape, np.float32)),
    shapes,
  )


def repeated(qkv, times):
  """Returns parameters of attention whose keys have the heads of queries."""
  query, both = qkv['query'], qkv['key_value']
  return {
    leaf: jnp.concatenate(
      [
        jnp.expand_dims(query[leaf], -3),
        jnp.repeat(both[leaf], times, axis=-2),
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
  whole, _ = make(**fields, attention='attention(qk_norm=True)')
  layers = {}
  for i in range(model.depth):
    layer = params[f'blocks_{i}']
    qkv = layer['attention']['qkv']
    assert ('query' in qkv) == (i == 1 or not full_layers)
    if 'query' in qkv:
      qkv = repeated(qkv, 4 // key_heads)
    attention = layer['attention'] | {'qkv': qkv}
    layers[f'blocks_{i}'] = layer | {'attention': attention}
  found = models.with_kernel(model, implementation).apply(
    {'params': params}, IMAGES
  )
  expected = compiled.apply(whole, {'params': params | layers}, IMAGES)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_layer_scale_of_attention_alone():
  model, params = make(**SCALED)
  whole, _ = make(block='block(layer_scale=0.5)')
  layers = {
    name: layer | {'layer_scale2': jnp.ones(16)}
    for name, layer in params.items()
    if name.startswith('blocks_')
  }
  assert len(layers) == 3
  assert not any('layer_scale2' in params[name] for name in layers)
  np.testing.assert_array_equal(
    compiled.apply(model, {'params': params}, IMAGES),
    compiled.apply(whole, {'params': params | layers}, IMAGES),
  )


def test_a_training_step():
  fields = {**MIDDLE, **SCALED, 'hidden_size': 16, 'num_heads': 4, 'depth': 3}
  config = tiny.config(**{f'model__{k}': x for k, x in fields.items()})
  config.optim.warmup = '0 steps'
  experiment_lib.check(config)
  experiment = experiment_lib.build(config)
  state = experiment.init()
  before = jax.device_get(state.params)
  batch = next(experiment.train_batches(0))
  state, metrics = experiment.program.train_step(state, batch, np.int32(0))
  assert np.isfinite(metrics['loss'])
  after = jax.device_get(state.params)
  for layer in range(3):
    old, new = (x[f'blocks_{layer}'] for x in (before, after))
    assert 'layer_scale2' not in new
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), old, new)
    assert changed['layer_scale1']
    assert all(jax.tree.leaves(changed['attention']['qkv']))


def test_tensor_parallelism_may_have_more_parts_than_keys_have_heads():
  _, params = make(attention='grouped(key_heads=2)')
  mesh = config_lib.default().mesh
  mesh.min_size = 0
  sizes = {'data': 1, 'fsdp': 1, 'tensor': 4}
  found = sharding.shard_params(mesh, sizes, params)
  kernels = {k: x for k, x in found.items() if re.search('/qkv/.*kernel', k)}
  assert len(kernels) == 6
  for name, each in kernels.items():
    assert ('tensor' in each.spec) == ('/query/' in name)


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'attention': 'grouped(0)'}, 'from 1 to'),
    ({'attention': 'grouped(key_heads=3)'}, 'it must divide num_heads=4'),
    ({'attention': 'grouped(key_heads=4)'}, 'and be smaller'),
    (
      {'attention': 'grouped(key_heads=2, full_layers=2)'},
      'all layers of depth=3',
    ),
    ({'attention': 'grouped(2, full_layers=-1)'}, 'from 0 to'),
    ({'attention': 'grouped(key_heads=2, key_bias=False)'}, 'key_bias=False'),
    (MIDDLE | {'scan': True}, 'scan=True and full_layers=1'),
    (
      {'block': 'block(layer_scale_mlp=False)'},
      'no effect without layer_scale',
    ),
    (
      {'block': 'parallel(layer_scale=0.5, layer_scale_mlp=False)'},
      'they have one scale',
    ),
  ],
)
def test_what_does_not_go_together(fields, message):
  with pytest.raises(ValueError, match=message) as e:
    models.create_model('ViT-Ti/4', 3, **TINY | fields)
  assert '\n' not in str(e.value)


def test_an_igpt_has_equal_heads():
  with pytest.raises(ValueError, match='Grouped: the attention of an iGPT'):
    models.create_model('iGPT-S', 0, attention='grouped(key_heads=2)')
