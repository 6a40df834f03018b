"""Windows over images and volumes; equality with MONAI and mmseg is golden."""

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.evaluation import windows
from vit_jax.models import maps


def identity(x):
  """A model whose logits are its input."""
  return x


@pytest.mark.parametrize('pad', [False, True])
@pytest.mark.parametrize(
  ('size', 'window', 'overlap'),
  [
    ((7, 9), (4, 4), 0.5),
    ((7, 9), (4, 5), 0.0),
    ((3, 9), (4, 5), 0.9),
    ((5, 6, 7), (2, 3, 4), 0.25),
    ((1, 1), (4, 4), 0.5),
  ],
)
def test_a_model_of_single_places_does_not_see_the_windows(
  size, window, overlap, pad
):
  images = np.random.default_rng(0).normal(size=(2, *size, 3))
  actual = windows.slide(
    identity,
    images.astype(np.float32),
    window,
    windows.strides(window, overlap),
    weights=windows.gaussian(window) if pad else None,
    pad=pad,
    batch_size=3,
  )
  np.testing.assert_allclose(actual, images, atol=1e-5)


def test_windows_cover_all_places_and_stay_inside():
  for size in range(1, 30):
    for window in range(1, size + 1):
      for stride in (1, 3, window):
        at = windows.starts((size,), (window,), (min(stride, window),))[:, 0]
        covered = np.concatenate([np.arange(a, a + window) for a in at])
        assert set(covered) == set(range(size))


def test_the_model_sees_few_windows_at_once():
  sizes = []

  def apply(x):
    sizes.append(x.shape)
    return x[..., :1]

  windows.slide(apply, np.zeros((1, 16, 16, 3)), (4, 4), (4, 4), batch_size=5)
  assert sum(n for n, *_ in sizes) == 16
  assert max(sizes) == (5, 4, 4, 3)


def test_windows_of_several_images_are_in_a_batch():
  sizes = []

  def apply(x):
    sizes.append(len(x))
    return x

  images = np.random.default_rng(0).normal(size=(5, 4, 4, 3))
  actual = windows.slide(apply, images, (4, 4), (4, 4), batch_size=3)
  np.testing.assert_allclose(actual, images, rtol=1e-6)
  assert sizes == [3, 2]


def test_views_of_an_image_give_its_probabilities_back():
  """A constant model: all views agree."""
  image = np.ones((6, 8, 3), np.float32)
  logits = np.array([0.0, 1.0, -1.0], np.float32)
  actual = windows.multi_scale(
    lambda x: np.broadcast_to(logits, (*x.shape[:3], 3)), image, (0.5, 1, 2)
  )
  expected = np.exp(logits) / np.exp(logits).sum()
  assert actual.shape == (6, 8, 3)
  np.testing.assert_allclose(actual, np.broadcast_to(expected, (6, 8, 3)), 1e-5)


def test_a_mirror_image_is_mirrored_back():
  """The model's logits are the columns; the mean of both is the same."""
  image = np.zeros((2, 4, 1), np.float32)

  def columns(x):
    return np.broadcast_to(np.arange(4.0)[None, None, :, None], x.shape)

  actual = windows.view_logits(columns, image, True, (2, 4))
  assert actual[0, :, 0].tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize('size', [(150, 9), (5, 200), (7, 11)])
def test_the_most_likely_classes_are_those_of_resized_scores(size):
  scores = np.random.default_rng(0).normal(size=(7, 11, 4)).astype(np.float32)
  resized = maps.resize(jnp.asarray(scores)[None], size)[0]
  actual = windows.most_likely(scores, size)
  assert actual.shape == size and actual.dtype == np.int32
  assert (actual == np.asarray(resized).argmax(axis=-1)).mean() > 0.999


@pytest.mark.parametrize('size', [(7, 9), (5, 6, 7)])
def test_weighted_windows_are_the_same_compiled_and_slab_by_slab(size):
  """A model that errs towards the end of a window: weights change the mean."""
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, *size, 3)).astype(np.float32)
  window, stride = (4,) * len(size), (2,) * len(size)
  weights = windows.gaussian(window)

  def apply(x):
    return x * jnp.arange(1.0, 5.0)[:, None]

  expected = windows.slide(apply, images, window, stride, weights=weights)
  plain = windows.slide(apply, images, window, stride)
  assert np.abs(expected - plain).max() > 0.1
  actual = windows.slide_compiled(apply, images, window, stride, weights)
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
  labels = windows.labels(apply, images[0], window, stride, weights)
  np.testing.assert_array_equal(labels, expected[0].argmax(axis=-1))


def test_a_wide_gaussian_is_flatter():
  narrow, wide = (windows.gaussian((5, 7), x) for x in (0.125, 0.5))
  np.testing.assert_array_equal(narrow, windows.gaussian((5, 7)))
  assert wide[2, 3] == narrow[2, 3] == 1
  np.testing.assert_allclose(
    wide[2, 0], np.exp(-0.5 * (3 / 3.5) ** 2), rtol=1e-6
  )
  assert wide.min() > 10 * narrow.min()
