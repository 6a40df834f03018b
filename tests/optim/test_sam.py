"""Sharpness-aware minimisation, against a quadratic worked out by hand."""

import functools

import jax
import jax.numpy as jnp
import mistakes
import numpy as np
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax.models import layouts
from vit_jax.optim import sam
from vit_jax.train import experiment as experiment_lib

UserError = config_lib.UserError

# f(w) = (a . w^2) / 2 has the gradient a * w. Cut in two arrays, so that the
# norm is that of all together.
CURVATURE = {'x': jnp.array([1.0, 3.0]), 'y': jnp.array([[2.0]])}
POINT = {'x': jnp.array([1.0, 1.0]), 'y': jnp.array([[3.0]])}
# There: a * w = (1, 3, 6) and its norm sqrt(46).
NORM = np.sqrt(46.0)


def quadratic(params):
  squares = jax.tree.map(lambda a, w: (a * w**2).sum() / 2, CURVATURE, params)
  return squares['x'] + squares['y']


def sharpness_aware(rho, alpha=0.0):
  method = sam.GSAM(rho, alpha=alpha) if alpha else sam.SAM(rho)
  fn = method.value_and_grad(jax.value_and_grad(quadratic), None, 1.0)
  value, grads = fn(POINT)
  return float(value), np.concatenate([grads['x'], grads['y'][0]])


def test_sam_is_the_gradient_at_the_worst_point():
  value, grads = sharpness_aware(0.5)
  assert value == pytest.approx(11.0)  # at the point itself
  # a * (w + 0.5 * g / |g|)
  expected = np.array([1, 3, 6]) + 0.5 * np.array([1, 9, 12]) / NORM
  np.testing.assert_allclose(grads, expected, rtol=1e-6)


def test_gsam_takes_off_what_lies_across():
  g = np.array([1.0, 3, 6])
  robust = g + 0.5 * np.array([1, 9, 12]) / NORM
  unit = robust / np.linalg.norm(robust)
  across = g - (g @ unit) * unit
  assert abs(across @ robust) < 1e-9 and np.linalg.norm(across) > 0.1
  _, grads = sharpness_aware(0.5, 0.4)
  np.testing.assert_allclose(grads, robust - 0.4 * across, rtol=1e-5)


def test_with_little_rho_it_is_the_gradient():
  for alpha in (0.0, 0.7):
    _, grads = sharpness_aware(1e-9, alpha)
    np.testing.assert_allclose(grads, [1, 3, 6], rtol=1e-5)


def test_a_gradient_of_zeros_stays():
  zeros = jax.tree.map(jnp.zeros_like, POINT)
  method = sam.GSAM(0.5, alpha=0.5)
  fn = method.value_and_grad(jax.value_and_grad(quadratic), None, 1.0)
  _, grads = fn(zeros)
  assert all(not x.any() for x in jax.tree.leaves(grads))


@pytest.mark.parametrize(
  ('rate', 'expected'),
  [(1.0, 0.6), (0.55, 0.4), (0.1, 0.2), (0.05, 0.2)],
)
def test_rho_follows_the_learning_rate(rate, expected):
  config = config_lib.default().optim
  config.learning_rate, config.schedule = 1.0, 'cosine(final_factor=0.1)'
  radius = sam.GSAM(0.6, rho_min=0.2).radius(config, rate)
  assert float(radius) == pytest.approx(expected)
  assert sam.GSAM(0.6).radius(config, rate) == 0.6


@functools.cache  # compiled functions are shared
def parameters(**overrides):
  """Returns the parameters after three steps."""
  config = tiny.config(
    optim__name='sgd', optim__warmup='0 steps', **tiny.RANDOM, **overrides
  )
  experiment_lib.check(config)
  e = experiment_lib.build(config)
  state = e.init()
  with e.train_batches(0) as batches:
    for step in range(3):
      state, metrics = e.program.train_step(
        state, next(batches), np.int32(step)
      )
      assert metrics['ok']
  params = jax.device_get(state.params)
  is_scanned = 'blocks' in params
  return layouts.unstack_layers(params) if is_scanned else params


def distance(a, b):
  """Returns how far trees are apart, relative to the second."""
  difference = jax.tree.map(np.subtract, a, b)
  norms = [
    np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(tree)))
    for tree in (difference, b)
  ]
  return norms[0] / norms[1]


GSAM = {'optim__sam': 'gsam(rho=0.5, rho_min=0.1, alpha=0.3)'}
GROUPS = {'optim__sam': 'gsam(rho=0.5, rho_min=0.1, alpha=0.3, groups=4)'}


@pytest.mark.slow
@pytest.mark.parametrize(
  'layout',
  [
    {'train__accumulation': 2},
    {'mesh__data': 4, 'model__scan': True},
    {'mesh__fsdp': 4, 'mesh__min_size': 0},
  ],
  ids=str,
)
def test_groups_do_not_depend_on_the_mesh(layout):
  expected = parameters(**GROUPS)
  actual = parameters(**GROUPS, **layout)
  assert distance(actual, expected) < 1e-5


@pytest.mark.slow
def test_groups_and_sharpness_matter():
  plain, undivided = parameters(), parameters(**GSAM)
  groups = parameters(**GROUPS)
  assert distance(undivided, plain) > 1e-3
  assert distance(groups, undivided) > 1e-4
  # As it goes to nothing, they are the same.
  assert distance(parameters(optim__sam='sam(1e-6)'), plain) < 1e-4


def test_a_mesh_must_divide_the_groups():
  config = tiny.config(
    optim__sam='sam(groups=4)', mesh__data=8, train__accumulation=2
  )
  with mistakes.told('16 in 4 microbatches'):
    experiment_lib.check(config)
