"""What the web page is sent of an image is what the library says."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip('starlette', reason='starlette is not installed')
pytest.importorskip('uvicorn', reason='uvicorn is not installed')

import page_server

from vit_jax import explore
from vit_jax.config import UserError
from vit_jax.data import target_kinds
from vit_jax.explore import predictions
from vit_jax.explore import viewer as viewer_lib
from vit_jax.weights import features

PICTURE = page_server.picture()


def seen_by(vit):
  return page_server.unpack(viewer_lib.Viewer(vit, 'it').look(PICTURE))


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'scan': True},
    {'registers': 2, 'positions': "learned(tokens='class')"},
    {'pool': 'mean', 'class_token': False},
    {'name': 'R+ViT-Ti/16', 'size': (64, 32)},
    {'channels': 1, 'size': (8, 8)},
  ],
  ids=['plain', 'scanned', 'registers', 'no-class-token', 'hybrid', 'grey'],
)
def test_maps_are_the_librarys(fields):
  vit = page_server.load(**fields)
  answer = seen_by(vit)
  x = vit.preprocess(PICTURE)
  h, w = features.patch_grid(vit)
  actual = answer['weights'] * answer['peaks'][..., None] / 255
  maps, rolled = actual[:-1].reshape(3, 2, 1 + h * w, h, w), actual[-1]
  # A half of a 255th of the largest.
  tolerance = {'rtol': 0, 'atol': 0.51 / 255 * answer['peaks'].max()}
  start = explore.attention_maps(vit, x)[:, 0]
  np.testing.assert_allclose(maps[:, :, 0], start, **tolerance)
  row, column = h - 1, w // 2
  chosen = explore.attention_maps(vit, x, query=(row, column))[:, 0]
  np.testing.assert_allclose(
    maps[:, :, 1 + row * w + column], chosen, **tolerance
  )
  rollout = explore.attention_rollout(vit, x)[0]
  np.testing.assert_allclose(rolled[0].reshape(h, w), rollout, **tolerance)


@pytest.mark.parametrize('channels', [1, 3, 4])
def test_the_image_is_the_one_that_the_model_sees(channels):
  vit = page_server.load(channels=channels)
  pixels = vit.preprocess.pixels(PICTURE)[0, ..., :3]  # it is opaque
  expected = np.broadcast_to(pixels, (*page_server.SIZE, 3))
  np.testing.assert_array_equal(seen_by(vit)['pixels'], expected)


def test_the_most_probable_classes_are_named():
  vit = page_server.load()
  top = seen_by(vit)['top']
  logits = vit.predict(PICTURE)[0].astype(np.float64)
  probabilities = np.exp(logits) / np.exp(logits).sum()
  order = np.argsort(-probabilities)[:5].tolist()
  assert [x['index'] for x in top] == order
  names = [*page_server.CLASSES, *(f'class {i}' for i in range(3, 7))]
  assert [x['name'] for x in top] == [names[i] for i in order]
  actual = [x['probability'] for x in top]
  np.testing.assert_allclose(actual, probabilities[order], rtol=1e-3)


def predicting(feature, **facts):
  """Returns a model whose outputs are a feature of the data."""
  vit = page_server.load()
  preprocess = dataclasses.replace(
    vit.preprocess,
    classes=(),
    features={'y': feature.to_dict()},
    outputs={'logits': {'feature': 'y', **facts}},
  )
  return dataclasses.replace(vit, preprocess=preprocess)


def test_labels_that_go_together_have_probabilities_of_their_own():
  vit = predicting(target_kinds.MultiLabel(tuple('abcdefg')))
  logits = vit.predict(PICTURE)[0]
  order = np.argsort(-logits)[:5].tolist()
  top = seen_by(vit)['top']
  assert [x['name'] for x in top] == ['abcdefg'[i] for i in order]
  actual = [x['probability'] for x in top]
  expected = 1 / (1 + np.exp(-logits[order]))
  np.testing.assert_allclose(actual, expected, rtol=1e-3)
  drawn = predictions.probabilities(vit, logits[None])[0, order]
  np.testing.assert_allclose(drawn, expected, rtol=1e-3)


def test_numbers_have_no_probabilities():
  feature = target_kinds.Number(tuple('abcdefg'))
  vit = predicting(feature, mean=[5.0] * 7, std=[2.0] * 7)
  numbers = vit.outputs(PICTURE)['numbers'][0]
  top = seen_by(vit)['top']
  assert [x['name'] for x in top] == list('abcdefg')
  actual = [x['number'] for x in top]
  np.testing.assert_allclose(actual, numbers, rtol=1e-3)
  with pytest.raises(UserError, match='predicts numbers'):
    predictions.probabilities(vit, vit.predict(PICTURE))


def test_a_model_without_a_head_names_nothing():
  answer = seen_by(page_server.load(num_classes=0))
  assert answer['top'] == [] and answer['weights'].size


@pytest.mark.parametrize(
  'name, why', [('Mixer-S/4', 'no attention'), ('BiT-R50x1', 'no patches')]
)
def test_without_attention_predictions_are_shown_alone(name, why):
  vit = page_server.load(name)
  described = viewer_lib.Viewer(vit, 'it').describe()
  assert described['heads'] == 0 and why in described['note']
  answer = seen_by(vit)
  assert set(answer) == {'top', 'pixels'} and len(answer['top']) == 5


@pytest.mark.parametrize(
  'most, heads, note',
  [(10**6, 2, ''), (4000, 1, 'of all 2 heads'), (1000, 0, 'too much to show')],
)
def test_attention_that_is_too_large_is_averaged_or_left_out(
  monkeypatch, most, heads, note
):
  monkeypatch.setattr(viewer_lib, '_MOST_NUMBERS', most)
  vit = page_server.load()  # of 24 patches in 3 layers
  described = viewer_lib.Viewer(vit, 'it').describe()
  assert described['heads'] == heads and note in described['note']
  answer = seen_by(vit)
  assert len(answer['top']) == 5 and ('weights' in answer) == bool(heads)
  if heads == 1:
    assert answer['weights'].shape == (3 + 1, 25, 24)
    peaks, weights = answer['peaks'], answer['weights']
    mean = explore.attention_maps(vit, vit.preprocess(PICTURE))[:, 0].mean(1)
    np.testing.assert_allclose(
      weights[:-1, 0] * peaks[:-1, 0, None] / 255,
      mean.reshape(3, 24),
      rtol=0,
      atol=0.51 / 255 * peaks.max(),
    )
