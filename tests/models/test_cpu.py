"""What CPUs compute in another form has the same values, in less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models

FIELDS = {'hidden_size': 32, 'num_heads': 2, 'mlp_dim': 96, 'depth': 2}
SHAPE = (4, 32, 32, 3)


def loss(**fields):
  """Returns the loss of parameters, and initial ones."""
  model = models.create_model('ViT-Ti/4', 5, **FIELDS | fields)
  model = models.with_kernel(model, 'plain')
  images = jax.random.normal(jax.random.key(1), SHAPE)
  params = model.init(jax.random.key(0), images)['params']
  params = jax.tree.map(lambda x: x + 0.01, params)  # no zeros
  return lambda p: (model.apply({'params': p}, images) ** 2).sum(), params


def platform(monkeypatch, name):
  """Has models choose what suits another platform; this one computes it."""
  monkeypatch.setattr(jax, 'default_backend', lambda: name)


@pytest.mark.parametrize('scan', [False, True])
def test_gradients_are_those_of_the_plain_formulation(monkeypatch, scan):
  fn, params = loss(scan=scan)
  value, grads = jax.jit(jax.value_and_grad(fn))(params)
  platform(monkeypatch, 'other')
  fn, _ = loss(scan=scan)
  plain_value, plain_grads = jax.jit(jax.value_and_grad(fn))(params)
  np.testing.assert_allclose(value, plain_value, rtol=1e-5)
  largest = max(jnp.abs(x).max() for x in jax.tree.leaves(plain_grads))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5 * largest),
    grads,
    plain_grads,
  )


def test_gradients_move_less_memory(monkeypatch):
  """No gradient of tokens is transposed for that of a kernel."""

  def moved():
    fn, params = loss()
    compiled = jax.jit(jax.grad(fn)).lower(params).compile()
    return compiled.cost_analysis()['bytes accessed']

  here = moved()
  platform(monkeypatch, 'other')
  assert here < 0.97 * moved()


def test_forward_mode():
  fn, params = loss()
  slope = jax.jit(lambda p: jax.jvp(fn, (p,), (p,))[1])(params)
  grads = jax.jit(jax.grad(fn))(params)
  dots = jax.tree.map(jnp.vdot, grads, params)
  np.testing.assert_allclose(slope, sum(jax.tree.leaves(dots)), rtol=1e-4)
