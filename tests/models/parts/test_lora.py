"""LoRA and adapters: layers that begin as those which they adapt."""

import re

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import layouts
from vit_jax.models.parts import adapters
from vit_jax.weights import adapt

IMAGES = jax.random.normal(jax.random.key(0), (2, 8, 12, 3))
TINY = {'hidden_size': 16, 'mlp_dim': 32, 'num_heads': 2, 'depth': 2}
ALL_LAYERS = "lora(2, layers=('query', 'key', 'value', 'out', 'up', 'down'))"
KINDS = ['lora(rank=2)', ALL_LAYERS, 'adaptformer(width=4)', 'houlsby(width=4)']


def make(**fields):
  return models.create_model('ViT-Ti/4', 3, **TINY | fields)


def apply(model, params):
  return np.asarray(compiled.apply(model, {'params': params}, IMAGES))


def random_params(model):
  """Returns parameters none of which is zero."""
  rng = np.random.default_rng(0)
  shapes = models.abstract_params(model, IMAGES.shape[1:])
  return jax.tree.map(
    lambda x: jnp.asarray(0.3 * rng.standard_normal(x.shape, np.float32)),
    shapes,
  )


def adapted(params, source, target):
  grid = 2, 3
  return adapt.adapt(params, source, target, grid, grid, channels=3)


@pytest.mark.parametrize('scan', [False, True])
@pytest.mark.parametrize('block', KINDS)
def test_a_layer_begins_as_the_one_it_adapts(block, scan):
  base, model = make(scan=scan), make(block=block, scan=scan)
  params = random_params(base)
  more, changes = adapted(params, base, model)
  np.testing.assert_array_equal(apply(model, more), apply(base, params))
  assert all(x.is_fresh for x in changes)
  added = [x.path for x in changes]
  assert all(re.search(model.block.added, x) for x in added)
  assert 'blocks_1' in added[-1] and len(added) % 2 == 0


@pytest.mark.parametrize('block', KINDS)
def test_unrolled_and_scanned_layers_compute_the_same(block):
  model = make(block=block)
  params = random_params(model)
  stacked = layouts.stack_layers(params)
  scanned = apply(model.clone(scan=True), stacked)
  np.testing.assert_allclose(scanned, apply(model, params), atol=1e-5)


@pytest.mark.parametrize('remat', ['activations', 'products', 'full'])
def test_gradients_do_not_depend_on_what_is_recomputed(remat):
  model = make(block=ALL_LAYERS)
  params = random_params(model)

  def gradients(model):
    def loss(params):
      return (model.apply({'params': params}, IMAGES) ** 2).sum()

    return jax.jit(jax.grad(loss))(params)

  expected, recomputed = map(gradients, (model, model.clone(remat=remat)))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5 * abs(y).max()),
    recomputed,
    expected,
  )


@pytest.mark.parametrize(
  ('block', 'fields'),
  [
    ('lora(rank=2)', {}),
    (ALL_LAYERS, {'scan': True}),
    (ALL_LAYERS, {'mlp': 'swiglu'}),
    (
      "lora(2, alpha=3.0, layers=('query', 'key_value', 'out'))",
      {'attention': 'grouped(key_heads=1)'},
    ),
  ],
)
def test_merged_factors_compute_the_same(block, fields):
  model = make(block=block, **fields)
  base = make(**fields)
  params = random_params(model)
  merged, _ = adapted(params, model, base)
  shapes = models.abstract_params(base, IMAGES.shape[1:])
  assert jax.tree.map(jnp.shape, merged) == jax.tree.map(jnp.shape, shapes)
  expected = apply(model, params)
  np.testing.assert_allclose(apply(base, merged), expected, atol=1e-5)
  factors_off = jax.tree_util.tree_map_with_path(
    lambda path, x: 0 * x if 'lora' in str(path[-1]) else x, params
  )
  assert abs(apply(model, factors_off) - expected).max() > 0.01


def test_a_factor_is_scaled_by_its_rank():
  """Equation 3 of LoRA, for queries alone."""
  model = make(block="lora(2, alpha=8.0, layers=('query',))", depth=1)
  params = random_params(model)
  layer = params['blocks_0']['attention']['qkv']
  base, _ = adapted(params, model, make(depth=1))
  kernel = base['blocks_0']['attention']['qkv']['kernel']
  product = np.einsum(
    'dr,rhk->dhk', layer['lora_query_a'], layer['lora_query_b']
  )
  np.testing.assert_allclose(
    kernel[:, 0] - layer['kernel'][:, 0], 4 * product, atol=1e-6
  )
  np.testing.assert_array_equal(kernel[:, 1:], layer['kernel'][:, 1:])


class LowRankParallel(
  adapters.LowRank, models.registry.part_class('block', 'parallel')
):
  """As docs/fine_tuning.md has it."""


def test_factors_are_added_to_any_layer():
  block = f'{__name__}:LowRankParallel(rank=2)'
  base, model = make(block='parallel'), make(block=block)
  params = random_params(base)
  more, _ = adapted(params, base, model)
  np.testing.assert_array_equal(apply(model, more), apply(base, params))
  again, _ = adapted(more, model, base)
  np.testing.assert_array_equal(apply(base, again), apply(base, params))


def test_a_layer_that_is_not_there_is_named():
  model = make(block="lora(layers=('quary', 'up'))")
  with pytest.raises(UserError) as e:
    models.init_params(model, jax.random.key(0), IMAGES.shape[1:])
  assert str(e.value) == (
    "config.model.block: layers=('quary', 'up'): no dense layer is named quary:"
    ' there are down, key, out, query, up, value'
  )


def test_another_rank_and_adapters_that_cannot_be_merged_are_refused():
  source = make(block='lora(rank=2)')
  params = random_params(source)
  with pytest.raises(UserError, match=r'block\.rank is 2'):
    adapted(params, source, make(block='lora(rank=4)'))
  with pytest.raises(UserError, match=r'block\.alpha is 16'):
    adapted(params, source, make(block='lora(rank=2, alpha=1.0)'))
  source = make(block='houlsby(width=4)')
  with pytest.raises(UserError, match='leave it as it is'):
    adapted(random_params(source), source, make())
