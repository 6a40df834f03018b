"""Tokenizers with tiny vocabularies; tests/golden.py has the authors' answers.

The merges here are 'c a', 'ca t</w>' and 'o n': their tokens are 512 to 514.
"""

import gzip
import sys

import numpy as np
import pytest

from vit_jax.config import UserError
from vit_jax.data import tokenizers

_START, _END = 515, 516


@pytest.fixture(scope='module', autouse=True)
def _libraries():
  for name in ('ftfy', 'sentencepiece', 'tokenizers'):
    pytest.importorskip(name)


@pytest.fixture
def merges(tmp_path):
  path = tmp_path / 'merges.txt.gz'
  path.write_bytes(gzip.compress(b'#version\nc a\nca t</w>\no n\n'))
  return path


@pytest.fixture(scope='module')
def pieces(tmp_path_factory):
  import sentencepiece

  path = tmp_path_factory.mktemp('pieces') / 'tiny'
  words = 'a photo of the cat and the dog on my sofa by night'.split()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([' '.join(words[i:]) for i in range(9)] * 9),
    model_prefix=str(path),
    vocab_size=24,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    minloglevel=2,
  )
  return path.with_suffix('.model')


def test_clip_cleans_and_pads(merges):
  tokenizer = tokenizers.Clip(merges, length=6)
  assert tokenizer.vocabulary == 517
  a = ord('a') - ord('!')
  tokens = tokenizer(['CAT', ' cat  \n&#99;at', 'a', ''])
  assert tokens.dtype == np.int32
  np.testing.assert_array_equal(
    tokens,
    [
      [_START, 513, _END, 0, 0, 0],
      [_START, 513, 513, _END, 0, 0],
      [_START, 256 + a, _END, 0, 0, 0],
      [_START, _END, 0, 0, 0, 0],
    ],
  )


def test_clip_cuts_before_the_end_token(merges):
  tokenizer = tokenizers.Clip(merges, length=4)
  np.testing.assert_array_equal(
    tokenizer(['cat cat', 'cat cat cat cat']),
    [[_START, 513, 513, _END]] * 2,
  )


def test_clip_splits_digits_and_endings(merges):
  tokenizer = tokenizers.Clip(merges)
  assert len(tokenizer.encode("2026 it's")) == 2 + 4 + 2 + 2
  assert tokenizer.encode('<|endoftext|>') == [_START, _END, _END]


def test_pieces_of_siglip(pieces):
  tokenizer = tokenizers.SentencePiece(pieces, 24)
  actual = tokenizer(['The Cat!', 'the cat', 'the cat ' * 9])
  np.testing.assert_array_equal(actual[0], actual[1])
  assert (actual[:, -1] == 1).all()
  captions = tokenizers.SentencePiece(pieces, 24, canonical=False)
  actual = captions(['the cat!', 'the cat'])
  assert (actual[0] != actual[1]).any()
  assert captions.vocabulary == 24


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig'])
def test_pieces_of_bert(tmp_path, encoding):
  path = tmp_path / 'vocab.txt'
  path.write_text('[PAD]\n[UNK]\n[CLS]\na\ncat\n##s\n', encoding)
  tokenizer = tokenizers.WordPiece(path, 5)
  np.testing.assert_array_equal(
    tokenizer(['A Cáts', 'a dog a a a a']), [[2, 3, 4, 5, 0], [2, 3, 1, 3, 3]]
  )
  path.write_text('a\ncat\n')
  with pytest.raises(UserError, match=r'no vocabulary of BERT.*\[PAD\]'):
    tokenizers.WordPiece(path)


@pytest.mark.parametrize(
  ('make', 'content', 'message'),
  [
    (tokenizers.Clip, None, 'there is no vocabulary'),
    (tokenizers.SentencePiece, None, 'there is no vocabulary'),
    (tokenizers.Clip, b'#version\na b c\n', 'each line has two symbols'),
    (tokenizers.Clip, b'#version\nzq qz\n', 'no file of merges of CLIP'),
    (tokenizers.Clip, b'\xff\xfe', 'cannot be read'),
    (tokenizers.SentencePiece, b'#version\na b\n', 'no SentencePiece model'),
  ],
)
def test_files_that_are_no_vocabulary(make, content, message, tmp_path):
  path = tmp_path / 'vocabulary'
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(UserError, match=message):
    make(path)


def test_a_library_that_is_missing(merges, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ftfy', None)
  with pytest.raises(UserError, match=r'needs ftfy: run pip install .*\[text'):
    tokenizers.Clip(merges)


def test_a_library_that_is_broken(merges, monkeypatch, tmp_path):
  (tmp_path / 'ftfy.py').write_text('import no_such_module')
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, 'ftfy', raising=False)
  with pytest.raises(
    UserError,
    match=r"ftfy, .* imported \(No module named 'no_such_module'\): run pip",
  ):
    tokenizers.Clip(merges)
