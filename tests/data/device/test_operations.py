"""Operations on batches, against Pillow's on photographs."""

import functools
import itertools

import by_pillow
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.data.device import color
from vit_jax.data.device import operations

AMOUNTS = {
  'posterize': (0, 1, 3, 5, 8, 12),
  'solarize': (0, 26, 128, 204.5, 256, 512),
  'solarize_add': (0, 55, 110, 330),
  'brightness': (0, 0.1, 0.9, 1, 1.1, 1.9, 3.7),
  'contrast': (0, 0.1, 0.9, 1, 1.1, 1.9, 3.7),
  'color': (0, 0.1, 0.7, 1, 1.3, 1.9, 3.7),
  'sharpness': (0, 0.1, 0.9, 1, 1.3, 1.9, 2.8),
  'hue': (-0.5, -0.31, -0.1, 0, 0.05, 0.2, 0.5),
  'gaussian_blur': (0.1, 0.5, 0.9, 1.3, 1.7, 2, color.MAX_BLUR),
  'rotate': (-30, -17.3, 3, 45, 60, 90, 135, 180),
  'shear_x': (-0.3, 0.27, 0.99),
  'shear_y': (-0.3, 0.27, 0.99),
  'translate_x': (-14.2857, 3, 7.5, 100),
  'translate_y': (-3.3, 10, 14.2857, -50),
  'cutout': (0, 2, 5, 40),
}
CASES = [(n, a) for n in operations.NAMES for a in AMOUNTS.get(n, (0,))]
# (height, width, channels, interpolation).
KINDS = [(32, 32, 3, 'nearest'), (40, 28, 1, 'nearest'), (28, 40, 4, 'nearest')]
KINDS_BETWEEN = [(40, 28, 3, 'bilinear'), (28, 28, 1, 'bilinear')]
SPOTS = np.random.default_rng(0).random((4, 2), np.float32)

apply = jax.jit(operations.apply, static_argnames=('op_names', 'interpolation'))


@functools.cache
def results(height, width, channels, interpolation) -> np.ndarray:
  """Returns [cases, images, height, width, channels]."""
  images = by_pillow.photographs(height, width, channels)
  names, amounts = zip(*[c for c in CASES for _ in images], strict=True)
  draw = by_pillow.make_draw(names, amounts, np.tile(SPOTS, (len(CASES), 1)))
  op_names = (
    operations.NAMES if interpolation == 'nearest' else by_pillow.SHAPES
  )
  many = np.tile(images, (len(CASES), 1, 1, 1))
  actual = apply(many, draw, op_names=op_names, interpolation=interpolation)
  assert actual.dtype == jnp.uint8
  return np.asarray(actual).reshape(len(CASES), *images.shape)


@pytest.mark.parametrize(
  ('name', 'kind'),
  [
    *itertools.product(operations.NAMES, KINDS),
    *itertools.product(by_pillow.SHAPES, KINDS_BETWEEN),
  ],
)
def test_equals_pillow(name, kind):
  images = by_pillow.photographs(*kind[:3])
  for (each, amount), actual in zip(CASES, results(*kind), strict=True):
    if each != name:
      continue
    expected = [
      by_pillow.apply(image, name, amount, spot, kind[3])
      for image, spot in zip(images, SPOTS, strict=True)
    ]
    errors = np.abs(np.stack(expected).astype(int) - actual)
    assert errors.max() <= 1, amount
    assert (errors > 0).mean() < 0.1, amount
    if name not in by_pillow.SHAPES:  # float32 between pixels
      assert (errors > 0).mean() < 0.01, amount


def test_one_colour_and_few_pixels():
  values = np.repeat([0, 77, 255], len(operations.NAMES)).astype(np.uint8)
  images = np.broadcast_to(values[:, None, None, None], (len(values), 1, 4, 3))
  names = operations.NAMES * 3
  actual = apply(images, by_pillow.make_draw(names, [1.0] * len(names)))
  for image, name, result in zip(images, names, actual, strict=True):
    expected = by_pillow.apply(image, name, 1.0, np.zeros(2))
    assert np.abs(np.asarray(result, int) - expected).max() <= 1, name


def test_all_hues_equal_pillow():
  axis = np.arange(0, 256, 5, dtype=np.uint8)
  image = np.stack(np.meshgrid(axis, axis, axis), axis=-1).reshape(52, -1, 3)
  hue = jax.jit(color.hue)
  for amount in (-0.2, 0.0, 0.4):
    shifted = hue(image, jnp.float32(amount))
    expected = by_pillow.apply(image, 'hue', amount)
    assert np.abs(np.asarray(shifted, int) - expected).max() <= 1


def test_only_what_is_among_is_done():
  images = by_pillow.photographs(32, 32)
  draw = by_pillow.make_draw(['invert', 'rotate', 'color', 'hue'], [0.3] * 4)
  actual = np.asarray(apply(images, draw, op_names=('invert', 'color')))
  assert (actual[0] == 255 - images[0]).all()
  assert (actual[1] == images[1]).all() and (actual[3] == images[3]).all()
  assert (actual[2] != images[2]).any()


KEYS = jax.random.split(jax.random.key(0), 600)


def test_jitter_draws_orders_and_amounts():
  strengths = (0.4, 1.5, 0.2, 0.1)
  draws = operations.draw_jitter(KEYS, strengths)
  orders = [tuple(op) for op in np.asarray(draws.op).T]
  ops = [operations.NAMES.index(name) for name in operations.JITTER]
  assert set(orders) == set(itertools.permutations(ops))
  counts = [orders.count(order) for order in set(orders)]
  assert 8 < min(counts) and max(counts) < 45  # 25 each
  bounds = [(0.6, 1.4), (0, 2.5), (0.8, 1.2), (-0.1, 0.1)]
  for op, (low, high) in zip(ops, bounds, strict=True):
    amounts = np.asarray(draws.amount)[np.asarray(draws.op) == op]
    assert len(amounts) == len(KEYS)
    spread = high - low
    assert low <= amounts.min() < low + 0.02 * spread
    assert high - 0.02 * spread < amounts.max() <= high
    assert abs(amounts.mean() - (low + high) / 2) < 0.05 * spread


def test_jitter_equals_pillow():
  images = np.tile(by_pillow.photographs(40, 28, 4), (6, 1, 1, 1))
  keys, strengths = KEYS[: len(images)], (0.4, 0.4, 0.4, 0.1)
  jitter = jax.jit(functools.partial(operations.jitter, strengths=strengths))
  actual = np.asarray(jitter(images, keys))
  draws = operations.draw_jitter(keys, strengths)
  errors = np.abs(by_pillow.apply_all(images, draws).astype(int) - actual)
  assert (errors > 1).mean() < 1e-3
  assert (actual != images)[..., :3].mean() > 0.5


@pytest.mark.parametrize('name', operations.SOMETIMES)
def test_sometimes_equals_pillow(name):
  images = np.tile(by_pillow.photographs(40, 28, 3), (50, 1, 1, 1))
  keys = KEYS[: len(images)]
  actual = np.asarray(operations.sometimes(images, keys, name, 0.3))
  is_left = (actual == images).all(axis=(1, 2, 3))
  assert 0.2 < 1 - is_left.mean() < 0.4
  if name == 'gaussian_blur':
    strong = np.stack([by_pillow.apply(x, name, 2) for x in images])
    change, most = (
      np.abs(x - images.astype(int)).mean(axis=(1, 2, 3))
      for x in (actual, strong)
    )
    assert (change <= most + 0.1).all()
    assert len(set(change[~is_left])) > 30  # each by its own amount
  else:
    amount = operations.SOMETIMES[name][0]
    expected = np.stack([by_pillow.apply(x, name, amount) for x in images])
    assert np.abs(expected[~is_left].astype(int) - actual[~is_left]).max() <= 1
  assert (operations.sometimes(images, keys, name, 0.0) == images).all()


def test_jitter_leaves_some_images():
  images = np.tile(by_pillow.photographs(32, 32), (50, 1, 1, 1))
  keys, strengths = KEYS[: len(images)], (0.4, 0.4, 0.2, 0.1)
  always = np.asarray(operations.jitter(images, keys, strengths))
  actual = np.asarray(operations.jitter(images, keys, strengths, 0.8))
  is_left = (actual == images).all(axis=(1, 2, 3))
  assert 0.1 < is_left.mean() < 0.3
  np.testing.assert_array_equal(actual[~is_left], always[~is_left])


def test_jitter_leaves_out_what_has_no_strength():
  images = by_pillow.photographs(32, 32)
  keys = KEYS[: len(images)]
  assert (operations.jitter(images, keys, (0, 0, 0, 0)) == images).all()
  draws = operations.draw_jitter(keys, (0.3, 0, 0.3, 0))
  names = {operations.NAMES[op] for op in np.asarray(draws.op).ravel()}
  assert names == {'brightness', 'color'}
