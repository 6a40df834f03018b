"""Recall both ways; tests/golden.py compares with big_vision."""

import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax.data import base as data_base
from vit_jax.data import features
from vit_jax.data import text_kind
from vit_jax.evaluation import base
from vit_jax.evaluation import retrieval

WORDS = ('red', 'green', 'blue', 'warm', 'cold')
CAPTIONS = (('red', 'warm'), ('green',), ('blue', 'cold', 'green cold'))


class Captioned(data_base.Source):
  """Three images, with one to three captions each."""

  def __init__(self):
    self.features = {
      'image': features.Image((2, 2)),
      'text': text_kind.Text(4, tokenizer='words', words=WORDS),
    }

  def __len__(self):
    return len(CAPTIONS)

  def read(self, position):
    raise NotImplementedError  # the context has the embeddings

  def captions(self, position):
    return CAPTIONS[position]

  def fingerprint(self):
    return ''


class StoredContext(base.Context):
  """Embeds images and tokens by tables; a batch of two, and a padded one."""

  def __init__(self, source, images, by_tokens):
    super().__init__(source.features)
    self._images, self._by_tokens = images, by_tokens

  def apply(self, function, split):
    for rows, valid in (([0, 1], [True, True]), ([2, 0], [True, False])):
      yield {'features': self._images[rows], 'valid': np.array(valid)}

  def compute(self, function, inputs):
    nothing = np.zeros(self._images.shape[1])
    return np.stack([self._by_tokens.get(x.tobytes(), nothing) for x in inputs])


def recalls(similarity, image_of_text, at=retrieval.AT):
  """Recalls of images whose inner products with texts are known."""
  texts = np.eye(similarity.shape[1])
  pairs = np.stack([image_of_text, np.arange(len(texts))], axis=1)
  return retrieval.recalls(similarity, texts, pairs, at)


def test_recall_of_known_ranks():
  similarity = np.array([[0.9, 0.1, 0.5], [0.8, 0.2, 0.3]])
  actual = recalls(similarity, np.array([0, 1, 1]), at=(1, 2))
  assert actual == {
    'image_to_text@1': 0.5,
    'image_to_text@2': 1.0,
    'text_to_image@1': 2 / 3,
    'text_to_image@2': 1.0,
  }


def test_the_earlier_of_equals_is_nearer():
  actual = recalls(np.zeros((4, 4)), np.arange(4), at=(1, 2, 3, 4))
  for way in ('image_to_text', 'text_to_image'):
    assert [actual[f'{way}@{k}'] for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1]


def test_all_captions_of_an_image_count():
  """Random embeddings, against the definition."""
  source = Captioned()
  text = source.features['text']
  captions = [x for each in CAPTIONS for x in each]
  tokens = text.encode_all(captions, 'here')
  rng = np.random.default_rng(0)
  images, texts = rng.normal(size=(3, 5)), rng.normal(size=(len(captions), 5))
  by_tokens = {x.tobytes(): y for x, y in zip(tokens, texts, strict=True)}
  spec = config_lib.evaluation('test', kind='retrieval')
  evaluator = retrieval.Retrieval(spec)
  evaluator.check_sources(source, None)
  actual = evaluator.run(StoredContext(source, images, by_tokens))
  image_of_text = np.repeat([0, 1, 2], [len(x) for x in CAPTIONS])
  expected = recalls(images @ texts.T, image_of_text)
  assert actual == pytest.approx(expected | {'examples': 3.0})
