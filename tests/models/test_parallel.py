"""Layers with parts beside each other: MLPs, and several attentions."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import small_models

from vit_jax.models import context as context_lib


def shapes(model, params):
  """Returns what enters the layers, and what leaves the first one."""
  _, state = compiled.apply(
    model, {'params': params}, small_models.IMAGES, mutable=('intermediates',)
  )
  return np.asarray(state['intermediates']['tokens'][0])


def test_an_mlp_beside_attention_is_one_sum():
  """As equation 1 of ViT-22B, times LayerScale."""
  model, params = small_models.make(block='parallel(layer_scale=1.0)')
  layer, block = params['blocks_0'], model.block
  assert layer.keys() == {'norm1', 'attention', 'mlp', 'layer_scale1'}
  # Without its sum the layer returns what it is given.
  off = layer | {'layer_scale1': jnp.zeros_like(layer['layer_scale1'])}
  x = shapes(model, params | {'blocks_0': off})
  y = model.norm.apply({'params': layer['norm1']}, x)
  context = context_lib.Context()
  attention, mlp = ({'params': layer[x]} for x in ('attention', 'mlp'))
  added = compiled.apply(block.attention, attention, y, context)
  added += compiled.apply(block.mlp, mlp, y, context)
  expected = x + added * layer['layer_scale1']
  np.testing.assert_allclose(shapes(model, params), expected, atol=1e-5)


def test_equal_branches_are_one_that_counts_twice():
  model, params = small_models.make(block='branches(2)')
  plain = small_models.make()[0]
  layers = {f'blocks_{i}': params[f'blocks_{i}'] for i in range(2)}
  halves = {
    name: {k: x for k, x in layer.items() if k != 'branch_1'}
    for name, layer in layers.items()
  }
  assert layers['blocks_0']['branch_1'].keys() == halves['blocks_0'].keys()

  def doubled(path, x):
    is_last = any(key.key in ('out', 'down') for key in path)
    return 2 * x if is_last else x

  equal_params = {k: x | {'branch_1': x} for k, x in halves.items()}
  np.testing.assert_allclose(
    compiled.apply(
      model, {'params': params | equal_params}, small_models.IMAGES
    ),
    compiled.apply(
      plain,
      {'params': params | jax.tree.map_with_path(doubled, halves)},
      small_models.IMAGES,
    ),
    atol=1e-5,
  )


def test_branches_drop_different_tokens():
  model, params = small_models.make(
    block='branches(2, stochastic_depth_uniform=True)',
    stochastic_depth=0.5,
    depth=1,
  )
  layer = params['blocks_0']
  equal_params = layer | {
    'branch_1': {k: layer[k] for k in layer if k != 'branch_1'}
  }
  key = {'dropout': jax.random.key(0)}
  images = jnp.repeat(small_models.IMAGES[:1], 64, axis=0)
  y = compiled.apply(
    model,
    {'params': params | {'blocks_0': equal_params}},
    images,
    train=True,
    rngs=key,
  )
  # Both attentions and MLPs kept, one, or none: more than the two kinds of
  # answers of two equal masks.
  assert len(np.unique(np.round(y[:, 0], 4))) > 4


def test_the_attention_of_all_branches_is_captured():
  model, params = small_models.make(block='branches(2)')
  attend = jnp.zeros((2, 1, 4, 7, 7)).at[0, 0, 3, 0, 2].set(0.5)

  def answer(added):
    variables = {'params': params, 'perturbations': {'attention': added}}
    logits, state = compiled.apply(
      model, variables, small_models.IMAGES[:1], mutable=('intermediates',)
    )
    return logits, state['intermediates']['attention']

  plain, weights = answer(jnp.zeros_like(attend))
  assert weights.shape == attend.shape
  np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
  assert abs(answer(attend)[0] - plain).max() > 1e-4
