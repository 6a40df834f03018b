"""Functions in plain words compute the same."""

import jax
from jax import export as jax_export
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.export import plain_jaxpr

CONSTANT = np.arange(20, dtype=np.float32).reshape(4, 5)

FUNCTIONS = {
  'nested': lambda x: jax.nn.silu(jnp.where(x > 0, x, -x)),
  'stacked': lambda x: jnp.stack([x, 2 * x], axis=-1),
  'unstacked': lambda x: x + sum(jnp.moveaxis(x, 1, 0)).sum(),
  'barrier': lambda x: 2 * lax.optimization_barrier(x),
  'repeated argument': lambda x: x * x,
  'padded': lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 3)), constant_values=7),
  'pooled': lambda x: lax.reduce_window(
    x, -jnp.inf, lax.max, (1, 3, 2), (1, 2, 1), ((0, 0), (1, 1), (0, 1))
  ),
}


def primitives(function, x):
  return [e.primitive.name for e in jax.make_jaxpr(function)(x).jaxpr.eqns]


@pytest.mark.slow
@pytest.mark.parametrize('name', FUNCTIONS)
def test_the_same_for_any_batch(name):
  (batch,) = jax_export.symbolic_shape('batch')
  function = FUNCTIONS[name]
  shape = jax.ShapeDtypeStruct((batch, 4, 5), jnp.float32)
  exported = jax_export.export(jax.jit(plain_jaxpr.plain(function, shape)))
  call = exported(shape).call
  for count in (1, 3):
    x = np.random.default_rng(count).standard_normal((count, 4, 5), np.float32)
    np.testing.assert_allclose(call(x), function(x), rtol=1e-6)
  small = jax.ShapeDtypeStruct((2, 4, 5), jnp.float32)
  actual = set(primitives(plain_jaxpr.plain(function, small), small))
  assert not actual & {'jit', 'custom_jvp_call', 'stack', 'unstack'}
  assert not actual & {'pad', 'reduce_window_max', 'optimization_barrier'}


def test_what_is_constant_is_computed_at_once():
  def function(x):
    kernel = jnp.asarray(CONSTANT)
    return x @ (kernel / jnp.sqrt(kernel.var(axis=0))) + kernel[0]

  x = np.ones((3, 4), np.float32)
  shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
  plain = plain_jaxpr.plain(function, shape)
  np.testing.assert_allclose(plain(x), function(x), rtol=1e-6)
  assert not {'sqrt', 'div', 'reduce_sum'} & set(primitives(plain, shape))


def test_what_has_no_plain_words():
  shape = jax.ShapeDtypeStruct((3, 4), jnp.float32)
  with pytest.raises(NotImplementedError, match='padding by'):
    plain_jaxpr.plain(lambda x: lax.pad(x, 0.0, [(0, 0, 1), (0, 0, 0)]), shape)
