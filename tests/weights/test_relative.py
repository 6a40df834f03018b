"""Tables of relative positions, fitted to another grid or to each layer."""

import jax
import numpy as np
import pytest
from scipy import interpolate
from test_adapt import adapt
from test_adapt import assert_same_function
from test_adapt import GRID
from test_adapt import init
from test_adapt import tiny

from vit_jax.config import UserError
from vit_jax.models import layouts
from vit_jax.models.parts import relative
from vit_jax.weights import adapt as adapt_lib
from vit_jax.weights import resize

FIELDS = {'class_token': True}
SHARED = tiny(positions='relative_bias', **FIELDS)
LAYERS = tiny(positions='relative_bias(shared=False)', **FIELDS)
NAME = 'relative_position_bias'


def table_of(grid, heads=2):
  rng = np.random.default_rng(0)
  return rng.standard_normal((relative.rows(grid), heads), np.float32)


def test_a_shared_table_is_copied_to_each_layer():
  changes = assert_same_function(SHARED, LAYERS)
  assert changes[f'blocks_1/attention/{NAME}'].action == 'shared -> layers'
  with pytest.raises(UserError, match=r'set config\.model\.positions'):
    adapt(LAYERS, SHARED)


def test_new_tables_are_zeros_and_change_nothing():
  plain = tiny(positions='none', **FIELDS)
  changes = assert_same_function(plain, LAYERS)
  assert changes[f'blocks_0/attention/{NAME}'].is_fresh
  _, changes = adapt(SHARED, plain)
  assert changes[NAME].new is None


@pytest.mark.parametrize('method', resize.METHODS)
def test_another_grid(method):
  grid = (4, 5)
  params, changes = adapt(SHARED, LAYERS, grid, resize=method)
  expected = resize.relative_positions(init(SHARED)[NAME], GRID, grid, method)
  for i in range(2):
    np.testing.assert_array_equal(
      params[f'blocks_{i}']['attention'][NAME], expected
    )
  np.testing.assert_array_equal(expected[-3:], init(SHARED)[NAME][-3:])
  action = changes[f'blocks_0/attention/{NAME}'].action
  assert action.endswith(f'; grid 2 x 3 -> 4 x 5, {method}')


def test_stacked_layers():
  source, target = (x.clone(scan=True) for x in (LAYERS, LAYERS))
  params = layouts.stack_layers(init(LAYERS))
  found, _ = adapt_lib.adapt(
    params, source, target, GRID, (3, 3), channels=3, resize='bicubic'
  )
  expected, _ = adapt(LAYERS, LAYERS, (3, 3), resize='bicubic')
  jax.tree.map(
    np.testing.assert_array_equal, layouts.unstack_layers(found), expected
  )


def test_geometric_is_a_spline_through_distances_that_grow():
  """As BEiT's authors compute it, by another function of SciPy."""
  old, new = (7, 7), (12, 12)
  table = table_of(old)
  found = resize.relative_positions(table, old, new, 'geometric')
  low, high = 1.01, 1.5
  while high - low > 1e-6:
    q = (low + high) / 2
    if sum(q**i for i in range(6)) > 11:
      high = q
    else:
      low = q
  distances = [sum(q**i for i in range(n)) for n in range(1, 7)]
  x = np.array([-d for d in distances[::-1]] + [0] + distances)
  wanted = np.clip(np.arange(-11, 12), x[0], x[-1])
  for head in range(2):
    spline = interpolate.RectBivariateSpline(
      x, x, table[:-3, head].reshape(13, 13), s=0
    )
    np.testing.assert_allclose(
      found[:-3, head].reshape(23, 23), spline(wanted, wanted), atol=1e-4
    )


def test_geometric_keeps_near_distances():
  """A step of one patch keeps its value; the farthest stays the farthest."""
  table = table_of((7, 7))
  found = resize.relative_positions(table, (7, 7), (14, 14), 'geometric')
  before, after = table[:-3].reshape(13, 13, 2), found[:-3].reshape(27, 27, 2)
  for step in (-1, 0, 1):
    np.testing.assert_allclose(
      after[13 + step, 13], before[6 + step, 6], atol=1e-4
    )
  np.testing.assert_allclose(after[0, 0], before[0, 0], atol=1e-3)
