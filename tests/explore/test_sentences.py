"""Sentences on the page: the server answers as the library."""

import json

import numpy as np
import pytest
import requests

pytest.importorskip('starlette', reason='starlette is not installed')
pytest.importorskip('uvicorn', reason='uvicorn is not installed')

import page_server

from vit_jax.config import UserError
from vit_jax.explore import sentences
from vit_jax.explore import viewer as viewer_lib
from vit_jax.objectives import embedder as embedder_lib

PICTURE = page_server.picture((8, 8))
TEXTS = ['a 3', 'the number 8', 'a 1']
TYPED = '\n'.join(TEXTS)


@pytest.fixture(scope='module')
def loaded(tmp_path_factory):
  return page_server.pairs_run(tmp_path_factory.mktemp('pairs') / 'run')


@pytest.fixture(scope='module')
def page(loaded):
  viewer = viewer_lib.Viewer(page_server.load(), 'without')
  viewers = [viewer_lib.Viewer(loaded, 'pairs'), viewer]
  with page_server.serving(viewers) as address:
    yield address


def body(text=TYPED, template='{}', image=PICTURE):
  head = json.dumps({'text': text, 'template': template}).encode()
  return len(head).to_bytes(4, 'little') + head + image


def fit(page, data, model=0):
  return requests.post(f'{page}api/fit/{model}', data=data)


def embeddings(loaded, images, texts):
  actual = embedder_lib.Embedder(loaded, len(images))
  params = actual.params
  image = actual.towers.embed(params, 'image', images)
  return np.asarray(image), actual.texts(texts, 'texts')


@pytest.mark.slow
def test_models_say_whether_they_read_texts(page):
  first, second = requests.get(f'{page}api/models').json()['models']
  assert first['texts'] == 'together' and first['grid'] == [2, 2]
  assert second['texts'] == ''


def test_sentences_are_compared_as_the_library_does(page, loaded):
  answer = fit(page, body())
  assert answer.status_code == 200, answer.text
  actual = page_server.unpack(answer.content)
  x = loaded.preprocess(PICTURE)
  image, texts = embeddings(loaded, x, TEXTS)
  listed = actual['sentences']
  shares = [sentence['probability'] for sentence in listed]
  assert shares == sorted(shares, reverse=True)
  assert sum(shares) == pytest.approx(1, abs=1e-5)
  for sentence in listed:
    assert sentence['text'] == TEXTS[sentence['index']]
    expected = float(image[0] @ texts[sentence['index']])
    assert sentence['cosine'] == pytest.approx(expected, abs=1e-5)


def test_a_place_adds_what_is_lost_without_it(page, loaded):
  actual = page_server.unpack(fit(page, body()).content)['places']
  x = loaded.preprocess(PICTURE)
  hidden = np.repeat(x, 4, axis=0)
  for i, (row, column) in enumerate(np.ndindex(2, 2)):
    hidden[i, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 0
  image, texts = embeddings(loaded, np.concatenate([x, hidden]), TEXTS)
  expected = texts @ image[:1].T - texts @ image[1:].T
  assert actual.shape == (3, 2, 2)
  np.testing.assert_allclose(actual.reshape(3, 4), expected, atol=1e-5)


@pytest.mark.slow
def test_each_sentence_of_siglip_has_its_own_probability(tmp_path):
  options = {'loss': 'sigmoid', 'dim': 0}
  loaded = page_server.pairs_run(tmp_path / 'run', **options)
  viewer = viewer_lib.Viewer(loaded, 'it')
  assert viewer.describe()['texts'] == 'each'
  alone, two = (
    page_server.unpack(viewer.fit(PICTURE, text, '{}'))['sentences']
    for text in ('a 3', 'a 3,a 8')
  )
  again = {x['text']: x['probability'] for x in two}
  assert again['a 3'] == pytest.approx(alone[0]['probability'], rel=1e-4)


@pytest.mark.parametrize(
  ('text', 'template', 'expected'),
  [
    ('cat, dog', '{}', ['cat', 'dog']),
    ('cat, dog\n\n a bird ', '{}', ['cat, dog', 'a bird']),
    ('cat,', 'a photo of a {}.', ['a photo of a cat.']),
    ('cat', ' ', ['cat']),
  ],
)
def test_lines_or_commas_separate(text, template, expected):
  assert sentences.split(text, template) == expected


def test_a_template_needs_a_place():
  with pytest.raises(UserError, match=r'must have \{\} once'):
    sentences.split('cat', 'a photo')


@pytest.mark.parametrize(
  ('data', 'model', 'status', 'line'),
  [
    (body(' , '), 0, 422, 'there is no sentence'),
    (body(','.join('a' * 257)), 0, 422, '257 sentences, and at most 256'),
    (body(template='a'), 0, 422, 'must have {} once'),
    (body(image=b'no'), 0, 422, 'no image'),
    (b'', 0, 422, 'must start with JSON of text and template'),
    (b'\x02\0\0\0{}', 0, 422, 'must start with JSON of text and template'),
    (b'\xff\xff\xff\xff{}', 0, 422, 'the texts have more than 64 KiB'),
    (body(), 1, 422, 'without reads no texts'),
    (body(), 2, 404, 'there is no model'),
  ],
)
def test_bad_requests_get_one_line(page, data, model, status, line):
  answer = fit(page, data, model)
  assert answer.status_code == status
  assert line in answer.json()['error']


@pytest.mark.parametrize(
  ('grid', 'places'),
  [((2, 3), 6), ((8, 8), 64), ((14, 14), 49), ((7, 1), 7), ((32, 32), 64)],
)
def test_places_are_at_most_64(grid, places):
  actual = sentences.windows(grid)
  assert actual.shape == grid
  assert sorted(np.unique(actual)) == list(range(places))
