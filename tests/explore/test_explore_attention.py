"""Attention in cases whose answer is known."""

import functools

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import planted
import pytest

from vit_jax import explore
from vit_jax.explore import attention
from vit_jax.weights import features

PREFIXES = [
  {},
  {'distillation_token': True, 'registers': 2},
  {'pool': 'mean'},
]
FINDERS = [
  {},
  {'pool': 'mean'},
  {'pool': 'token_and_mean'},
  {'registers': 1},
  {'pool': 'mean', 'class_token': True},
]


def uniform(**overrides):
  """Returns a model whose queries are all 0."""
  vit = planted.loaded(planted.tiny(**overrides))
  for layer in range(3):
    qkv = vit.params[f'blocks_{layer}']['attention']['qkv']
    for x in qkv.values():
      x[..., 0, :, :] = 0
  return vit


def mean_pair_distance(h, w, p, q):
  """Returns the mean distance of two points of a grid, by its offsets."""
  total = 0.0
  for dy in range(-h + 1, h):
    for dx in range(-w + 1, w):
      pairs = (h - abs(dy)) * (w - abs(dx))
      total += pairs * ((dy * p) ** 2 + (dx * q) ** 2) ** 0.5
  return total / (h * w) ** 2


@pytest.mark.parametrize('prefix', PREFIXES)
def test_uniform_attention_has_known_distance_and_entropy(prefix):
  vit, images = uniform(**prefix), planted.images()
  tokens = 8 + features.prefix_length(vit)
  entropy = explore.attention_entropy(vit, images)
  distance = explore.attention_distance(vit, images)
  assert entropy.shape == distance.shape == (3, 2)
  np.testing.assert_allclose(entropy, np.log(tokens), rtol=1e-5)
  np.testing.assert_allclose(
    distance, mean_pair_distance(2, 4, 4, 4), rtol=1e-5
  )
  maps = explore.attention_maps(vit, images)
  assert maps.shape == (3, 5, 2, 2, 4)
  np.testing.assert_allclose(maps, 1 / tokens, rtol=1e-5)


def test_distance_of_uniform_attention_in_a_row_in_closed_form():
  """Of n points in a row it is (n^2 - 1) / 3n; patches need not be square."""
  for n, prefix in ((5, 1), (7, 0)):
    weights = jnp.full((2, 3, 4, n + prefix, n + prefix), 1 / (n + prefix))
    actual = explore.mean_distance(weights, (1, n), (16, 8), prefix)
    np.testing.assert_allclose(actual, np.full((2, 4), 8 * (n**2 - 1) / 3 / n))
    actual = explore.mean_distance(weights, (n, 1), (16, 8), prefix)
    np.testing.assert_allclose(actual, np.full((2, 4), 16 * (n**2 - 1) / 3 / n))


def test_attention_to_one_token_has_no_entropy_and_its_distance():
  weights = np.zeros((1, 1, 2, 5, 5), np.float32)
  weights[:, :, 0, :, 3] = 1  # patch (1, 0) of 2 x 2
  weights[:, :, 1, :, 0] = 1  # the class token alone
  np.testing.assert_array_equal(explore.entropy(weights), 0)
  actual = explore.mean_distance(weights, (2, 2), (4, 8), 1)
  np.testing.assert_allclose(
    actual, [[(4 + (4**2 + 8**2) ** 0.5 + 8) / 4, 0]], rtol=1e-6
  )


def test_sets_of_images_are_averaged_over_batches(monkeypatch):
  vit, images = planted.loaded(planted.tiny()), planted.images(7)
  captured = planted.looked(vit, images)
  monkeypatch.setattr(features, '_MOST_ATTENTION', 10_000)
  assert features.attention_batch(vit) < 7
  np.testing.assert_allclose(
    explore.attention_entropy(vit, images),
    explore.entropy(captured['attention']),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    explore.attention_distance(vit, images),
    explore.mean_distance(captured['attention'], (2, 4), (4, 4), 1),
    rtol=1e-5,
  )


@pytest.mark.parametrize('mass', [0.1, 0.5, 0.6, 0.999, 1.0])
def test_a_segment_holds_its_mass_and_no_patch_too_many(mass):
  random = np.random.default_rng(0)
  maps = random.exponential(size=(4, 3, 5, 7)).astype(np.float32) ** 3
  actual = attention.segments(maps, mass)
  assert actual.shape == maps.shape and actual.dtype == bool
  expected = mass * maps.sum(axis=(2, 3), dtype=np.float64)
  held = np.where(actual, maps, 0).sum(axis=(2, 3), dtype=np.float64)
  least = np.where(actual, maps, np.inf).min(axis=(2, 3))
  assert (held >= expected * (1 - 1e-5)).all()
  assert (
    held - least < expected
  ).all()  # without its weakest patch: too little
  left = np.where(actual, 0, maps).max(axis=(2, 3))
  assert (left <= least).all()


def test_segments_in_closed_form():
  """Of ten equal patches 60% are six; ties are taken in order."""
  even = np.full((1, 2, 5), 0.1, np.float32)
  actual = attention.segments(even, 0.6)
  np.testing.assert_array_equal(actual.ravel(), np.arange(10) < 6)
  assert attention.segments(even, 1.0).all()
  weights = np.zeros((1, 2, 5), np.float32)
  weights[0, 1, 3] = 0.01  # the rest of the attention is not to patches
  for mass in (0.6, 1.0):
    assert attention.segments(weights, mass).sum() == 1
    assert attention.segments(weights, mass)[0, 1, 3]


def test_segments_of_a_model():
  actual = explore.attention_segments(
    planted.finder(registers=1), planted.with_bright_patches()
  )
  bright = np.zeros((2, 4), bool)
  bright[planted.BRIGHT] = True
  assert actual.shape == (1, 2, 2, 4)
  np.testing.assert_array_equal(actual, np.broadcast_to(bright, actual.shape))


@pytest.mark.parametrize('prefix', PREFIXES)
def test_rollouts_rows_sum_to_one(prefix):
  vit = planted.loaded(planted.tiny(**prefix))
  weights = planted.looked(vit, planted.images())['attention']
  joint = explore.rollout(weights)
  np.testing.assert_allclose(joint.sum(axis=-1), 1, rtol=1e-5)
  expected = np.eye(weights.shape[-1])
  for layer in weights.mean(axis=2):
    expected = (layer + np.eye(weights.shape[-1])) / 2 @ expected
  np.testing.assert_allclose(joint, expected, atol=1e-6)
  actual = explore.attention_rollout(vit, planted.images())
  np.testing.assert_allclose(actual, attention.read_out(vit, joint), atol=1e-6)


def test_rollout_of_uniform_attention():
  """Half of each layer is the residual: (I + 3 ones / N) / 4 after two."""
  n = 6
  joint = explore.rollout(jnp.full((2, 1, 2, n, n), 1 / n))
  np.testing.assert_allclose(joint[0], np.eye(n) / 4 + 0.75 / n, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('overrides', FINDERS)
@pytest.mark.parametrize('scan', [False, True])
def test_a_planted_patch_is_found(overrides, scan):
  vit = planted.finder(**overrides)
  vit = planted.scanned(vit) if scan else vit
  image = planted.with_bright_patches()
  maps = explore.attention_maps(vit, image)
  assert maps[..., *planted.BRIGHT].min() > 0.95
  maps = explore.attention_maps(vit, image, query=(0, 3))
  assert maps[..., *planted.BRIGHT].min() > 0.95
  for actual in (
    explore.attention_rollout(vit, image),
    explore.class_relevance(vit, image, classes=1),
  ):
    assert actual.shape == (1, 2, 4)
    bright = actual[0][planted.BRIGHT]
    assert bright > 0.5 * actual.sum() and bright == actual.max()
  # No gradient, so nothing is relevant.
  assert not explore.class_relevance(vit, image, classes=0).any()


def test_the_query_is_a_chosen_patch():
  vit = planted.loaded(planted.tiny(registers=2))
  weights = planted.looked(vit, planted.images())['attention']
  actual = explore.attention_maps(vit, planted.images(), query=(1, 3))
  expected = weights[..., 3 + 1 * 4 + 3, 3:].reshape(3, 5, 2, 2, 4)
  np.testing.assert_allclose(actual, expected, atol=1e-6)
  actual = explore.attention_maps(vit, planted.images())
  expected = weights[..., 0, 3:].reshape(3, 5, 2, 2, 4)
  np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_the_mean_query_stands_in_for_a_class_token():
  vit = planted.loaded(planted.tiny(pool='mean', registers=1))
  weights = planted.looked(vit, planted.images())['attention']
  actual = explore.attention_maps(vit, planted.images())
  expected = weights[..., 1:, 1:].mean(axis=-2).reshape(3, 5, 2, 2, 4)
  np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_hybrids_have_maps_in_pixels_of_the_image():
  model = planted.tiny(patches='hybrid(width=32)', patch_size=(2, 1))
  vit = planted.loaded(model, size=(16, 24))
  images = planted.images(size=(16, 24))
  assert features.patch_grid(vit) == (2, 6)
  assert attention.patch_size(vit) == (8, 4)
  assert explore.attention_maps(vit, images).shape == (3, 5, 2, 2, 6)
  assert explore.class_relevance(vit, images).shape == (5, 2, 6)
  for x in vit.params.values():
    if 'attention' in x:
      for array in x['attention']['qkv'].values():
        array[..., 0, :, :] = 0
  np.testing.assert_allclose(
    explore.attention_distance(vit, images),
    mean_pair_distance(2, 6, 8, 4),
    rtol=1e-5,
  )


def test_perturbing_attention_replaces_it():
  """To make it uniform is the same as to have no queries."""
  vit, images = planted.loaded(planted.tiny()), planted.images()
  plain = planted.looked(vit, images)['logits']
  added = jnp.zeros((3, 5, 2, 9, 9))
  for layer in range(3):  # later layers change with the ones before
    _, captured = perturbed(vit, images, added)
    added = added.at[layer].set(1 / 9 - captured['attention'][layer])
  logits, captured = perturbed(vit, images, added)
  np.testing.assert_allclose(captured['attention'], 1 / 9, rtol=1e-4)
  assert not np.allclose(logits, plain, atol=1e-2)
  expected = planted.looked(uniform(), images)['logits']
  np.testing.assert_allclose(logits, expected, atol=1e-4)


def perturbed(vit, images, added):
  return _perturbed(vit.model, vit.params, images, added)


@functools.partial(jax.jit, static_argnums=0)
def _perturbed(model, params, images, added):
  variables = {'params': params, 'perturbations': {'attention': added}}
  logits, state = compiled.apply(
    model, variables, images, mutable=('intermediates',)
  )
  assert set(state) == {'intermediates'}
  return logits, state['intermediates']


def test_perturbations_are_only_read():
  """They are never made, and change nothing where nothing is captured."""
  vit, images = planted.loaded(planted.tiny()), planted.images()
  variables = jax.eval_shape(vit.model.init, jax.random.key(0), images)
  assert set(variables) == {'params'}
  added = jnp.ones((3, 5, 2, 9, 9))
  given = {'params': vit.params, 'perturbations': {'attention': added}}
  programs = [
    str(jax.make_jaxpr(lambda x, v=v: vit.model.apply(v, x))(images))
    for v in (given, {'params': vit.params})
  ]
  assert programs[0] == programs[1]


@pytest.mark.parametrize(
  'overrides',
  [
    {},
    {'scan': True, 'remat': 'full'},
    {'attention': "attention(implementation='xla')", 'pool': 'mean'},
  ],
)
def test_gradients_are_finite_differences(overrides):
  model = planted.tiny(**overrides)
  vit, images = planted.loaded(model.clone(scan=False)), planted.images(3)
  vit = planted.scanned(vit) if model.scan else vit
  classes = [2, 0, 4]
  weights, gradients = explore.attention_gradients(vit, images, classes)
  np.testing.assert_allclose(
    weights, planted.looked(vit, images)['attention'], atol=1e-5
  )
  random = np.random.default_rng(3)
  for _ in range(4):
    direction = random.normal(size=weights.shape).astype(np.float32)
    ends = [
      perturbed(vit, images, step * direction)[0][np.arange(3), classes].sum()
      for step in (1e-2, -1e-2)
    ]
    slope = float(ends[0] - ends[1]) / 2e-2
    expected = float((direction * gradients).sum())
    assert slope == pytest.approx(expected, rel=2e-2, abs=2e-2)


def test_relevance_by_hand():
  """Two layers, one head: R = I + A1 + A2 + A2 A1, less the identity."""
  first = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
  second = np.array([[0.5, 0.5], [1.0, 0.0]], np.float32)
  gradients = np.array([[[2, -4], [6, 8]], [[-1, 1], [3, 5]]], np.float32)
  a1 = np.array([[0.5, 0], [3, 4]])  # gradient times attention, if positive
  a2 = np.array([[0, 0.5], [3, 0]])
  actual = explore.relevance(
    np.stack([first, second])[:, None, None], gradients[:, None, None]
  )
  np.testing.assert_allclose(actual[0], a1 + a2 + a2 @ a1, rtol=1e-6)
  # Of two heads it is the mean.
  arrays = [np.stack([first, second])[:, None, None], gradients[:, None, None]]
  halved = [np.concatenate([x, 0 * x], axis=2) for x in arrays]
  actual = explore.relevance(*halved)
  np.testing.assert_allclose(
    actual[0], a1 / 2 + a2 / 2 + a2 @ a1 / 4, rtol=1e-6
  )


def test_relevance_is_of_the_predicted_class_by_default():
  vit, images = planted.loaded(planted.tiny()), planted.images(11)
  predicted = planted.looked(vit, images)['logits'].argmax(axis=-1)
  assert len(set(predicted)) > 1
  actual = explore.class_relevance(vit, images)  # in two batches
  np.testing.assert_allclose(
    actual, explore.class_relevance(vit, images, predicted), atol=1e-5
  )
  weights = explore.class_relevance(vit, images[4:5], int(predicted[4]))
  np.testing.assert_allclose(actual[4:5], weights, atol=1e-5)
  assert actual.min() >= 0 and actual.max() > 0


def test_two_heads_are_read_in_equal_parts():
  vit = planted.loaded(planted.tiny(distillation_token=True))
  flow = np.random.default_rng(0).normal(size=(2, 10, 10)).astype(np.float32)
  expected = flow[:, :2, 2:].mean(axis=1).reshape(2, 2, 4)
  np.testing.assert_allclose(attention.read_out(vit, flow), expected, atol=1e-6)
  vit = planted.loaded(planted.tiny(pool='token_and_mean'))
  flow = flow[:, 1:, 1:]
  expected = (flow[:, 0, 1:] + flow[:, 1:, 1:].mean(axis=1)) / 2
  np.testing.assert_allclose(
    attention.read_out(vit, flow), expected.reshape(2, 2, 4), atol=1e-6
  )
