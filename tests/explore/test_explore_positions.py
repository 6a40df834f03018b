"""Position embeddings and filters whose likeness is known."""

import numpy as np
import planted
import pytest

from vit_jax import explore
from vit_jax.config import UserError


def learned(table):
  """Returns a model with positions [2, 4, D]; its class token's is large."""
  vit = planted.loaded(planted.tiny(hidden_size=table.shape[-1]))
  position = vit.params['position_embedding']
  position[:, 0] = 100
  position[0, 1:] = table.reshape(8, -1)
  return vit


def test_positions_that_are_rows_and_columns():
  """Half of the channels tell the row, half the column."""
  table = np.zeros((2, 4, 8), np.float32)
  for row in range(2):
    for column in range(4):
      table[row, column, [row, 4 + column]] = 1 + row
  actual = explore.position_similarity(learned(table))
  same_row = np.eye(2)[:, None, :, None]
  same_column = np.eye(4)[None, :, None, :]
  np.testing.assert_allclose(actual, (same_row + same_column) / 2, atol=1e-6)


def test_positions_after_a_resize():
  """The corners of the grid stay where they are, as Google's code does it."""
  table = np.random.default_rng(0).normal(size=(2, 4, 8)).astype(np.float32)
  vit = learned(table)
  before = explore.position_similarity(vit)
  np.testing.assert_allclose(
    explore.position_similarity(vit, planted.SIZE), before, atol=1e-6
  )
  after = explore.position_similarity(vit, image_size=(12, 28))
  assert after.shape == (3, 7, 3, 7)
  ends = np.ix_([0, 2], [0, 6], [0, 2], [0, 6])
  corners = np.ix_([0, 1], [0, 3], [0, 1], [0, 3])
  np.testing.assert_allclose(after[ends], before[corners], atol=1e-5)
  unit = table / np.linalg.norm(table, axis=-1, keepdims=True)
  middle = table[0, 0] + table[1, 0]  # row 1 of 3 is in the middle
  np.testing.assert_allclose(
    after[1, 0, 0, 0],
    unit[0, 0] @ middle / np.linalg.norm(middle),
    atol=1e-5,
  )


def test_fixed_positions_depend_on_the_offset_alone():
  model = planted.tiny(positions='sincos2d', pool='mean')
  for size in (None, (12, 20)):
    actual = explore.position_similarity(planted.loaded(model), size)
    h, w = actual.shape[:2]
    assert (h, w) == ((2, 4) if size is None else (3, 5))
    omega = 10_000.0 ** -np.linspace(0, 1, 4)
    alike = np.cos(np.arange(9)[:, None] * omega).mean(axis=1)
    row, column = np.arange(h), np.arange(w)
    expected = (
      alike[abs(row[:, None] - row)][:, None, :, None]
      + alike[abs(column[:, None] - column)][None, :, None, :]
    ) / 2
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_filters_reconstruct_the_kernel():
  for model in (planted.tiny(), planted.tiny_mixer()):
    vit = planted.loaded(model)
    actual = explore.embedding_filters(vit, count=100)
    assert actual.shape == (16, 4, 4, 3)  # no more than there are filters
    np.testing.assert_allclose((actual**2).sum(axis=(1, 2, 3)), 1, rtol=1e-5)
    filters = vit.params['patch_embedding']['kernel'].reshape(48, 16).T
    filters = filters - filters.mean(axis=0)
    flat = actual.reshape(16, 48)
    np.testing.assert_allclose(filters @ flat.T @ flat, filters, atol=1e-5)
    few = explore.embedding_filters(vit, count=3)
    np.testing.assert_array_equal(few, actual[:3])
    variance = (filters @ flat.T).var(axis=0)
    assert (np.diff(variance) <= 1e-6).all()


def test_filters_of_planted_components():
  """Gradients from left to right, and fewer, weaker ones of red."""
  vit = planted.loaded(planted.tiny())
  ramp = np.broadcast_to((np.arange(4) - 1.5)[None, :, None], (4, 4, 3))
  red = np.broadcast_to([-1.0, 0, 0], (4, 4, 3))
  scale = np.tile([5.0, -5.0, 0.0, 0.0], 4)
  kernel = ramp[..., None] * scale + red[..., None] * np.roll(scale, 2) / 5
  vit.params['patch_embedding']['kernel'][:] = kernel
  actual = explore.embedding_filters(vit, count=2)
  np.testing.assert_allclose(
    abs(actual[0]), abs(ramp) / np.linalg.norm(ramp), atol=1e-5
  )
  np.testing.assert_allclose(
    actual[1], -red / 4, atol=1e-5
  )  # signs are settled


def test_filters_of_a_stem_are_standardised():
  hybrid = planted.tiny(patches='hybrid(width=32)', patch_size=(1, 1))
  for model, width in ((hybrid, 32), (planted.tiny_bit(), 8)):
    vit = planted.loaded(model)
    actual = explore.stem_filters(vit)
    assert actual.shape == (width, 7, 7, 3)
    np.testing.assert_allclose(actual.mean(axis=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(actual.std(axis=(1, 2, 3)), 1, rtol=1e-3)
    kernel = vit.params['stem']['conv']['kernel'][..., 5]
    assert np.corrcoef(actual[5].ravel(), kernel.ravel())[0, 1] > 0.9999
    with pytest.raises(UserError, match='the filters of its stem'):
      explore.embedding_filters(vit)
