"""Norms, likeness and principal components of planted tokens."""

import numpy as np
import planted
import pytest

from vit_jax import explore
from vit_jax.config import UserError
from vit_jax.explore import tokens as tokens_lib
from vit_jax.weights import features


def every_kind():
  hybrid = planted.tiny(resnet_stages=(), resnet_width=32, patch_size=(1, 1))
  return [
    planted.loaded(planted.tiny()),
    planted.loaded(planted.tiny(pool='gap', registers=3)),
    planted.loaded(hybrid),
    planted.loaded(planted.tiny_mixer()),
  ]


def test_norms_are_those_of_the_tokens():
  for vit in every_kind():
    tokens = features.features(vit, planted.images())
    found = explore.token_norms(vit, planted.images())
    assert found.shape == tokens.shape[:3]
    expected = (tokens.astype(np.float64) ** 2).sum(axis=-1) ** 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_outlier_has_a_large_norm():
  vit = planted.finder()
  norms = explore.token_norms(vit, planted.with_bright_patches())
  patch = 1 + planted.BRIGHT[0] * 4 + planted.BRIGHT[1]
  assert (norms.argmax(axis=-1) == patch).all()


def test_a_planted_twin_is_found():
  vit = planted.finder()
  image = planted.with_bright_patches((0, 1), (1, 3))
  for layer in (0, -1):
    found = explore.patch_similarity(vit, image, (0, 1), layer)[0]
    assert found.shape == (2, 4)
    bright = np.zeros((2, 4), bool)
    bright[0, 1] = bright[1, 3] = True
    np.testing.assert_allclose(found[bright], 1, rtol=1e-5)
    assert found[~bright].max() < 0.95


def test_similarity_is_the_cosine():
  for vit in every_kind():
    images = planted.images()
    tokens = features.features(vit, images, [1])[0]
    patches = tokens[:, -8:]
    unit = patches / np.linalg.norm(patches, axis=-1, keepdims=True)
    expected = np.einsum('bnd,bd->bn', unit, unit[:, 6]).reshape(5, 2, 4)
    found = explore.patch_similarity(vit, images, (1, 2), layer=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found[:, 1, 2], 1, rtol=1e-5)


def test_two_clusters_have_two_colours():
  """Tokens of a left and a right half; two images share the components."""
  random = np.random.default_rng(0)
  centre = random.normal(size=(2, 16)).astype(np.float32)
  side = np.broadcast_to(np.arange(6) // 3, (4, 6))
  sides = np.stack([side, 1 - side])
  tokens = centre[sides.reshape(2, 24)]
  tokens += random.normal(0, 0.01, tokens.shape).astype(np.float32)
  prefix = np.full((2, 3, 16), 50, np.float32)  # is left out
  found = tokens_lib.pca(np.concatenate([prefix, tokens], axis=1), (4, 6))
  assert found.shape == (2, 4, 6, 3) and found.dtype == np.float32
  assert found.min() >= 0 and found.max() <= 1
  red = [found[..., 0][sides == half] for half in (0, 1)]
  low, high = sorted(red, key=np.mean)
  assert low.max() < 0.1 and high.min() > 0.9


def test_what_is_but_rounding_has_no_colour():
  tokens = np.ones((1, 8, 16), np.float32)
  assert not tokens_lib.pca(tokens, (2, 4)).any()
  tokens[:, :4, 2] = 3
  found = tokens_lib.pca(tokens, (2, 4))
  assert set(np.unique(found[..., 0])) == {0, 1}
  assert found[..., 1:].max() < 0.01


def test_few_channels_leave_colours_out():
  tokens = np.random.default_rng(0).normal(size=(3, 8, 2)).astype(np.float32)
  found = tokens_lib.pca(tokens, (2, 4))
  assert found[..., :2].max() == 1 and not found[..., 2].any()


def test_colours_of_a_model():
  for vit in every_kind():
    found = explore.token_pca(vit, planted.images())
    assert found.shape == (5, 2, 4, 3)
    assert found.min() == 0 and found.max() == 1
  vit = planted.finder()
  bright = np.zeros((2, 4), bool)
  bright[planted.BRIGHT] = bright[0, 0] = True
  image = planted.with_bright_patches((0, 0), planted.BRIGHT)
  red = explore.token_pca(vit, image)[0, ..., 0]
  assert len(set(red[bright].round(3)) | set(red[~bright].round(3))) == 2
  assert abs(red[bright].mean() - red[~bright].mean()) > 0.99


def test_scanned_layers_give_the_same_pictures():
  for vit in (
    planted.loaded(planted.tiny()),
    planted.loaded(planted.tiny_mixer()),
  ):
    twin, images = planted.scanned(vit), planted.images()
    for call in (
      explore.token_norms,
      explore.token_pca,
      lambda vit, x: explore.patch_similarity(vit, x, (0, 3)),
    ):
      np.testing.assert_allclose(
        call(twin, images), call(vit, images), atol=1e-3
      )


@pytest.mark.parametrize(
  ('model', 'call', 'message'),
  [
    (planted.tiny_bit(), explore.token_norms, 'no tokens'),
    (planted.tiny_bit(), explore.token_pca, 'no tokens'),
    (
      planted.tiny_bit(),
      lambda vit, x: explore.patch_similarity(vit, x, (0, 0)),
      'no tokens',
    ),
    (
      planted.tiny(),
      lambda vit, x: explore.patch_similarity(vit, x, (0, 0), layer=-4),
      'no layer -4',
    ),
    (
      planted.tiny_mixer(),
      lambda vit, x: explore.patch_similarity(vit, x, (2, 0)),
      'rows are 0 to 1',
    ),
    (
      planted.tiny(),
      lambda vit, x: explore.token_pca(vit, x, layer=3),
      'no layer 3',
    ),
  ],
)
def test_mistakes_are_one_line(model, call, message):
  with pytest.raises(UserError, match=message) as error:
    call(planted.loaded(model), planted.images())
  assert '\n' not in str(error.value)
