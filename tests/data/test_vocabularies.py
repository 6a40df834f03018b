"""Published vocabularies, from a server of this process's own."""

import dataclasses
import gzip
import hashlib
import json

import commands
from file_server import Reply
from file_server import Server
import pytest
import tiny

from vit_jax import evaluate
from vit_jax.config import UserError
from vit_jax.data import tokenizers
from vit_jax.data import vocabularies
from vit_jax.train import loop

MERGES = gzip.compress(b'#version\nc a\nca t</w>\no n\n', mtime=0)
# Some network packets.
PIECES = b'[PAD]\n[UNK]\n[CLS]\na\ncat\n##s\n' + b''.join(
  b'word%05d\n' % i for i in range(12_000)
)
CLIP_PATH = '/clip/bpe_simple_vocab_16e6.txt.gz'
HUB_PATH = '/google-bert/bert-base-uncased/resolve/main/vocab.txt'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setenv('NO_PROXY', '*')
  forget()
  yield tmp_path / 'cache' / 'vocabularies'
  forget()


def forget():
  """What a new process does not know."""
  tokenizers.make.cache_clear()
  tokenizers.digest.cache_clear()


@pytest.fixture
def server(monkeypatch):
  """Serves small files in place of CLIP's merges and BERT's pieces."""
  server = Server()
  monkeypatch.setenv('HF_ENDPOINT', server.url)
  files = {
    'clip': (MERGES, f'{server.url}{CLIP_PATH}'),
    'wordpiece': (PIECES, vocabularies.PUBLISHED['wordpiece'].url),
  }
  published = {
    kind: dataclasses.replace(
      vocabularies.PUBLISHED[kind],
      url=url,
      sha256=hashlib.sha256(content).hexdigest(),
    )
    for kind, (content, url) in files.items()
  }
  monkeypatch.setattr(vocabularies, 'PUBLISHED', published)
  server.replies = {CLIP_PATH: Reply(MERGES), HUB_PATH: Reply(PIECES)}
  yield server
  server.stop()


def error(call) -> str:
  with pytest.raises(UserError) as caught:
    call()
  message = str(caught.value)
  assert '\n' not in message
  return message


def test_a_vocabulary_is_downloaded_once(server, cache):
  pytest.importorskip('tokenizers')
  first = tokenizers.make('wordpiece', 5)(['a cats'])
  assert first.tolist() == [[2, 3, 4, 5, 0]]
  assert server.paths == [HUB_PATH]
  server.replies.clear()  # as without a network
  forget()
  again = tokenizers.make('wordpiece', 5)(['a cats'])
  assert again.tolist() == first.tolist()
  assert server.paths == [HUB_PATH]
  assert [x.name for x in cache.iterdir()] == ['vocab.txt']


def test_clips_merges_are_those_of_its_file(server, cache):
  """A name stores the digest that the same file has, as of 'clip:FILE'."""
  pytest.importorskip('ftfy')
  pytest.importorskip('tokenizers')
  named = tokenizers.make('clip')
  file = f'clip:{cache / "bpe_simple_vocab_16e6.txt.gz"}'
  assert named(['a cat']).tolist() == tokenizers.make(file)(['a cat']).tolist()
  assert named.length == 77
  assert tokenizers.digest('clip') == tokenizers.digest(file)
  assert server.paths == [CLIP_PATH]


def test_a_broken_download_goes_on(server, monkeypatch):
  monkeypatch.setattr(vocabularies.time, 'sleep', lambda seconds: None)
  server.replies[HUB_PATH].cuts = [100_000]
  assert vocabularies.fetch('wordpiece').read_bytes() == PIECES
  assert server.ranges() == [None, 'bytes=65536-']


def test_another_file_is_refused(server, cache):
  """It is not kept, so that the next try can succeed."""
  server.replies[HUB_PATH] = Reply(PIECES + b'dog\n')
  message = error(lambda: tokenizers.digest('wordpiece'))
  assert 'wrong sha256' in message and str(cache / 'vocab.txt') in message
  assert [x.name for x in cache.iterdir()] == ['vocab.txt.lock']
  server.replies[HUB_PATH] = Reply(PIECES)
  assert vocabularies.fetch('wordpiece').read_bytes() == PIECES


def test_a_file_put_there_by_hand(server, cache):
  cache.mkdir(parents=True)
  (cache / 'vocab.txt').write_bytes(PIECES)
  assert vocabularies.fetch('wordpiece') == cache / 'vocab.txt'
  (cache / 'vocab.txt').write_bytes(b'of another model')
  message = error(lambda: vocabularies.fetch('wordpiece'))
  assert 'wrong sha256' in message and 'remove it and try again' in message
  assert (cache / 'vocab.txt').exists()
  assert not server.paths


def test_a_piece_may_be_a_line_separator(tmp_path):
  path = tmp_path / 'vocab.txt'
  pieces = ['[PAD]', '[UNK]', '[CLS]', '\u2028', '\x85', 'cat']
  path.write_bytes('\r\n'.join(pieces).encode() + b'\r\n')
  tokenizer = tokenizers.make(f'wordpiece:{path}')
  assert tokenizer.encode('cat') == [2, 5] and tokenizer.vocabulary == 6


def test_a_damaged_file_is_named(tmp_path):
  path = tmp_path / 'merges.gz'
  content = bytearray(gzip.compress(PIECES, mtime=0))
  for at in range(100, 120):
    content[at] ^= 255
  path.write_bytes(content)
  assert 'merges.gz cannot be read' in error(
    lambda: tokenizers.make(f'clip:{path}')
  )


def test_without_a_network_the_error_says_where_the_file_goes(
  server, cache, monkeypatch
):
  server.stop()
  message = error(lambda: tokenizers.make('wordpiece'))
  assert 'Connection refused' in message
  assert f'put it at {cache / "vocab.txt"}' in message
  assert "config.data.tokenizer='wordpiece:FILE'" in message


def test_a_file_that_has_moved(server):
  server.replies.clear()
  message = error(lambda: vocabularies.fetch('clip'))
  assert '404' in message and "'clip:FILE'" in message


@pytest.mark.parametrize(
  'name', ['clap', 'clip:', ':clip', '', 'words:x', 'CLIP', 'bert:vocab.txt']
)
def test_names_that_are_none(name):
  message = error(lambda: tokenizers.check_name(name))
  assert "'clip', 'sentencepiece', 'wordpiece'" in message


def test_sizes_need_no_file(cache):
  assert tokenizers.sizes('clip', None) == (77, 49_408)
  assert tokenizers.sizes('sentencepiece', 16) == (16, 32_000)
  assert tokenizers.sizes('wordpiece:none.txt', None) == (16, 30_522)
  assert not cache.exists()


def test_a_run_goes_on_with_the_vocabulary_that_it_had(
  server, cache, tmp_path, capsys
):
  """It stores the digest, as with a file, and needs no network later."""
  pytest.importorskip('tokenizers')
  config = tiny.config(
    objective__name='contrastive',
    data__split='train[:64]',
    data__captions='templates:a {}.',
    data__tokenizer='wordpiece',
    data__text_length=8,
    train__duration='3 steps',
    optim__schedule='constant',
    evals__val__split='',
    checkpoint__best='',
  )
  config.objective.options.update(
    dim=8, text_width=16, text_depth=1, text_heads=2, text_pool='first'
  )
  run = tmp_path / 'run'
  assert loop.run(config, str(run)).status == 0
  text = json.loads((run / 'preprocess.json').read_text())['features']['text']
  assert text['tokenizer'] == 'wordpiece'
  assert text['digest'] == tokenizers.digest(f'wordpiece:{cache}/vocab.txt')

  server.replies.clear()
  forget()
  config.train.duration = '4 steps'
  assert loop.run(config, str(run)).status == 0
  args = f'--from={run}', '--data=digits', '--split=train[200:230]'
  args += '--probe=zero_shot', '--templates=imagenet', '--format=json'
  assert commands.run(evaluate, *args) == 0
  assert 'accuracy' in json.loads(capsys.readouterr().out)
  with pytest.raises(UserError, match='with a name are cifar, imagenet'):
    commands.run(evaluate, *args, '--templates=imagenette')
