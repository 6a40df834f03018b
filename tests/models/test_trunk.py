"""Trunks that leave patches out, mask them, or restrict their attention."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.data import naflex
from vit_jax.models import describing
from vit_jax.models import embedding
from vit_jax.models import registry
from vit_jax.models import vit
from vit_jax.models.parts import relative

IMAGES = jax.random.normal(jax.random.key(0), (2, 12, 20, 3))
TINY = {'hidden_size': 16, 'mlp_dim': 32, 'num_heads': 2, 'depth': 2}


def make(**fields):
  """Returns a model and parameters none of which is zero."""
  model = models.create_model('ViT-Ti/4', 0, **TINY, **fields)
  params = models.init_params(model, jax.random.key(1), IMAGES.shape[1:])
  keys = iter(jax.random.split(jax.random.key(2), 100))

  def shift(x):
    return x + 0.1 * jax.random.normal(next(keys), x.shape)

  return model, jax.tree.map(shift, params)


def tokens(model, params, **kwargs):
  out = compiled.apply(
    model, {'params': params}, IMAGES, method='trunk', **kwargs
  )
  return np.asarray(out['tokens'])


def test_causal_attention_does_not_look_ahead():
  model, params = make(attention='attention(causal=True)')
  changed = IMAGES.at[:, -4:].add(1.0)  # the last row of patches
  before = tokens(model, params)
  out = compiled.apply(model, {'params': params}, changed, method='trunk')[
    'tokens'
  ]
  np.testing.assert_array_equal(before[:, :-5], out[:, :-5])
  assert abs(before[:, -5:] - out[:, -5:]).min(axis=-1).all()


def test_relative_positions_depend_on_distance_alone():
  grid = (3, 5)
  index = relative.index(grid)
  assert index.max() + 1 == relative.rows(grid) == 5 * 9 + 3
  y, x = np.divmod(np.arange(15), 5)
  distance = [(y[:, None] - y).ravel(), (x[:, None] - x).ravel()]
  pairs = {}
  for *key, row in zip(*distance, index[1:, 1:].ravel(), strict=True):
    assert pairs.setdefault(tuple(key), row) == row
  assert len(set(pairs.values())) == len(pairs) == 5 * 9


def test_kept_patches_are_all_that_layers_see():
  model, params = make()
  order = jnp.tile(jnp.arange(14, -1, -1), (2, 1))
  full = tokens(model, params)
  reversed_ = tokens(model, params, kept=order)
  np.testing.assert_allclose(reversed_[:, 0], full[:, 0], atol=2e-6)
  np.testing.assert_allclose(reversed_[:, :0:-1], full[:, 1:], atol=2e-6)
  kept = jnp.array([[3, 1], [0, 14]])
  few = tokens(model, params, kept=kept)
  assert few.shape == (2, 3, 16)
  # Others may change as they like.
  changed = IMAGES.at[0, 4:].add(1.0)
  out = compiled.apply(
    model, {'params': params}, changed, method='trunk', kept=kept
  )
  np.testing.assert_array_equal(out['tokens'][0], few[0])


def test_masked_patches_are_not_seen():
  model, params = make(mask_token=True)
  masked = jnp.zeros((2, 15), bool).at[0, 5:].set(True)
  before = tokens(model, params, masked=masked)
  changed = IMAGES.at[0, 4:].add(1.0)
  out = compiled.apply(
    model, {'params': params}, changed, method='trunk', masked=masked
  )
  np.testing.assert_array_equal(out['tokens'], before)
  assert abs(before[0] - tokens(model, params)[0]).max() > 1e-3


def test_what_cannot_be_masked_or_left_out():
  model, params = make()
  with pytest.raises(ValueError, match='mask_token is False'):
    tokens(model, params, masked=jnp.zeros((2, 15), bool))
  model, params = make(positions='learned + relative_bias')
  with pytest.raises(ValueError, match='none left out'):
    tokens(model, params, kept=jnp.zeros((2, 3), jnp.int32))
  with pytest.raises(ValueError, match='no other tokens'):
    make(positions='learned + relative_bias', registers=1)


def test_what_is_behind_the_last_patch_is_left_out():
  model, params = make(patches='patches(crop=True)')
  full = tokens(model, params)
  wider = jnp.pad(IMAGES, ((0, 0), (0, 3), (0, 1), (0, 0)), constant_values=9.0)
  out = compiled.apply(model, {'params': params}, wider, method='trunk')
  np.testing.assert_array_equal(out['tokens'], full)
  with pytest.raises(ValueError, match='15 x 21, is not a multiple'):
    make()[0].apply({'params': params}, wider)
  with pytest.raises(ValueError, match='3 x 20, is not a multiple'):
    compiled.apply(model, {'params': params}, IMAGES[:, :3])


@pytest.mark.parametrize('kind', embedding.SINCOS)
def test_fixed_positions(kind):
  table = embedding.sincos2d((3, 5), 16, kind).reshape(3, 5, 4, 4)
  first, second = (1, 0) if kind != 'sincos2d_moco' else (0, 1)
  for part, axis in ((0, first), (2, second)):
    constant = np.moveaxis(table[:, :, part : part + 2], 1 - axis, 0)
    np.testing.assert_array_equal(
      constant, constant[:1].repeat(len(constant), 0)
    )
  np.testing.assert_allclose(
    table[:, :, 0] ** 2 + table[:, :, 1] ** 2, 1, atol=1e-6
  )


NAFLEX = {
  'num_classes': 0,
  'patch_size': (2, 2),
  'hidden_size': 8,
  'mlp_dim': 16,
  'num_heads': 2,
  'depth': 2,
}


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    *({'pool': pool} for pool in registry.PARTS['pool']),
    {'positions': "learned(resize='bicubic')", 'registers': 2},
    {'positions': 'factorized(keep_aspect=True)'},
  ],
)
def test_images_of_different_shapes(fields):
  """Padding changes nothing; a square of the own grid is a plain image."""
  model = models.create(vit.ViT, NAFLEX | fields)
  rng = np.random.default_rng(0)
  square, wide = (rng.normal(size=(1, *x, 3)) for x in ((6, 6), (4, 10)))
  params = compiled.init(model, jax.random.key(0), square)['params']
  for name in params:
    if name.endswith('position_embedding'):
      shape = params[name].shape
      params[name] = rng.normal(size=shape).astype(np.float32)
  apply = jax.jit(
    lambda x, grids: model.apply({'params': params}, x, grids=grids)
  )
  rows = []
  for count in (10, 14):
    cut = [naflex.padded(x[0], (2, 2), count) for x in (square, wide)]
    patches = np.stack([x for x, _ in cut]).astype(np.float32)
    rows.append(apply(patches, np.array([grid for _, grid in cut])))
  np.testing.assert_allclose(rows[0], rows[1], atol=1e-5)
  plain = compiled.apply(model, {'params': params}, square)
  np.testing.assert_allclose(rows[0][:1], plain, atol=1e-5)
  assert abs(rows[0][0] - rows[0][1]).max() > 1e-3


def test_only_learned_positions_are_resized_for_each_image():
  model = models.create(vit.ViT, NAFLEX | {'positions': 'none', 'pool': 'mean'})
  patches, grids = np.zeros((1, 4, 12)), np.array([[2, 2]])
  params = compiled.init(model, jax.random.key(0), np.zeros((1, 4, 4, 3)))[
    'params'
  ]
  assert compiled.apply(
    model, {'params': params}, patches, grids=grids
  ).shape == (1, 8)
  model = describing.with_keys(model, positions='learned + rope')
  params = compiled.init(model, jax.random.key(0), np.zeros((1, 4, 4, 3)))[
    'params'
  ]
  with pytest.raises(ValueError, match='any grid need learned'):
    compiled.apply(model, {'params': params}, patches, grids=grids)


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    {'positions': "learned(resize='bicubic')", 'pool': 'map'},
    {'positions': 'factorized', 'pool': 'mean'},
  ],
)
def test_packing_changes_no_answer(fields):
  """Neither other images of a sequence, nor padding, nor their order."""
  model = models.create(vit.ViT, NAFLEX | fields)
  rng = np.random.default_rng(0)
  grids = [(2, 3), (3, 3), (1, 4), (4, 1), (2, 2)]
  images = [rng.normal(size=(2 * h, 2 * w, 3)) for h, w in grids]
  params = compiled.init(model, jax.random.key(0), np.zeros((1, 6, 6, 3)))[
    'params'
  ]
  apply = jax.jit(lambda x, g: model.apply({'params': params}, x, grids=g))
  cut = [
    naflex.padded(x, (2, 2), h * w)[0]
    for x, (h, w) in zip(images, grids, strict=True)
  ]
  alone = [
    apply(x[None], np.array([grid]))[0]
    for x, grid in zip(cut, grids, strict=True)
  ]
  for most in (9, 14, 27):
    rows = naflex.packed([len(x) for x in cut], most)
    assert sorted(i for row in rows for i in row) == list(range(5))
    number = max(map(len, rows)) + 1  # one is missing everywhere
    patches = np.full((len(rows), most + 2, 12), 7.0, np.float32)
    packed_grids = np.zeros((len(rows), number, 2), np.int32)
    for i, row in enumerate(rows):
      sequence = np.concatenate([cut[j] for j in row])
      patches[i, : len(sequence)] = sequence
      packed_grids[i, : len(row)] = [grids[j] for j in row]
    actual = apply(patches, packed_grids)
    assert actual.shape == (len(rows), number, 8)
    for i, row in enumerate(rows):
      for j, image in enumerate(row):
        np.testing.assert_allclose(actual[i, j], alone[image], atol=1e-5)
      np.testing.assert_array_equal(actual[i, len(row) :], 0)


def test_what_cannot_be_packed():
  grids = np.array([[[1, 2], [2, 1]]])
  for fields, message in (
    ({'pool': 'token'}, 'class_token'),
    ({'mlp': 'experts(2)', 'pool': 'mean'}, 'experts'),
  ):
    model = models.create(vit.ViT, NAFLEX | fields)
    params = compiled.init(model, jax.random.key(0), np.zeros((1, 4, 4, 3)))[
      'params'
    ]
    with pytest.raises(ValueError, match=message):
      compiled.apply(
        model, {'params': params}, np.zeros((1, 4, 12)), grids=grids
      )
  with pytest.raises(ValueError, match='image 1 has 5 patches'):
    naflex.packed([2, 5], 4)
