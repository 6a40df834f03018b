"""Layers with parts beside each other: MLPs, and several attentions."""

import functools

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.models import context as context_lib
from vit_jax.models import layouts
from vit_jax.parallel import sharding

IMAGES = jax.random.normal(jax.random.key(0), (2, 8, 12, 3))
TINY = {'hidden_size': 16, 'mlp_dim': 32, 'num_heads': 2, 'depth': 2}
KINDS = {
  'an MLP beside': {'block': 'parallel(layer_scale=0.1)'},
  'two branches': {'block': 'branches(2, layer_scale=0.1)'},
}


def make(**fields):
  """Returns a model, and parameters none of which is zero."""
  model = models.create_model('ViT-Ti/4', 3, **TINY | fields)
  rng = np.random.default_rng(0)
  shapes = models.abstract_params(model, IMAGES.shape[1:])
  return model, jax.tree.map(
    lambda x: jnp.asarray(0.3 * rng.standard_normal(x.shape, np.float32)),
    shapes,
  )


def seen(model, params):
  """Returns what enters the layers, and what leaves the first one."""
  _, state = compiled.apply(
    model, {'params': params}, IMAGES, mutable=('intermediates',)
  )
  return np.asarray(state['intermediates']['tokens'][0])


def test_an_mlp_beside_attention_is_one_sum():
  """As equation 1 of ViT-22B, times LayerScale."""
  model, params = make(block='parallel(layer_scale=1.0)')
  layer, block = params['blocks_0'], model.block
  assert layer.keys() == {'norm1', 'attention', 'mlp', 'layer_scale1'}
  # Without its sum the layer returns what it is given.
  off = layer | {'layer_scale1': jnp.zeros_like(layer['layer_scale1'])}
  x = seen(model, params | {'blocks_0': off})
  y = model.norm.apply({'params': layer['norm1']}, x)
  context = context_lib.Context()
  attention, mlp = ({'params': layer[x]} for x in ('attention', 'mlp'))
  added = compiled.apply(block.attention, attention, y, context)
  added += compiled.apply(block.mlp, mlp, y, context)
  expected = x + added * layer['layer_scale1']
  np.testing.assert_allclose(seen(model, params), expected, atol=1e-5)


def test_equal_branches_are_one_that_counts_twice():
  model, params = make(block='branches(2)')
  one = make()[0]
  layers = {f'blocks_{i}': params[f'blocks_{i}'] for i in range(2)}
  halves = {
    name: {k: x for k, x in layer.items() if k != 'branch_1'}
    for name, layer in layers.items()
  }
  assert layers['blocks_0']['branch_1'].keys() == halves['blocks_0'].keys()

  def doubled(path, x):
    is_last = any(key.key in ('out', 'down') for key in path)
    return 2 * x if is_last else x

  same = {k: x | {'branch_1': x} for k, x in halves.items()}
  np.testing.assert_allclose(
    compiled.apply(model, {'params': params | same}, IMAGES),
    compiled.apply(
      one, {'params': params | jax.tree.map_with_path(doubled, halves)}, IMAGES
    ),
    atol=1e-5,
  )


@pytest.mark.slow
@pytest.mark.parametrize('fields', KINDS.values(), ids=KINDS)
def test_scan_and_remat_change_nothing_in_training(fields):
  rates = {'dropout_rate': 0.2, 'stochastic_depth': 0.3}
  model, params = make(**fields, **rates)

  @functools.partial(jax.jit, static_argnums=0)
  def grads(model, params):
    key = {'dropout': jax.random.key(1)}

    def loss(params):
      y = model.apply({'params': params}, IMAGES, train=True, rngs=key)
      return (y**2).sum()

    return jax.jit(jax.grad(loss))(params)

  expected = layouts.stack_layers(grads(model, params))
  scanned = model.clone(scan=True, remat='full')
  found = grads(scanned, layouts.stack_layers(params))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4),
    found,
    expected,
  )


def test_branches_drop_different_tokens():
  model, params = make(
    block='branches(2, stochastic_depth_uniform=True)',
    stochastic_depth=0.5,
    depth=1,
  )
  layer = params['blocks_0']
  same = layer | {'branch_1': {k: layer[k] for k in layer if k != 'branch_1'}}
  key = {'dropout': jax.random.key(0)}
  images = jnp.repeat(IMAGES[:1], 64, axis=0)
  y = compiled.apply(
    model, {'params': params | {'blocks_0': same}}, images, train=True, rngs=key
  )
  # Both attentions and MLPs kept, one, or none: more than the two kinds of
  # answers of two equal masks.
  assert len(np.unique(np.round(y[:, 0], 4))) > 4


def test_the_attention_of_all_branches_is_captured():
  model, params = make(block='branches(2)')
  attend = jnp.zeros((2, 1, 4, 7, 7)).at[0, 0, 3, 0, 2].set(0.5)

  def answer(added):
    variables = {'params': params, 'perturbations': {'attention': added}}
    logits, state = compiled.apply(
      model, variables, IMAGES[:1], mutable=('intermediates',)
    )
    return logits, state['intermediates']['attention']

  plain, weights = answer(jnp.zeros_like(attend))
  assert weights.shape == attend.shape
  np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
  assert abs(answer(attend)[0] - plain).max() > 1e-4


@pytest.mark.parametrize('fields', KINDS.values(), ids=KINDS)
def test_tensor_parallelism_splits_all_products(fields):
  _, params = make(**fields)
  mesh = config_lib.default().mesh
  mesh.min_size = 0
  sizes = {'data': 1, 'fsdp': 1, 'tensor': 2}
  found = sharding.shard_params(mesh, sizes, params)
  kernels = {k: x.spec for k, x in found.items() if 'kernel' in k}
  layers = {k: x for k, x in kernels.items() if k.startswith('blocks_')}
  assert len(layers) == 8 * (2 if 'branches' in fields['block'] else 1)
  assert all('tensor' in spec for spec in layers.values())


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'block': 'branches(2)', 'mlp': 'experts(2)'}, 'not go with mlp=.experts'),
    (
      {
        'block': 'branches(2)',
        'positions': 'learned + relative_bias(shared=False)',
        'attention': 'attention(key_bias=False)',
      },
      'of one attention',
    ),
    ({'block': 'branches(0)'}, 'from 1 to'),
  ],
)
def test_what_does_not_go_together(fields, message):
  with pytest.raises(ValueError, match=message):
    models.create_model('ViT-Ti/4', 3, **TINY | fields)
