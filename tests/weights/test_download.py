"""Downloads, from a server of this process's own."""

import base64
from collections.abc import Iterator
import dataclasses
import errno
import hashlib
import io
import json
import logging
import pathlib
import re
import sys
import threading

from file_server import BODY
from file_server import Reply
from file_server import Server
import pytest
import tiny

from vit_jax.config import UserError
from vit_jax.weights import download


@pytest.fixture
def server() -> Iterator[Server]:
  server = Server()
  yield server
  server.stop()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> pathlib.Path:
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setenv('NO_PROXY', '*')
  monkeypatch.delenv('HF_TOKEN', raising=False)
  monkeypatch.delenv('HF_ENDPOINT', raising=False)
  return tmp_path / 'cache'


@pytest.fixture
def hub(server, monkeypatch):
  """Serves the files of hf:timm/vit: hub(name=body)."""
  monkeypatch.setenv('HF_ENDPOINT', f'{server.url}/')

  def serve(revision: str = 'main', **files: bytes | Reply) -> None:
    for name, body in files.items():
      reply = body if isinstance(body, Reply) else Reply(body)
      reply.headers.setdefault('X-Repo-Commit', 'c0ffee')
      path = f'/timm/vit/resolve/{revision}/{name.replace("__", ".")}'
      server.replies[path] = reply

  return serve


def no_sleep(seconds: float) -> None:
  raise AssertionError(f'sleeps {seconds} s')


def files(root: pathlib.Path) -> dict[str, bytes]:
  return {
    str(path.relative_to(root)): path.read_bytes()
    for path in root.rglob('*')
    if path.is_file() and '.cache' not in path.parts
  }


def error(path: str, sleep=no_sleep) -> str:
  with pytest.raises(UserError) as caught:
    download.fetch(path, sleep=sleep)
  message = str(caught.value)
  assert '\n' not in message
  return message


# Addresses.


def test_local_paths_come_back_as_they_are(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a.npz').touch()
  assert download.fetch('a.npz') == pathlib.Path('a.npz')
  assert download.fetch(str(tmp_path)) == tmp_path
  assert download.fetch('~/a.npz') == tmp_path / 'a.npz'


@pytest.mark.parametrize(
  'path, hint',
  [
    ('', 'no such file'),
    ('there/is/none.npz', "'there/is/none.npz': there is no such file"),
    ('timm/vit_small.augreg', "write 'hf:timm/vit_small.augreg'"),
    ('ftp://bucket/a.npz', 'known are local paths, https://'),
    ('s3://bucket/a.npz', "needs s3fs: run pip install 'vit_jax[s3]'"),
    ('s3://bucket', 'must read s3://BUCKET/KEY'),
    ('~nobody-of-this-name/a', 'the home directory is not known'),
    ('hf:vit', 'must read hf:OWNER/NAME'),
    ('hf:../../etc', 'must read hf:OWNER/NAME'),
    ('hf:timm/vit/model.safetensors', 'must read hf:OWNER/NAME'),
    ('gs://bucket', 'must read gs://BUCKET/KEY'),
    ('gs://bucket/folder/', "needs gcsfs: run pip install 'vit_jax[gs]'"),
    ('https://', 'must read https://HOST/PATH'),
    ('http://host:port/a', 'must read http://HOST/PATH'),
    ('https://host/', 'must read https://HOST/PATH'),
  ],
)
def test_what_cannot_be_fetched(path, hint, monkeypatch):
  for package in ('gcsfs', 's3fs'):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were missing
  assert hint in error(path)


@pytest.mark.parametrize(
  'url, place',
  [
    (
      'gs://vit_models/imagenet21k+imagenet2012/ViT-B_16.npz',
      'storage.googleapis.com/vit_models/imagenet21k+imagenet2012/ViT-B_16.npz',
    ),
    ('https://Host:8080/a/b%20c.npz', 'host+8080/a/b c.npz'),
    ('http://user:word@host/a.npz', 'http+host/a.npz'),
    ('https://host/%2e%2e/..//x%2Fy.npz', 'host/%2E%2E/%2E%2E/%/x%2Fy.npz'),
    ('https://host/a.npz?v=1', 'host/a-a798de8ee75a.npz'),
  ],
)
def test_the_cache_has_readable_names_and_needs_no_server(cache, url, place):
  path = cache / 'downloads' / place
  path.parent.mkdir(parents=True)
  path.touch()
  assert download.fetch(url) == path


def test_the_cache_is_in_the_home_directory(tmp_path, monkeypatch):
  monkeypatch.delenv('VIT_JAX_CACHE')
  monkeypatch.setenv('HOME', str(tmp_path))
  path = tmp_path / '.cache/vit_jax/downloads/host/a.npz'
  path.parent.mkdir(parents=True)
  path.touch()
  assert download.fetch('https://host/a.npz') == path


# One file.


def test_a_file_is_downloaded_once(server, cache):
  server.replies['/a/b.npz'] = Reply()
  path = download.fetch(f'{server.url}/a/b.npz', sleep=no_sleep)
  server.stop()
  place = f'downloads/http+127.0.0.1+{server.server_port}/a/b.npz'
  assert path == cache / place
  assert files(cache) == {place: BODY}
  assert download.fetch(f'{server.url}/a/b.npz', sleep=no_sleep) == path
  assert len(server.requests) == 1


CUT = {'cuts': [200_000]}
NEW = Reply(BODY[::-1], etag='"two"')


@pytest.mark.parametrize(
  ('first', 'then', 'pauses', 'is_resumed'),
  [
    (Reply(**CUT), None, [1.0], True),
    (Reply(cuts=[70_000] * 4), None, [1.0] * 4, True),  # each made headway
    (Reply(**CUT, ranges='ignored'), None, [1.0], True),
    (Reply(**CUT, etag='W/"weak"'), None, [1.0], False),
    (Reply(**CUT), NEW, [1.0], True),
    (Reply(**CUT), dataclasses.replace(NEW, ranges='unchecked'), None, True),
    (Reply(**CUT), Reply(BODY[:100]), None, True),
    (Reply(b'', 503), Reply(), [1.0], False),
  ],
  ids='cut headway ignored weak changed unchecked shrank busy'.split(),
)
def test_a_download_goes_on(server, cache, first, then, pauses, is_resumed):
  """Or starts anew, where the server has another file, or no version of it."""
  server.replies['/a.npz'] = dataclasses.replace(first, cuts=[*first.cuts])
  slept = []

  def sleep(seconds: float) -> None:
    slept.append(seconds)
    server.replies['/a.npz'] = then or server.replies['/a.npz']

  path = download.fetch(f'{server.url}/a.npz', sleep=sleep)
  assert path.read_bytes() == (then or first).body
  assert len(files(cache)) == 1 and pauses in (None, slept)
  ranges = server.ranges()
  assert ranges[0] is None and (ranges[1] is not None) == is_resumed
  if is_resumed:
    start = int(re.fullmatch(r'bytes=(\d+)-', ranges[1])[1])
    assert first.cuts[0] - 100_000 < start <= first.cuts[0]
    assert server.requests[1][1]['If-Range'] == '"one"'


def test_a_later_run_resumes(server, cache):
  server.replies['/a.npz'] = Reply(cuts=[200_000, 0, 0, 0, 0])
  pauses = []
  message = error(f'{server.url}/a.npz', pauses.append)
  assert 'the connection was cut' in message
  assert 'what has come is kept' in message
  assert pauses == [1.0, 2.0, 4.0, 8.0]
  (part,) = cache.rglob('a.npz.part')
  size = part.stat().st_size
  path = download.fetch(f'{server.url}/a.npz', sleep=no_sleep)
  assert path.read_bytes() == BODY
  assert server.ranges()[-1] == f'bytes={size}-'


def test_two_fetches_at_once_download_once(server, cache):
  url = f'{server.url}/a.npz'
  gate = threading.Event()
  server.replies['/a.npz'] = Reply(gate=gate)

  class OpenGate(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
      if 'Waiting for another process' in record.getMessage():
        gate.set()

  logger, handler = logging.getLogger('absl'), OpenGate()
  level = logger.level
  logger.addHandler(handler)
  logger.setLevel(logging.INFO)
  try:
    paths = []
    threads = [
      threading.Thread(
        target=lambda: paths.append(download.fetch(url, sleep=no_sleep))
      )
      for _ in range(2)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  finally:
    logger.removeHandler(handler)
    logger.setLevel(level)
  assert gate.is_set()
  assert len(set(paths)) == 1 and len(paths) == 2
  assert list(files(cache).values()) == [BODY]
  assert len(server.requests) == 1


def test_a_bar_on_a_terminal(server, monkeypatch):
  terminal = tiny.Terminal()
  monkeypatch.setattr(sys, 'stderr', terminal)
  server.replies['/a.npz'] = Reply()
  download.fetch(f'{server.url}/a.npz')
  assert 'a.npz 100%' in terminal.getvalue()
  assert '307.2 kB/307.2 kB' in terminal.getvalue()


# What a server gives to verify.


def md5(body: bytes) -> dict[str, str]:
  digest = base64.b64encode(hashlib.md5(body).digest()).decode()
  return {'X-Goog-Hash': f'crc32c=AAAAAA==, md5={digest}'}


def linked(body: bytes, **more: str) -> dict[str, str]:
  digest = hashlib.sha256(body).hexdigest()
  return {'X-Repo-Commit': 'c0ffee', 'X-Linked-Etag': f'"{digest}"', **more}


@pytest.mark.parametrize('headers', [md5, linked])
def test_the_right_hash_passes_also_after_a_cut(server, headers):
  server.replies['/a.npz'] = Reply(headers=headers(BODY), cuts=[200_000])
  path = download.fetch(f'{server.url}/a.npz', sleep=lambda _: None)
  assert path.read_bytes() == BODY
  assert server.ranges()[1] is not None


@pytest.mark.parametrize('headers, name', [(md5, 'md5'), (linked, 'sha256')])
def test_a_wrong_hash_is_refused_and_removed(server, cache, headers, name):
  server.replies['/a.npz'] = Reply(headers=headers(b'something else'))
  message = error(f'{server.url}/a.npz')
  assert f'wrong {name}: ' in message
  assert server.url in message
  assert set(files(cache).values()) <= {b''}  # a lock
  server.replies['/a.npz'] = Reply(headers=headers(BODY))
  assert download.fetch(f'{server.url}/a.npz').read_bytes() == BODY


def test_the_hash_of_compressed_storage_is_not_of_the_content(server):
  headers = {**md5(b'gzip'), 'X-Goog-Stored-Content-Encoding': 'gzip'}
  server.replies['/a.csv'] = Reply(headers=headers)
  assert download.fetch(f'{server.url}/a.csv').read_bytes() == BODY


@pytest.mark.parametrize(
  ('reply', 'message'),
  [
    (
      Reply(headers=linked(BODY, **{'X-Linked-Size': '400000'})),
      'wrong size: 307,200 bytes are offered where there should be 400,000',
    ),
    (
      Reply(headers={'Content-Type': 'text/html; charset=utf-8'}),
      'a web page came in its place',
    ),
    (None, 'status 404 Not Found: check the name'),
    (Reply(b'', 401), 'status 401'),
    (Reply(b'', 403), 'status 403'),
  ],
)
def test_what_is_no_file(server, cache, reply, message):
  if reply:
    server.replies['/a.npz?key=secret'] = reply
  text = error(f'{server.url}/a.npz?key=secret')
  assert f'cannot download {server.url}/a.npz?...: {message}' in text
  assert 'secret' not in text and not list(cache.rglob('a*.npz'))


# Refusals of the server and of this machine.


def test_anonymous_access_refused_by_the_bucket(server, monkeypatch):
  monkeypatch.setattr(download, '_GCS', server.url)
  monkeypatch.setitem(sys.modules, 'gcsfs', None)  # as if it were missing
  server.replies['/vit_models/a%2Bb.npz'] = Reply(b'', 403)
  message = error('gs://vit_models/a+b.npz')
  assert f'{server.url}/vit_models/a%2Bb.npz: status 403' in message
  assert 'anonymous access was refused' in message
  assert 'hf:timm/' in message


def test_unreachable_says_where_to_put_the_file(server, cache):
  server.stop()
  url = f'{server.url}/a.npz'
  message = error(url)
  target = cache / f'downloads/http+127.0.0.1+{server.server_port}/a.npz'
  assert f'cannot download {url}: Connection refused' in message
  assert f'put it at {target}' in message
  target.write_bytes(BODY)
  assert download.fetch(url) == target


def test_no_room_keeps_what_has_come(server, cache, monkeypatch):
  class FullDisk(io.FileIO):
    def write(self, data) -> int:
      if self.tell() > 150_000:
        raise OSError(errno.ENOSPC, 'No space left on device')
      return super().write(data)

  open_path = pathlib.Path.open

  def open_on_full_disk(self, mode='r', *args, **kwargs):
    if self.suffix == '.part' and mode == 'ab':
      return FullDisk(self, mode)
    return open_path(self, mode, *args, **kwargs)

  server.replies['/a.npz'] = Reply()
  with monkeypatch.context() as context:
    context.setattr(pathlib.Path, 'open', open_on_full_disk)
    message = error(f'{server.url}/a.npz')
  (part,) = cache.rglob('a.npz.part')
  assert f'no room for {part.with_suffix("")}: ' in message
  assert re.search(r'0\.1 MB more needed, [\d,.]+ MB free', message)
  assert 'VIT_JAX_CACHE' in message
  size = part.stat().st_size
  assert size > 150_000
  path = download.fetch(f'{server.url}/a.npz', sleep=no_sleep)
  assert path.read_bytes() == BODY
  assert server.ranges() == [None, f'bytes={size}-']


# Directories of the Hub.


def index(*shards) -> bytes:
  weights = {f'w{i}': shard for i, shard in enumerate(shards)}
  return json.dumps({'weight_map': weights}).encode()


@pytest.mark.parametrize(
  'names',
  [
    ('preprocessor_config.json', 'model.safetensors'),
    ('pytorch_model.bin',),
    ('pytorch_model.bin.index.json', 'pytorch_model-1-of-1.bin'),
  ],
)
def test_a_directory(server, hub, cache, names):
  content = dict.fromkeys(names, BODY)
  if 'pytorch_model.bin.index.json' in content:
    content['pytorch_model.bin.index.json'] = index(names[1])
  content['config.json'] = b'{}'
  hub(**{name.replace('.', '__'): x for name, x in content.items()})
  path = download.fetch('hf:timm/vit', sleep=no_sleep)
  server.stop()
  assert path == cache / 'hub/timm--vit/main'
  assert files(path) == content
  assert download.fetch('hf:timm/vit', sleep=no_sleep) == path


def test_a_directory_with_shards(server, hub, cache):
  one, two = 'model-00001-of-00002', 'model-00002-of-00002'
  shards = (f'{one}.safetensors', f'{two}.safetensors')
  hub(
    'refs%2Fpr%2F1',
    **{
      'config__json': b'{}',
      'model__safetensors__index__json': index(*shards, shards[0]),
      f'{one}__safetensors': b'1',
    },
  )
  # A shard that is not there is an error, not another format to try.
  assert f'{shards[1]}: status 404' in error('hf:timm/vit@refs/pr/1')
  hub('refs%2Fpr%2F1', **{f'{two}__safetensors': b'2'})
  path = download.fetch('hf:timm/vit@refs/pr/1', sleep=no_sleep)
  assert path == cache / 'hub/timm--vit/refs%2Fpr%2F1'
  assert {path / s for s in shards} < set(path.iterdir())
  assert len([p for p in server.paths if p.endswith(shards[0])]) == 1
  server.stop()
  assert download.fetch('hf:timm/vit@refs/pr/1', sleep=no_sleep) == path


@pytest.mark.parametrize(
  'name',
  [
    *('../../../evil.safetensors', '/evil.safetensors', 'a/b.safetensors'),
    *('config.json', '..', '.safetensors', 'a\\b.safetensors', 7, ''),
  ],
)
def test_an_index_cannot_name_files_elsewhere(server, hub, name):
  content = index('model-1.safetensors', name)
  hub(config__json=b'{}', model__safetensors__index__json=content)
  assert 'which is not one of safetensors or bin' in error('hf:timm/vit')
  assert server.paths[-1].endswith('index.json')


def test_an_unreachable_hub_says_where_to_put_what(server, hub, cache):
  server.stop()
  message = error('hf:timm/vit')
  directory = cache / 'hub/timm--vit/main'
  assert f'{server.url}/timm/vit/tree/main' in message
  assert f'put them into {directory}' in message
  for name in ('config.json', 'pytorch_model.bin'):
    (directory / name).write_bytes(b'')
  assert download.fetch('hf:timm/vit') == directory


def test_the_token_is_shown_to_the_hub_alone(server, hub, monkeypatch):
  monkeypatch.setenv('HF_TOKEN', 'hf_secret')
  store = Server()
  try:
    store.replies['/blob'] = Reply()
    headers = linked(
      BODY, **{'X-Linked-Size': str(len(BODY)), 'Location': f'{store.url}/blob'}
    )
    hub(config__json=b'{}', model__safetensors=Reply(b'', 302, '', headers))
    path = download.fetch('hf:timm/vit', sleep=no_sleep)
  finally:
    store.stop()
  assert (path / 'model.safetensors').read_bytes() == BODY
  assert server.requests and server.heads
  for _, headers in (*server.requests, *server.heads):
    assert headers['Authorization'] == 'Bearer hf_secret'
  ((_, headers),) = store.requests
  assert headers['Authorization'] is None


def test_the_hash_before_a_redirect_counts(hub, cache):
  store = Server()
  try:
    headers = linked(b'other', Location=f'{store.url}/blob')
    store.replies['/blob'] = Reply()
    hub(config__json=b'{}', model__safetensors=Reply(b'', 302, '', headers))
    assert 'wrong sha256' in error('hf:timm/vit')
  finally:
    store.stop()
  assert not list(cache.rglob('model.safetensors'))


@pytest.mark.parametrize(
  ('status', 'code', 'hint'),
  [
    (401, '', 'set HF_TOKEN'),
    (401, 'RepoNotFound', 'there is no such repository'),
    (403, 'GatedRepo', 'accept its terms at'),
    (404, 'RepoNotFound', 'check the name'),
    (404, 'RevisionNotFound', 'check the name'),
  ],
)
def test_what_the_hub_refuses(hub, status, code, hint):
  headers = {'X-Error-Code': code} if code else {}
  hub(config__json=Reply(b'', status, headers=headers))
  message = error('hf:timm/vit')
  assert f'status {status}' in message and hint in message


@pytest.mark.parametrize('content', [None, b'<', b'[]', b'{"weight_map": [1]}'])
def test_a_directory_without_weights(hub, content):
  more = {} if content is None else {'model__safetensors__index__json': content}
  hub(config__json=b'{}', **more)
  reason = 'is neither a checkpoint nor the index of one'
  if content is None:
    reason = 'hf:timm/vit has neither model.safetensors'
  assert reason in error('hf:timm/vit')


def test_a_hub_without_headers_is_a_proxy_in_its_place(hub):
  reply = Reply()
  hub(config__json=reply)
  del reply.headers['X-Repo-Commit']
  assert "missing the 'X-Repo-Commit' header" in error('hf:timm/vit')


@pytest.mark.parametrize(
  ('path', 'folder'),
  [('hf:timm/vit', 'hub'), ('https://127.0.0.1/a.npz', 'downloads')],
)
def test_a_cache_that_cannot_be_written(
  hub, tmp_path, monkeypatch, path, folder
):
  (tmp_path / 'file').touch()
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path / 'file'))
  hub(config__json=b'{}')
  message = error(path)
  assert f'cannot write {tmp_path}/file/{folder}/' in message
  assert 'Not a directory' in message and 'VIT_JAX_CACHE' in message


@pytest.mark.parametrize(
  'name, value, hint',
  [
    ('HF_TOKEN', 'two\nlines', 'HF_TOKEN has spaces'),
    ('HF_ENDPOINT', 'huggingface.co', 'must start with https://'),
  ],
)
def test_wrong_settings_of_the_hub(monkeypatch, name, value, hint):
  monkeypatch.setenv(name, value)
  message = error('hf:timm/vit')
  assert hint in message
  assert 'lines' not in message
