"""Rotary position embeddings, and the trunks that have them."""

import functools

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_models

from vit_jax import models
from vit_jax.models import layouts
from vit_jax.models.parts import fused_attention
from vit_jax.models.parts import rotary


def rope(kind):
  """Returns the text of rotary positions; 'none' has none."""
  return 'none' if kind == 'none' else f"rope(kind='{kind}')"


def images(count=2, height=16, width=12):
  rng = np.random.default_rng(1)
  return rng.standard_normal((count, height, width, 3), np.float32)


def trunk(kind, **fields):
  """Returns a small model, and parameters with no zeros."""
  sizes = {'hidden_size': 48, 'num_heads': 3, 'registers': 2, 'num_classes': 0}
  return small_models.make(
    images(), **sizes | {'positions': rope(kind)} | fields
  )


@functools.partial(
  jax.jit,
  static_argnums=0,
  compiler_options={'xla_backend_optimization_level': 0},
)
def tokens(model, params, x, positions=None):
  outputs = compiled.apply(
    model, {'params': params}, x, method='trunk', kept=positions
  )
  return outputs['tokens']


@pytest.mark.parametrize('kind', rotary.KINDS)
def test_products_depend_on_the_distance_alone(kind):
  grid, channels = (5, 4), 8
  cos, sin = rotary.table(kind, grid, channels, 10.0)
  rotation = rotary.token_tables(cos, sin, 0, None)
  query, key = np.random.default_rng(0).standard_normal((2, channels))

  def turned(x):
    repeated = jnp.broadcast_to(jnp.asarray(x), (1, 20, 1, channels))
    return rotary.rotate(repeated, rotation, rotary.KINDS[kind].halves)[0, :, 0]

  products = np.asarray(turned(query) @ turned(key).T).reshape(*grid, *grid)
  np.testing.assert_allclose(
    products[1:, 1:, 1:, 1:], products[:-1, :-1, :-1, :-1], atol=1e-5
  )
  assert np.ptp(products) > 0.1
  np.testing.assert_allclose(
    np.linalg.norm(turned(query), axis=-1), np.linalg.norm(query), rtol=1e-5
  )


def test_indices_are_scaled_to_the_reference():
  """Twice as many patches in the same image: every second one is the same."""
  small = rotary.angles('eva02', (3, 3), 8, 100.0, (3, 3)).reshape(3, 3, 4)
  large = rotary.angles('eva02', (6, 6), 8, 100.0, (3, 3)).reshape(6, 6, 4)
  np.testing.assert_allclose(large[::2, ::2], small, atol=1e-12)
  by_columns = rotary.angles('rope_vit', (3, 3), 8, 100.0, (3, 3))
  swapped = small.swapaxes(0, 1).reshape(9, 4)
  np.testing.assert_allclose(by_columns, swapped, atol=1e-12)


def test_tokens_before_the_patches_are_not_rotated():
  cos, sin = rotary.table('dinov3', (2, 2), 8, 100.0)
  full = rotary.token_tables(cos, sin, 3, jnp.array([[3, 1], [0, 2]]))
  assert full[0].shape == full[1].shape == (2, 5, 8)
  x = jnp.ones((2, 4, 2, 8))  # the first queries, as a last layer has them
  turned = rotary.rotate(x, full, halves=True)
  np.testing.assert_array_equal(turned[:, :3], x[:, :3])
  assert abs(turned[:, 3] - 1).max() > 0.1


def test_the_kernel_gets_rotated_queries_and_keys():
  fields = {'hidden_size': 128, 'num_heads': 2}
  model, params = trunk('dinov3', **fields)
  assert fused_attention.fits((2, 15, 128), 2, jnp.float32)
  fused = models.with_kernel(model, 'fused')
  np.testing.assert_allclose(
    tokens(fused, params, images()),
    tokens(model, params, images()),
    atol=5e-5,
  )


@pytest.mark.parametrize('kind', rotary.KINDS)
def test_kept_patches_are_rotated_by_their_own_positions(kind):
  model, params = trunk(kind)
  full = tokens(model, params, images())
  order = np.random.default_rng(2).permuted(
    np.tile(np.arange(12), (2, 1)), axis=1
  )
  actual = tokens(model, params, images(), jnp.asarray(order))
  expected = np.take_along_axis(np.asarray(full[:, 3:]), order[..., None], 1)
  np.testing.assert_allclose(actual[:, 3:], expected, atol=2e-5)
  np.testing.assert_allclose(actual[:, :3], full[:, :3], atol=2e-5)
  positions = jnp.asarray(order[:, :5])
  batched = tokens(model, params, images(), positions)
  for i in range(2):
    alone = tokens(model, params, images()[i : i + 1], positions[i : i + 1])
    np.testing.assert_allclose(batched[i], alone[0], atol=2e-5)
  stacked = layouts.stack_layers(params)
  scanned = tokens(model.clone(scan=True), stacked, images(), positions)
  np.testing.assert_allclose(scanned, batched, atol=2e-5)


def test_captured_attention_is_the_rotated_one():
  model, params = trunk('eva02', positions="rope(kind='eva02', grid=(4, 3))")
  _, outputs = compiled.apply(
    model,
    {'params': params},
    images(),
    method='trunk',
    mutable=('intermediates',),
  )
  attention = outputs['intermediates']['attention']
  np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)
  _, unrotated = model.clone(positions=()).apply(
    {'params': params}, images(), method='trunk', mutable=('intermediates',)
  )
  assert abs(attention - unrotated['intermediates']['attention']).max() > 1e-3


@pytest.mark.parametrize('gated', [False, True])
def test_a_norm_inside_the_mlp(gated):
  """Then the scale of the first layer's output does not matter."""
  name = 'swiglu' if gated else 'mlp'
  model, params = trunk('none', mlp=f'{name}(hidden_norm=True)')
  mlp = params['blocks_0']['mlp']
  assert mlp['norm']['scale'].shape == (32,)
  expected = tokens(model, params, images())
  mlp['norm']['scale'] = 2 * mlp['norm']['scale']
  mlp['norm']['bias'] = 2 * mlp['norm']['bias']
  mlp['down']['kernel'] = mlp['down']['kernel'] / 2
  np.testing.assert_allclose(
    tokens(model, params, images()), expected, atol=2e-5
  )


def test_published_sizes():
  """The parameters of the papers' tables, in millions."""
  sizes = {
    'facebook/dinov3-vits16plus-pretrain-lvd1689m': 28.7,
    'facebook/dinov3-vith16plus-pretrain-lvd1689m': 840.6,
    'facebook/dinov3-vit7b16-pretrain-lvd1689m': 6716.0,
    'vit_mediumd_patch16_rope_reg1_gap_256': 63.4,
    'eva02_large_patch14_224': 303.3,
  }
  for name, expected in sizes.items():
    model = models.create_model(name, 0, scan=True)
    shapes = models.abstract_params(model, (224, 224, 3))
    count = sum(x.size for x in jax.tree.leaves(shapes))
    assert count / 1e6 == pytest.approx(expected, abs=0.06), name
