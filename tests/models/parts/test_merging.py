"""Token merging and patch dropout."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models.parts import merging

SIZES = {'hidden_size': 16, 'mlp_dim': 32, 'num_heads': 2, 'depth': 3}
IMAGES = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))


def _model(**fields):
  return models.create_model('ViT-Ti/2', 5, **SIZES, **fields)


@pytest.mark.slow
@pytest.mark.parametrize('protected', [0, 1, 2, 5])
@pytest.mark.parametrize('count', [1, 3, 50])
def test_a_merge_loses_nothing(protected, count):
  """Sums are kept, protected tokens stay in front, and all tokens are found."""
  keys, x = jax.random.normal(jax.random.key(1), (2, 2, 13, 6))
  actual = merging.match(keys, count, protected)
  total = actual.total(x)
  assert total.shape[1] == 13 - min(count, (13 - protected) // 2)
  np.testing.assert_allclose(total.sum(axis=1), x.sum(axis=1), atol=1e-5)
  front = slice(0, protected)
  np.testing.assert_array_equal(total[:, front], x[:, front])
  spread = jax.nn.one_hot(actual.places, total.shape[1], axis=1)
  np.testing.assert_allclose(spread @ x, total, atol=1e-5)
  equal = actual.mean(jnp.ones_like(x), jnp.ones(x.shape[:2]))
  np.testing.assert_allclose(equal, 1, atol=1e-6)


def test_nothing_is_merged_where_all_are_protected():
  assert merging.match(jnp.ones((1, 3, 4)), 2, 3) is None


@pytest.mark.slow
@pytest.mark.parametrize(
  ('pool', 'registers', 'falls'),
  [('token', 0, False), ('mean', 2, True), ('token_and_mean', 1, False)],
)
def test_equal_patches_can_be_merged(pool, registers, falls):
  """Merged tokens count as often as they stand for patches.

  So a model without positions gives the same for an image of equal patches.
  """
  fields = {'pool': pool, 'registers': registers, 'positions': 'none'}
  model = _model(**fields)
  patch = jax.random.normal(jax.random.key(2), (1, 2, 2, 3))
  image = jnp.tile(patch, (1, 4, 4, 1))
  params = {'params': compiled.init(model, jax.random.key(0), image)['params']}
  options = f'4, decreasing={falls}'
  merged = _model(**fields, block=f'merging({options})')
  expected = compiled.apply(model, params, image, method='trunk')['features']
  outputs = compiled.apply(merged, params, image, method='trunk')
  np.testing.assert_allclose(outputs['features'], expected, atol=1e-5)
  assert outputs['sizes'].sum() == 16 + merged.prefix_length
  assert outputs['tokens'].shape[1] == 16 + merged.prefix_length - 12
  unweighted = _model(**fields, block=f'merging({options}, proportional=False)')
  outputs = compiled.apply(unweighted, params, image, method='trunk')
  assert abs(outputs['features'] - expected).max() > 1e-6


@pytest.mark.slow
def test_training_with_merged_tokens_and_without_some_patches():
  model = _model(block='merging(2)', patch_dropout=0.5, dropout_rate=0.1)
  params = compiled.init(model, jax.random.key(0), IMAGES)['params']

  @jax.jit
  @jax.grad
  def gradient(params, rows):
    rngs = {'dropout': jax.random.key(3)}
    logits = model.apply(
      {'params': params}, IMAGES[rows], train=True, rows=rows, rngs=rngs
    )
    return (logits**2).sum()

  expected = gradient(params, jnp.arange(2))
  parts = [gradient(params, jnp.array([i])) for i in range(2)]
  actual = jax.tree.map(jnp.add, *parts)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), expected, actual
  )
  outputs = compiled.apply(
    model,
    {'params': params},
    IMAGES,
    train=True,
    rngs={'dropout': jax.random.key(3)},
    method='trunk',
  )
  assert outputs['places'].shape == (2, 1 + 8)  # half of 16 patches
  plain = compiled.apply(model, {'params': params}, IMAGES, method='trunk')
  assert plain['places'].shape == (2, 1 + 16)


def test_merged_tokens_are_not_captured():
  model = _model(block='merging(1)')
  params = {'params': compiled.init(model, jax.random.key(0), IMAGES)['params']}
  with pytest.raises(ValueError, match='set merge=0 to capture'):
    compiled.apply(model, params, IMAGES, mutable=('intermediates',))
