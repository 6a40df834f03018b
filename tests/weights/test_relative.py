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


def test_tables_are_copied_made_or_dropped():
  changes = assert_same_function(SHARED, LAYERS)
  assert changes[f'blocks_1/attention/{NAME}'].action == 'shared -> layers'
  with pytest.raises(UserError, match=r'set config\.model\.positions'):
    adapt(LAYERS, SHARED)
  plain = tiny(positions='none', **FIELDS)
  changes = assert_same_function(plain, LAYERS)  # new tables are zeros
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
  model = LAYERS.clone(scan=True)
  stacked, _ = adapt_lib.adapt(
    *(layouts.stack_layers(init(LAYERS)), model, model, GRID, (3, 3)),
    channels=3,
    resize='bicubic',
  )
  expected, _ = adapt(LAYERS, LAYERS, (3, 3), resize='bicubic')
  jax.tree.map(
    np.testing.assert_array_equal, layouts.unstack_layers(stacked), expected
  )


def test_geometric_is_a_spline_through_distances_that_grow():
  """As BEiT's authors compute it, by another function of SciPy."""
  old, new = (7, 7), (12, 12)
  rng = np.random.default_rng(0)
  table = rng.standard_normal((relative.rows(old), 2), np.float32)
  resized = resize.relative_positions(table, old, new, 'geometric')
  low, high = 1.01, 1.5
  while high - low > 1e-6:
    q = (low + high) / 2
    low, high = (low, q) if sum(q**i for i in range(6)) > 11 else (q, high)
  distances = [sum(q**i for i in range(n)) for n in range(1, 7)]
  x = np.array([-d for d in distances[::-1]] + [0] + distances)
  targets = np.clip(np.arange(-11, 12), x[0], x[-1])
  for head in range(2):
    spline = interpolate.RectBivariateSpline(
      x, x, table[:-3, head].reshape(13, 13), s=0
    )
    np.testing.assert_allclose(
      resized[:-3, head].reshape(23, 23), spline(targets, targets), atol=1e-4
    )
  # A step of one patch keeps its value; the farthest stays the farthest.
  before, after = table[:-3].reshape(13, 13, 2), resized[:-3].reshape(23, 23, 2)
  for step in (-1, 0, 1):
    np.testing.assert_allclose(
      after[11 + step, 11], before[6 + step, 6], atol=1e-4
    )
  np.testing.assert_allclose(after[0, 0], before[0, 0], atol=1e-3)
