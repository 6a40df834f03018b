"""LayerNorm and GroupNorm, where the mean is many deviations from 0."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import block
from vit_jax.models import setr
from vit_jax.models.parts import norms

EPSILON = 1e-6


def numbers(shape, mean, spread, seed=0):
  x = np.random.default_rng(seed).normal(mean, spread, shape)
  return jnp.asarray(x, jnp.float32)


def exact(x, axes):
  x = np.asarray(x, np.float64)
  deviation = np.sqrt(x.var(axes, keepdims=True) + EPSILON)
  return (x - x.mean(axes, keepdims=True)) / deviation


@pytest.mark.parametrize('channels', [8, 192, 1280])
@pytest.mark.parametrize(
  ('mean', 'spread'),
  [
    (0, 1),
    (1449, 0.5),
    (-1449, 0.5),
    (3e4, 0.5),
    (0, 1e-3),
    (5, 0),
    (1e15, 1e12),
  ],
)
def test_layer_norm_is_exact_for_any_mean(channels, mean, spread):
  x = numbers((64, channels), mean, spread)
  params = {'scale': jnp.ones(channels), 'bias': jnp.zeros(channels)}
  y = block.LayerNorm(EPSILON).apply({'params': params}, x)
  np.testing.assert_allclose(y, exact(x, -1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('outlier', [0, 17, 191])
def test_layer_norm_is_exact_with_an_outlier(outlier):
  """As in large ViTs, whose tokens have a channel a hundred times the rest."""
  x = numbers((64, 192), 0, 1).at[:, outlier].add(3_000)
  params = {'scale': jnp.ones(192), 'bias': jnp.zeros(192)}
  y = block.LayerNorm(EPSILON).apply({'params': params}, x)
  np.testing.assert_allclose(y, exact(x, -1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(('mean', 'spread'), [(0, 1), (1449, 0.5), (3e4, 0.5)])
def test_group_norm_is_exact_for_any_mean(mean, spread):
  x = numbers((2, 12, 12, 64), mean, spread)
  params = {'scale': jnp.ones(64), 'bias': jnp.zeros(64)}
  y = norms.GroupNorm(32, EPSILON).apply({'params': params}, x)
  expected = exact(x.reshape(2, 144, 32, 2), (1, 3)).reshape(x.shape)
  np.testing.assert_allclose(y, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_values_and_gradients_are_those_of_linen(dtype):
  """At the means for which those are exact; parameters have their names."""
  x = numbers((3, 6, 5, 64), 1, 1).astype(dtype)
  target = numbers(x.shape, 0, 1, seed=1)
  pairs = [
    (
      block.LayerNorm(EPSILON, dtype),
      nn.LayerNorm(epsilon=EPSILON, dtype=dtype),
    ),
    (
      norms.GroupNorm(32, EPSILON, dtype),
      nn.GroupNorm(32, epsilon=EPSILON, dtype=dtype),
    ),
  ]
  for pair in pairs:
    params = pair[1].init(jax.random.key(0), x)['params']
    params = jax.tree.map(lambda p: p + numbers(p.shape, 0, 0.3), params)

    def loss(params, x, norm):
      return (norm.apply({'params': params}, x) * target).sum()

    actual, expected = (
      jax.value_and_grad(loss, (0, 1))(params, x, norm) for norm in pair
    )
    limit = 2e-2 if dtype == jnp.bfloat16 else 1e-4
    for a, b in zip(
      jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
    ):
      a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
      np.testing.assert_allclose(a, b, atol=limit * max(abs(b).max(), 1e-2))


@pytest.mark.parametrize('name', ['ViT-Ti/16', 'Mixer-S/16', 'R+ViT-Ti/16'])
def test_a_mean_that_all_channels_share_changes_nothing(name):
  """The first norm of each branch, and the last one, subtract it."""
  model = models.create_model(name, 5, depth=1)
  params = models.init_params(model, jax.random.key(0), (32, 32, 3))
  keys = iter(jax.random.split(jax.random.key(1), 1_000))
  params = jax.tree.map(
    lambda p: p + 0.05 * jax.random.normal(next(keys), p.shape), params
  )
  images = numbers((2, 32, 32, 3), 0, 1)
  apply = jax.jit(model.apply)
  expected = apply({'params': params}, images)
  params['patch_embedding']['bias'] += 1449.0
  if 'class_token' in params:
    params['class_token'] += 1449.0
  y = apply({'params': params}, images)
  # The tokens themselves are rounded to 1e-4.
  np.testing.assert_allclose(y, expected, atol=1e-3 * abs(expected).max())


def test_decoders_of_maps_have_it():
  """A mean that all channels share changes nothing."""
  rounded = jnp.round(64 * numbers((2, 4, 4, 16), 0, 0.5)) / 64
  for module, apply in [
    (setr.UpHead(3, channels=8), lambda f, x: f(x)),
    (setr.Neck(channels=8), lambda f, x: f([x, x])),
  ]:
    params = apply(functools.partial(module.init, jax.random.key(0)), rounded)
    actual, expected = (
      apply(functools.partial(module.apply, params), x)
      for x in (rounded + 1449, rounded)
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * abs(b).max()),
      actual,
      expected,
    )


def test_groups_that_do_not_divide_the_channels():
  with pytest.raises(ValueError, match='48 channels'):
    norms.GroupNorm(32).init(jax.random.key(0), jnp.ones((1, 2, 2, 48)))
