"""CKA and decodability in cases whose answer is known."""

import numpy as np
import planted
import pytest

from vit_jax import explore
from vit_jax.explore import examples as examples_lib
from vit_jax.explore import similarity
from vit_jax.explore import subject as subject_lib
from vit_jax.explore import token_pictures
from vit_jax.plots import style


def noise(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)


def test_a_rotation_is_the_same_representation():
  x = noise(0, 20, 30)
  rotation, _ = np.linalg.qr(noise(1, 30, 30))
  assert explore.cka(x, x) == pytest.approx(1, abs=1e-5)
  moved = 3 * x @ rotation + noise(2, 30)
  assert explore.cka(x, moved) == pytest.approx(1, abs=1e-5)


def test_independent_noise_is_not_alike():
  """Few images in many dimensions, where the biased estimate is near 1."""
  x = noise(0, 20, 2000)
  actual = [explore.cka(x, noise(seed, 20, 2000)) for seed in range(1, 21)]
  assert abs(np.mean(actual)) < 0.05 and np.abs(actual).max() < 0.3

  def biased(y):
    a, b = (z - z.mean(axis=0) for z in (x, y))
    return (
      np.linalg.norm(a.T @ b) ** 2
      / np.linalg.norm(a.T @ a)
      / np.linalg.norm(b.T @ b)
    )

  assert biased(noise(1, 20, 2000)) > 0.8


def test_half_shared_is_in_between():
  x, noise_of_y = noise(0, 400, 10), noise(1, 400, 10)
  actual = explore.cka(x, np.concatenate([x, noise_of_y], axis=1))
  # HSIC of x with itself is h, with both parts h, of both with both 2 h.
  assert actual == pytest.approx(2**-0.5, abs=0.05)


def test_equals_the_published_estimate():
  """HSIC_1 of Song et al., 2012, as written there."""

  def hsic(a, b):
    n, ones = len(a), np.ones(len(a))
    a, b = (z - np.diag(np.diag(z)) for z in (a, b))
    value = np.trace(a @ b)
    value += ones @ a @ ones * (ones @ b @ ones) / ((n - 1) * (n - 2))
    return (value - 2 / (n - 2) * (ones @ a @ b @ ones)) / (n * (n - 3))

  x, y = noise(0, 7, 5), noise(1, 7, 9)
  y[:, :5] += x
  a, b = x @ x.T, y @ y.T
  expected = hsic(a, b) / (hsic(a, a) * hsic(b, b)) ** 0.5
  assert explore.cka(x, y) == pytest.approx(expected, abs=1e-5)


def test_layers_of_one_model():
  vit, images = planted.loaded(planted.tiny()), planted.images(40)
  actual = explore.layer_cka(vit, images)
  assert actual.shape == (3, 3) and actual.dtype == np.float32
  np.testing.assert_allclose(np.diag(actual), 1, atol=1e-5)
  np.testing.assert_allclose(actual, actual.T, atol=1e-5)
  assert actual.max() < 1 + 1e-5
  twin = explore.layer_cka(planted.scanned(vit), images, vit)
  np.testing.assert_allclose(twin, actual, atol=1e-4)


def test_two_models_of_different_depth():
  vit = planted.loaded(planted.tiny())
  mixer = planted.loaded(planted.tiny_mixer(depth=2))
  images = planted.images(9)
  actual = explore.layer_cka(vit, images, mixer)
  assert actual.shape == (3, 2)
  np.testing.assert_allclose(
    explore.layer_cka(mixer, images, vit), actual.T, atol=1e-5
  )


def test_equal_images_have_no_likeness():
  vit = planted.loaded(planted.tiny())
  equal_images = np.broadcast_to(planted.images(1), (6, *planted.SIZE, 3))
  assert np.isnan(
    similarity.layers_cka(equal_images[None], equal_images[None])
  ).all()
  assert np.isnan(explore.layer_cka(vit, equal_images)).all()
  # The colour of 1 is on the scale, and in the cells if there is likeness.
  assert (
    brightest(vit, equal_images)
    < 100
    < 1000
    < brightest(vit, planted.images(6))
  )


def brightest(vit, inputs):
  """Returns the number of pixels of the picture with the last colour."""
  names = tuple(f'{i}.png' for i in range(len(inputs)))
  images = examples_lib.Images(
    names, ('',) * len(names), inputs, list(inputs), len(names)
  )
  options = subject_lib.Options((1, 1), (0,), (), None, False)
  subject = subject_lib.Subject(vit, 'it', images, None, options)
  ((_, picture),) = token_pictures.cka(subject).figures
  last = style.colour_table(style.HEAT)[-1]
  return (picture == last).all(axis=-1).sum()


def coloured(count, seed):
  """Images whose class is their colour, and the classes' names."""
  random = np.random.default_rng(seed)
  labels = random.integers(0, 3, count)
  images = random.normal(0, 0.1, (count, *planted.SIZE, 3))
  images[np.arange(count), ..., labels] += 1
  return images.astype(np.float32), np.array(['red', 'green', 'blue'])[labels]


def test_colours_can_be_decoded_in_every_layer():
  train, test = coloured(60, 0), coloured(30, 1)
  for model in (planted.tiny(), planted.tiny_mixer()):
    actual = explore.layer_decodability(planted.loaded(model), *train, *test)
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, np.ones(3))


def test_what_a_layer_lacks_cannot_be_decoded():
  labels = np.arange(200) % 2
  x = noise(0, 2, 200, 6)
  x[1, :, 2] += 10 * labels
  actual = similarity.decodability(
    x[:, :100], labels[:100], x[:, 100:], labels[100:]
  )
  assert 0.3 < actual[0] < 0.7 and actual[1] == 1
