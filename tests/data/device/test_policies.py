"""Policies: what they draw, against their sources' formulas, and their result.

Operations themselves are tested in test_operations.py.
"""

import functools

import by_pillow
import jax
import numpy as np
import pytest

from vit_jax.data import augmentations
from vit_jax.data.device import operations

TIMM = 'rand(m=9, mstd=0.5, inc=1)'
ALL = ('randaugment(2,10)', TIMM, 'trivialaugment', 'autoaugment', '3augment')
PHOTOGRAPHS = np.tile(by_pillow.photographs(40, 28), (8, 1, 1, 1))
KEYS = jax.random.split(jax.random.key(0), 4000)


def make(text):
  return augmentations.make(text, 'augment.policy')


@functools.cache
def policy(text):
  policy = make(text)
  return policy, jax.jit(policy)


def augment(text, images=PHOTOGRAPHS, keys=KEYS) -> np.ndarray:
  return np.asarray(policy(text)[1](images, keys[: len(images)]))


@functools.cache
def draws(text, size=(224, 224)) -> operations.Draw:
  """Returns what is drawn for KEYS, with an array of names as `op`."""
  actual = jax.tree.map(np.asarray, make(text).draw(KEYS, size))
  return actual._replace(op=np.array(operations.NAMES)[actual.op])


def amounts(text, name, size=(224, 224)) -> list[float]:
  """Returns all amounts of an operation that are drawn."""
  actual = draws(text, size)
  assert (actual.op == name).any()
  return np.unique(actual.amount[actual.op == name]).tolist()


def signed(value):
  return sorted({-value, value})


@pytest.mark.slow
@pytest.mark.parametrize('text', ALL)
def test_result_is_that_of_pillow_operation_by_operation(text):
  made, _ = policy(text)
  ops, *others = draws(text, (40, 28))
  ops = np.vectorize(operations.NAMES.index)(ops)
  expected = by_pillow.apply_all(
    PHOTOGRAPHS, (ops, *others), made.interpolation, made.fill
  )
  actual = augment(text)
  assert actual.dtype == np.uint8
  errors = np.abs(expected.astype(int) - actual)
  # A level between two operations may become more by the second.
  assert (errors > 1).mean() < 2e-3
  assert (actual != PHOTOGRAPHS).mean() > 0.3


@pytest.mark.parametrize('text', ALL)
def test_result_depends_on_own_key_alone(text):
  actual = augment(text)
  order = np.random.default_rng(0).permutation(len(PHOTOGRAPHS))
  moved = augment(text, PHOTOGRAPHS[order], KEYS[order])
  assert (moved == actual[order]).all()
  other = augment(text, keys=KEYS[100:])
  assert (other != actual).any()


def test_an_image_alone():
  actual = augment('3augment', PHOTOGRAPHS[1:2], KEYS[1:2])
  assert (actual[0] == augment('3augment')[1]).all()


def test_devices_need_not_talk():
  if jax.device_count() < 8:
    pytest.skip('needs 8 devices')
  mesh = jax.make_mesh((8,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))
  rows = jax.NamedSharding(mesh, jax.P('x'))
  images, keys = jax.device_put((PHOTOGRAPHS, KEYS[: len(PHOTOGRAPHS)]), rows)
  text = 'randaugment(2,10)'
  run = jax.jit(policy(text)[0], out_shardings=rows).lower(images, keys)
  compiled = run.compile()
  assert (np.asarray(compiled(images, keys)) == augment(text)).all()
  assert 'all-' not in compiled.as_text()


@pytest.mark.parametrize('magnitude', [0, 7, 10, 15, 30])
def test_randaugment_draws_as_tensorflow(magnitude):
  text = f'randaugment(2,{magnitude})'
  actual = draws(text)
  assert actual.op.shape == (2, len(KEYS))
  names, counts = np.unique(actual.op, return_counts=True)
  assert len(names) == 16 and 'identity' not in names
  assert counts.min() > 0.85 * counts.mean()
  x = magnitude / 10
  expected = {
    'rotate': signed(x * 30),
    'posterize': [int(x * 4)],
    'solarize': [int(x * 256)],
    'solarize_add': [int(x * 110)],
    'color': [x * 1.8 + 0.1],
    'sharpness': [x * 1.8 + 0.1],
    'shear_x': signed(x * 0.3),
    'translate_y': signed(x * 100),
    'cutout': [int(x * 40)],
  }
  for name, values in expected.items():
    np.testing.assert_allclose(amounts(text, name), values, 1e-6)
  small = amounts(text, 'translate_x', (48, 32))
  np.testing.assert_allclose(small, signed(x * 100 * 32 / 224), 1e-6)
  assert amounts(text, 'cutout', (48, 32)) == [int(x * 40 * 32 / 224)]


@pytest.mark.parametrize('magnitude', [0, 7, 9, 14])
def test_timm_draws_as_timm(magnitude):
  plain_text, increasing_text = (
    f'rand(m={magnitude}, p=0.8, inc={inc})' for inc in (0, 1)
  )
  actual = draws(plain_text)
  names, counts = np.unique(actual.op, return_counts=True)
  assert actual.op.shape == (2, len(KEYS))
  assert len(names) == 16 and 'cutout' not in names
  share = dict(zip(names, counts / counts.sum(), strict=True))
  assert 0.18 < share.pop('identity') < 0.22
  assert min(share.values()) > 0.85 * 0.8 / 15
  x = min(magnitude, 10) / 10
  enhanced = [max(0.1, 1 + 0.9 * v) for v in signed(x)]
  expected = {
    'posterize': ([int(x * 4)], [4 - int(x * 4)]),
    'solarize': ([int(x * 256)], [256 - int(x * 256)]),
    'solarize_add': ([int(x * 110)],) * 2,
    'contrast': ([x * 1.8 + 0.1], enhanced),
    'rotate': (signed(x * 30),) * 2,
    'shear_y': (signed(x * 0.3),) * 2,
    'translate_x': (signed(x * 0.45 * 32),) * 2,
    'translate_y': (signed(x * 0.45 * 48),) * 2,
  }
  for name, (plain, increasing) in expected.items():
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    close(amounts(plain_text, name, (48, 32)), plain)
    close(amounts(increasing_text, name, (48, 32)), increasing)


def test_timm_magnitudes_vary():
  angles = np.abs(amounts(TIMM, 'rotate')) / 3
  assert angles.max() == pytest.approx(10)  # cut there
  assert abs(np.median(angles) - 9) < 0.1
  assert 0.4 < angles[angles < 9.5].std() < 0.6 or angles.min() > 7
  assert make('rand').layers == 2


def test_trivialaugment_draws_as_torchvision():
  actual = draws('trivialaugment')
  names, counts = np.unique(actual.op, return_counts=True)
  assert actual.op.shape == (1, len(KEYS))
  assert len(names) == 14 and counts.min() > 0.75 * counts.mean()
  bins = np.arange(31)
  both = [-1, 1]
  expected = {
    'rotate': np.outer(both, 135 * bins / 30),
    'shear_x': np.outer(both, 0.99 * bins / 30),
    'translate_y': np.outer(both, bins * 32 // 30),
    'brightness': 1 + np.outer(both, 0.99 * bins / 30),
    'posterize': 8 - np.round(bins / 5),
    'solarize': 255 - 255 * bins / 30,
  }
  for name, values in expected.items():
    drawn = np.array(amounts('trivialaugment', name))
    nearest = np.abs(drawn[:, None] - values.ravel()).min(axis=1)
    assert nearest.max() < 1e-4, name
    assert np.ptp(drawn) > 0.95 * np.ptp(values), name
  assert make('trivialaugment').fill == 0


def test_autoaugment_draws_pairs():
  actual = draws('autoaugment', (32, 48))
  assert actual.op.shape == (2, len(KEYS))
  names = [name for name in np.unique(actual.op) if name != 'identity']
  assert len(names) == 13  # shear_x is of no pair
  pairs = {tuple(pair) for pair in actual.op.T if 'identity' not in pair}
  assert {('shear_y', 'translate_y'), ('contrast', 'sharpness')} <= pairs
  assert len(pairs) <= 25 and ('solarize', 'invert') not in pairs
  shifted = amounts('autoaugment', 'translate_x', (32, 48))
  assert shifted == [-21, -19, 19, 21]  # 9 and 8 ninths of 150 / 331
  assert amounts('autoaugment', 'posterize') == [5]
  both = (actual.op == np.array([['shear_y'], ['translate_y']])).all(axis=0)
  assert abs(both.mean() - 0.5 * 0.7 / 25) < 0.006


def test_3augment_draws_one_of_three():
  actual = draws('3augment')
  names, counts = np.unique(actual.op, return_counts=True)
  assert set(names) == {'grayscale', 'solarize', 'gaussian_blur'}
  assert counts.min() > 0.9 * counts.mean()
  radii = amounts('3augment', 'gaussian_blur')
  assert 0.1 <= min(radii) < 0.12 and 1.98 < max(radii) <= 2
  assert amounts('3augment', 'solarize') == [128]
