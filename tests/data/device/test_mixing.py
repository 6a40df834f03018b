"""Mixup and CutMix, against their formulas in NumPy."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax.data import augmentations
from vit_jax.data.device import mixing

SIZE, CLASSES = (12, 20), 5
IMAGES = np.stack([stand_in.pixels(i, *SIZE) for i in range(16)]) / 255
IMAGES = IMAGES.astype(np.float32)
LABELS = (np.arange(16) * 3 % CLASSES).astype(np.int32)
KEYS = jax.random.split(jax.random.key(5), 16)


def make_config(**settings) -> ml_collections.ConfigDict:
  augment = config_lib.default().augment
  augment.update(settings)
  return augment


@jax.jit
def mix_both(images, labels, keys):
  config = make_config(mixup=0.8, cutmix=1.0)
  targets = {'label': jax.nn.one_hot(labels, CLASSES)}
  images, targets = mixing.mix(images, targets, keys, config)
  return images, targets['label']


def mix(images=IMAGES, labels=LABELS, keys=KEYS):
  return [np.asarray(x) for x in mix_both(images, labels, keys)]


def draw(**settings):
  """Shares and boxes of many images."""
  config = make_config(**settings)
  keys = jax.random.split(jax.random.key(1), 4000)
  mix = jax.jit(lambda keys: mixing.draw(keys, SIZE, config))(keys)
  return np.asarray(mix.share), np.asarray(mix.box)


def area(box) -> np.ndarray:
  return (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])


def test_it_is_the_formula():
  share = np.linspace(0, 1, 16, dtype=np.float32)
  box = np.zeros((16, 4), np.int32)
  box[::3], share[::3] = (2, 3, 9, 20), 1
  settings = mixing.Mix(jnp.asarray(share), jnp.asarray(box))
  targets = {'label': jax.nn.one_hot(LABELS, CLASSES)}
  images, targets = jax.jit(mixing.apply)(IMAGES, targets, settings)
  labels = targets['label']
  for row in range(16):
    other = IMAGES[row ^ 1]
    expected = share[row] * IMAGES[row] + (1 - share[row]) * other
    own = share[row]
    if row % 3 == 0:
      expected[2:9, 3:20] = other[2:9, 3:20]
      own = 1 - 7 * 17 / (12 * 20)
    one_hot = np.eye(CLASSES)[LABELS]
    np.testing.assert_allclose(images[row], expected, atol=1e-6)
    np.testing.assert_allclose(
      labels[row], own * one_hot[row] + (1 - own) * one_hot[row ^ 1], atol=1e-6
    )


@pytest.mark.parametrize('size', [(32, 32), (12, 20), (5, 7)])
def test_the_box_is_that_of_the_authors(size):
  rng = np.random.default_rng(0)
  cut_box = jax.jit(mixing.cut_box, static_argnums=0)
  for share, *middle in rng.random((50, 3), np.float32):
    sides = [int(n * np.sqrt(1 - share)) for n in size]
    center = [int(n * x) for n, x in zip(size, middle, strict=True)]
    low = [max(c - s // 2, 0) for c, s in zip(center, sides, strict=True)]
    high = [
      min(c + s // 2, n) for c, s, n in zip(center, sides, size, strict=True)
    ]
    actual = cut_box(size, share, jnp.array(middle))
    assert actual.tolist() == low + high


@pytest.mark.parametrize('alpha', [0.2, 3.0])
def test_shares_of_mixup_are_those_of_beta(alpha):
  share, box = draw(mixup=alpha)
  assert not area(box).any()
  assert share.mean() == pytest.approx(0.5, abs=0.03)
  assert share.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)
  assert 0 <= share.min() and share.max() <= 1
  # Not one for all.
  assert len(np.unique(share)) > 3000


def test_boxes_of_cutmix():
  share, box = draw(cutmix=1.0)
  assert (share == 1).all()
  assert (box >= 0).all() and (box <= [*SIZE, *SIZE]).all()
  top, left, bottom, right = box.T
  assert (bottom >= top).all() and (right >= left).all()
  # Areas are uniform, but for rounding, and the border that cuts them off.
  inside = (top > 0) & (left > 0) & (bottom < SIZE[0]) & (right < SIZE[1])
  assert inside.mean() == pytest.approx(1 / 6, abs=0.02)
  assert 0.2 < area(box).mean() / (12 * 20) < 0.4
  middle = (top + bottom)[inside].mean() / 2, (left + right)[inside].mean() / 2
  assert middle == pytest.approx((6, 10), abs=0.5)


def test_which_of_the_two_and_whether():
  share, box = draw(
    mixup=0.8, cutmix=1.0, cutmix_share=0.25, mix_probability=0.6
  )
  blended = share < 1
  assert blended.mean() == pytest.approx(0.6 * 0.75, abs=0.03)
  assert not area(box)[blended].any()
  cut = (area(box) > 0).mean()  # a few boxes are empty
  assert cut == pytest.approx(0.6 * 0.25, abs=0.03)


@pytest.mark.parametrize(
  'settings, on',
  [
    ({}, False),
    ({'mixup': 0.2}, True),
    ({'cutmix': 1.0}, True),
    ({'cutmix': 1.0, 'mix_probability': 0.0}, False),
  ],
)
def test_is_on(settings, on):
  assert augmentations.mixes(make_config(**settings)) is on


def test_a_label_is_the_share_of_its_pixels():
  kinds = np.arange(16) % 2
  images = np.broadcast_to(kinds[:, None, None, None], IMAGES.shape)
  mixed, labels = mix(images.astype(np.float32), kinds)
  assert labels.shape == (16, CLASSES) and labels.dtype == np.float32
  np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
  np.testing.assert_allclose(labels[:, 1], mixed.mean((1, 2, 3)), atol=1e-6)
  assert not labels[:, 2:].any()
  is_cut = np.isin(mixed, [0, 1]).all((1, 2, 3))
  assert 0 < is_cut.sum() < 16


def test_exchanging_pairs_exchanges_results():
  images, labels = mix()
  pairs = np.random.default_rng(0).permutation(8)
  rows = np.stack([2 * pairs, 2 * pairs + 1], axis=1).ravel()
  moved = mix(IMAGES[rows], LABELS[rows], KEYS[rows])
  np.testing.assert_array_equal(moved[0], images[rows])
  np.testing.assert_array_equal(moved[1], labels[rows])


def test_it_is_the_same_on_devices_that_part_the_pairs():
  if jax.device_count() < 8:
    pytest.skip('there are too few devices')
  mesh = jax.make_mesh(
    (8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  given = jax.device_put((IMAGES[:8], LABELS[:8], KEYS[:8]), split)
  for x, expected in zip(mix(*given), mix(), strict=True):
    np.testing.assert_allclose(x, expected[:8], atol=1e-6)
