"""Heads and decoders that draw maps.

Equality with other implementations is in golden_cases/dense.py, and what files
hold is in weights/formats/test_every_objective.py.
"""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import layouts
from vit_jax.models import maps
from vit_jax.models import registry
from vit_jax.models import setr
from vit_jax.models import trans2seg
from vit_jax.models import unetr
from vit_jax.models import vit


def make_trunk(**fields):
  sizes = {'hidden_size': 8, 'mlp_dim': 16, 'num_heads': 2, 'depth': 3}
  plain = {'num_classes': 0, 'pool': 'mean', 'patch_size': (2, 2)}
  return models.create(vit.ViT, plain | sizes | fields)


def fresh(module, *args, **kwargs):
  params = jax.jit(lambda key: module.init(key, *args, **kwargs))(
    jax.random.key(0)
  )['params']
  leaves, structure = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  noisy = [
    x + jax.random.uniform(k, x.shape)
    for k, x in zip(keys, leaves, strict=True)
  ]
  return jax.tree.unflatten(structure, noisy)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'factor', 'finer'),
  [
    ('linear', 1, []),
    ('naive', 4, [4] * 3),
    ('pup', 16, [4] * 3),
    ('mla', 4, [1] * 4),
  ],
)
def test_a_head_draws_a_finer_grid(kind, factor, finer):
  levels = [
    jax.random.normal(jax.random.key(i), (2, 2, 3, 8)) for i in range(4)
  ]
  module = setr.SETR(kind, 5, channels=4)
  params = fresh(module, levels)
  apply = jax.jit(module.apply, static_argnames=('train', 'mutable'))
  logits, auxiliary = apply({'params': params}, levels)
  assert logits.shape == (2, 2 * factor, 3 * factor, 5)
  assert [x.shape[1:3] for x in auxiliary] == [(2 * n, 3 * n) for n in finer]
  _, changed = apply(
    {'params': params}, levels, train=True, mutable=('statistics',)
  )
  moved = jax.tree.leaves(changed['statistics'])
  assert moved and all(np.isfinite(x).all() for x in moved)


def test_levels_of_mla_have_their_own_number_of_channels():
  levels = [jnp.ones((1, 2, 3, 8))] * 4
  for level_channels, expected in ((0, 4), (3, 3)):
    module = setr.SETR('mla', 5, channels=8, level_channels=level_channels)
    params = jax.eval_shape(module.init, jax.random.key(0), levels)['params']
    kernel = params['decode']['levels_2_1']['conv']['kernel']
    assert kernel.shape == (3, 3, expected, expected)
    assert params['decode']['classifier']['dense']['kernel'].shape == (
      4 * expected,
      5,
    )


@pytest.mark.slow
def test_unetr():
  """A volume of unequal sides; all places get logits."""
  volume = jax.random.normal(jax.random.key(0), (1, 32, 16, 16, 2))
  tokens = jnp.ones((1, 2, 1, 1, 8))
  module = unetr.UNETR(3, features=2)
  params = fresh(module, volume, [tokens] * 3, tokens)
  apply = jax.jit(module.apply)
  logits = apply({'params': params}, volume, [tokens] * 3, tokens)
  assert logits.shape == (1, 32, 16, 16, 3) and np.isfinite(logits).all()


@pytest.mark.slow
def test_trans2seg():
  deep, fine = jnp.ones((2, 2, 3, 6)), jnp.ones((2, 4, 6, 5))
  sizes = {'hidden_size': 8, 'mlp_dim': 16, 'depth': 2, 'num_heads': 2}
  module = registry.build_model(
    trans2seg.Trans2Seg, num_classes=3, channels=4, **sizes
  )
  params = fresh(module, deep, fine)
  actual = jax.jit(module.apply)({'params': params}, deep, fine)
  assert actual['logits'].shape == (2, 4, 6, 3)
  assert actual['masks_1'].shape == (2, 3, 2, 6)


def test_levels_are_the_tokens_of_all_layers():
  images = jax.random.normal(jax.random.key(0), (2, 4, 6, 3))
  unrolled, scanned = make_trunk(), make_trunk(scan=True)
  # Small ones, so that tokens do not grow from layer to layer.
  params = jax.tree.map(lambda x: x / 8, fresh(unrolled, images))
  actual = {}
  for name, model, p, collection in (
    ('all', unrolled, params, 'intermediates'),
    ('levels', unrolled, params, 'levels'),
    ('scanned', scanned, layouts.stack_layers(params), 'levels'),
  ):
    _, state = compiled.apply(
      model, {'params': p}, images, method='trunk', mutable=(collection,)
    )
    actual[name] = state[collection]
  assert actual['levels'].keys() == {'tokens'}
  for name in ('levels', 'scanned'):
    np.testing.assert_allclose(
      actual[name]['tokens'], actual['all']['tokens'], atol=1e-5
    )


def test_a_volume_is_like_an_image_of_depth_one():
  """Patches of one place along the first axis equal an image's."""
  images = jax.random.normal(jax.random.key(0), (2, 4, 6, 3))
  flat, deep = make_trunk(), make_trunk(patch_size=(1, 2, 2))
  params = fresh(flat, images)
  kernel = params['patch_embedding']['kernel'][None]
  deep_params = params | {
    'patch_embedding': params['patch_embedding'] | {'kernel': kernel}
  }
  np.testing.assert_allclose(
    compiled.apply(flat, {'params': params}, images),
    compiled.apply(deep, {'params': deep_params}, images[:, None]),
    atol=1e-5,
  )


def test_volumes_have_no_fixed_positions():
  volume = jnp.ones((1, 4, 4, 4, 1))
  for fields in ({'positions': 'sincos2d'}, {'positions': 'learned + rope'}):
    model = make_trunk(patch_size=(2, 2, 2), **fields)
    with pytest.raises(ValueError, match='is of volumes'):
      jax.eval_shape(model.init, jax.random.key(0), volume)


def test_a_size_that_patches_do_not_divide():
  model = make_trunk(patch_size=(2, 2, 2))
  with pytest.raises(ValueError, match='4 x 5 x 4, is not a multiple of'):
    jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 4, 5, 4, 1)))


def test_resizing_keeps_a_plane():
  """Linear interpolation reproduces a linear function between the centres."""
  y, x = np.mgrid[:5, :7].astype(np.float32)
  plane = jnp.asarray(2 * y - 3 * x)[None, ..., None]
  actual = maps.resize(plane, (9, 13), align_corners=True)[0, ..., 0]
  y, x = np.mgrid[:9, :13] / 2
  np.testing.assert_allclose(actual, 2 * y - 3 * x, atol=1e-5)
  interior = maps.scaled(plane, 2)[0, 1:-1, 1:-1, 0]
  y, x = (np.mgrid[1:9, 1:13] + 0.5) / 2 - 0.5
  np.testing.assert_allclose(interior, 2 * y - 3 * x, atol=1e-5)


@pytest.mark.parametrize('factor', [2, 3, 4])
def test_a_multiple_of_the_size_has_the_weights_of_any_other(factor):
  x = jax.random.normal(jax.random.key(0), (2, 5, 1, 3))
  expected = x
  for axis in (1, 2):
    weights = maps.linear_weights(x.shape[axis], factor * x.shape[axis])
    moved = np.tensordot(expected, weights, axes=((axis,), (1,)))
    expected = np.moveaxis(moved, -1, axis)
  np.testing.assert_allclose(maps.scaled(x, factor), expected, atol=1e-6)


@pytest.mark.parametrize('size', [1, 3, 5])
@pytest.mark.parametrize('shape', [(2, 5, 7), (2, 4, 5, 3)], ids=['2D', '3D'])
def test_a_convolution_and_its_gradients_are_the_plain_ones(shape, size):
  axes = len(shape) - 1
  keys = jax.random.split(jax.random.key(0), 3)
  x = jax.random.normal(keys[0], (*shape, 3))
  kernel = jax.random.normal(keys[1], (*[size] * axes, 3, 4))
  gradient = jax.random.normal(keys[2], (*shape, 4))
  sides = 'DHW'[-axes:]
  numbers = (f'N{sides}C', f'{sides}IO', f'N{sides}C')

  def plain(x, kernel):
    return jax.lax.conv_general_dilated(
      x, kernel, (1,) * axes, 'SAME', dimension_numbers=numbers
    )

  def result_and_gradients(convolve):
    result, pull = jax.vjp(convolve, x, kernel)
    return result, *pull(gradient)

  for actual, expected in zip(
    result_and_gradients(maps.convolve),
    result_and_gradients(plain),
    strict=True,
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_accelerators_convolve_volumes_in_one_operation():
  def gradients(x, kernel):
    return jax.grad(lambda *x: maps.convolve(*x).sum(), (0, 1))(x, kernel)

  traced = jax.jit(gradients).trace(
    jnp.ones((1, 4, 4, 4, 2)), jnp.ones((3, 3, 3, 2, 2))
  )
  for platform, loops in {'cpu': True, 'tpu': False, 'cuda': False}.items():
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ('stablehlo.while' in text) == loops, platform
