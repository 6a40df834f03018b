"""Norms, likeness and principal components of planted tokens."""

import numpy as np
import planted
import pytest

from vit_jax import explore
from vit_jax.explore import tokens as tokens_lib
from vit_jax.weights import features


def every_kind():
  hybrid = planted.tiny(patches='hybrid(width=32)', patch_size=(1, 1))
  return [
    planted.loaded(planted.tiny()),
    planted.loaded(planted.tiny(pool='mean', registers=3)),
    planted.loaded(hybrid),
    planted.loaded(planted.tiny_mixer()),
  ]


def test_norms_are_those_of_the_tokens():
  for vit in every_kind():
    tokens = features.features(vit, planted.images())
    actual = explore.token_norms(vit, planted.images())
    assert actual.shape == tokens.shape[:3]
    expected = (tokens.astype(np.float64) ** 2).sum(axis=-1) ** 0.5
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_an_outlier_has_a_large_norm():
  vit = planted.finder()
  norms = explore.token_norms(vit, planted.with_bright_patches())
  patch = 1 + planted.BRIGHT[0] * 4 + planted.BRIGHT[1]
  assert (norms.argmax(axis=-1) == patch).all()


def test_a_planted_twin_is_found():
  vit = planted.finder()
  image = planted.with_bright_patches((0, 1), (1, 3))
  for layer in (0, -1):
    actual = explore.patch_similarity(vit, image, (0, 1), layer)[0]
    assert actual.shape == (2, 4)
    bright = np.zeros((2, 4), bool)
    bright[0, 1] = bright[1, 3] = True
    np.testing.assert_allclose(actual[bright], 1, rtol=1e-5)
    assert actual[~bright].max() < 0.95


def test_similarity_is_the_cosine():
  for vit in every_kind():
    images = planted.images()
    tokens = features.features(vit, images, [1])[0]
    patches = tokens[:, -8:]
    unit = patches / np.linalg.norm(patches, axis=-1, keepdims=True)
    expected = np.einsum('bnd,bd->bn', unit, unit[:, 6]).reshape(5, 2, 4)
    actual = explore.patch_similarity(vit, images, (1, 2), layer=1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_allclose(actual[:, 1, 2], 1, rtol=1e-5)


def test_two_clusters_have_two_colours():
  """Tokens of a left and a right half; two images share the components."""
  random = np.random.default_rng(0)
  centre = random.normal(size=(2, 16)).astype(np.float32)
  side = np.broadcast_to(np.arange(6) // 3, (4, 6))
  sides = np.stack([side, 1 - side])
  tokens = centre[sides.reshape(2, 24)]
  tokens += random.normal(0, 0.01, tokens.shape).astype(np.float32)
  prefix = np.full((2, 3, 16), 50, np.float32)  # is left out
  actual = tokens_lib.pca(np.concatenate([prefix, tokens], axis=1), (4, 6))
  assert actual.shape == (2, 4, 6, 3) and actual.dtype == np.float32
  assert actual.min() >= 0 and actual.max() <= 1
  red = [actual[..., 0][sides == half] for half in (0, 1)]
  low, high = sorted(red, key=np.mean)
  assert low.max() < 0.1 and high.min() > 0.9


def test_what_is_but_rounding_has_no_colour():
  tokens = np.ones((1, 8, 16), np.float32)
  assert not tokens_lib.pca(tokens, (2, 4)).any()
  tokens[:, :4, 2] = 3
  actual = tokens_lib.pca(tokens, (2, 4))
  assert set(np.unique(actual[..., 0])) == {0, 1}
  assert actual[..., 1:].max() < 0.01


def planted_foreground():
  """Two images of a thing with two halves, and where they are.

  Returns:
    Tokens [2, 3 + 48, 16], of which 3 are no patches, and int [2, 6, 8]: 0 in
    the background, 1 and 2 in the halves.
  """
  random = np.random.default_rng(0)
  halves = np.zeros((2, 6, 8), int)
  halves[0, 1:5, 1:4], halves[0, 1:5, 4:7] = 1, 2
  halves[1, 2:4, 2:4], halves[1, 2:4, 4:6] = 2, 1
  kinds = np.zeros((3, 16), np.float32)
  kinds[1:, 0] = 10  # the halves are like each other, and unlike the rest
  kinds[1, 1], kinds[2, 1] = 3, -3
  patches = kinds[halves.reshape(2, 48)]
  patches += random.normal(0, 0.1, patches.shape).astype(np.float32)
  prefix = np.full((2, 3, 16), 50, np.float32)
  return np.concatenate([prefix, patches], axis=1), halves


@pytest.mark.parametrize('sign', [1, -1])
def test_a_planted_foreground_is_found(sign):
  tokens, halves = planted_foreground()
  actual = tokens_lib.foreground(sign * tokens, (6, 8))
  assert actual.score.shape == (2, 6, 8) and actual.colors.shape == (2, 6, 8, 3)
  np.testing.assert_array_equal(actual.score > 0, halves > 0)
  assert not actual.colors[halves == 0].any()
  # In both images, a half has its own colour.
  red = [actual.colors[..., 0][halves == half] for half in (1, 2)]
  low, high = sorted(red, key=np.mean)
  assert low.max() < 0.2 and high.min() > 0.8


def test_a_foreground_that_fills_the_image():
  """Nothing differs, or all patches are at the border."""
  actual = tokens_lib.foreground(np.ones((1, 8, 16), np.float32), (2, 4))
  assert not actual.score.any() and not actual.colors.any()
  tokens = np.zeros((1, 4, 16), np.float32)
  tokens[0, 0] = 1
  assert (tokens_lib.foreground(tokens, (2, 2)).score > 0).sum() in (1, 3)


@pytest.mark.slow
def test_features_are_those_after_the_last_norm():
  for vit in every_kind():
    actual = tokens_lib.patch_features(vit, planted.images(20))
    assert actual.shape == (20, 8, 16) and actual.dtype == np.float32
    out = vit.model.apply(
      {'params': vit.params}, planted.images(20), method='trunk'
    )
    np.testing.assert_allclose(actual, out['tokens'][:, -8:], atol=1e-4)
  vit = planted.finder()
  image = planted.with_bright_patches((0, 0), planted.BRIGHT)
  score = explore.patch_foreground(vit, image).score[0]
  bright = np.zeros((2, 4), bool)
  bright[planted.BRIGHT] = bright[0, 0] = True
  assert len({*np.sign(score[bright]), *-np.sign(score[~bright])}) == 1


def test_few_channels_leave_colours_out():
  tokens = np.random.default_rng(0).normal(size=(3, 8, 2)).astype(np.float32)
  actual = tokens_lib.pca(tokens, (2, 4))
  assert actual[..., :2].max() == 1 and not actual[..., 2].any()


def test_colours_of_a_model():
  for vit in every_kind():
    actual = explore.token_pca(vit, planted.images())
    assert actual.shape == (5, 2, 4, 3)
    assert actual.min() == 0 and actual.max() == 1
  vit = planted.finder()
  bright = np.zeros((2, 4), bool)
  bright[planted.BRIGHT] = bright[0, 0] = True
  image = planted.with_bright_patches((0, 0), planted.BRIGHT)
  red = explore.token_pca(vit, image)[0, ..., 0]
  assert len(set(red[bright].round(3)) | set(red[~bright].round(3))) == 2
  assert abs(red[bright].mean() - red[~bright].mean()) > 0.99
