"""Bytes that no honest client sends, to both servers, over real connections."""

import contextlib
import gc
import resource
import socket
import struct
import threading
import time
import urllib.parse
import zlib

import pytest
import requests

pytest.importorskip('starlette', reason='starlette is not installed')
pytest.importorskip('uvicorn', reason='uvicorn is not installed')

import page_server

from vit_jax.explore import server as page_lib
from vit_jax.explore import viewer as viewer_lib
from vit_jax.serve import api
from vit_jax.serve import model as model_lib

PATIENCE_S = 120
PICTURE = page_server.picture()
HOST = b'Host: localhost\r\n'
CHUNKED = (
  b' HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n'
  b'Transfer-Encoding: chunked\r\n\r\n'
)
PATHS = {'page': '/api/look/0', 'model': '/predict'}


@pytest.fixture(scope='module')
def vit():
  return page_server.load()


@contextlib.contextmanager
def running(kind, vit, timeout_s=PATIENCE_S, **settings):
  """Yields the address of the page, or of the served model."""
  if kind == 'page':
    app = page_lib.application([viewer_lib.Viewer(vit, 'it')])
  else:
    settings_of_model = api.Settings(batch_size=8, timeout_s=timeout_s)
    app = api.application(model_lib.Answerer(vit, 8), settings_of_model)
  with page_server.running(app, **settings) as address:
    yield address


@pytest.fixture(scope='module', params=PATHS)
def kind(request):
  return request.param


@pytest.fixture(scope='module')
def address(kind, vit):
  with running(kind, vit) as address:
    assert ask(address, kind).status_code == 200
    yield address


def ask(address, kind, image=PICTURE):
  headers = {'Content-Type': 'image/png'}
  url = address.rstrip('/') + PATHS[kind]
  return requests.post(url, image, headers=headers, timeout=PATIENCE_S)


def connect(address):
  host = urllib.parse.urlsplit(address)
  return socket.create_connection((host.hostname, host.port), PATIENCE_S)


def replies(address, *parts):
  """Sends bytes, and returns all that comes until the server closes."""
  received = b''
  # The server may close before it has all.
  with connect(address) as connection, contextlib.suppress(OSError):
    for part in parts:
      with contextlib.suppress(OSError):
        connection.sendall(part)
    while data := connection.recv(2**16):
      received += data
  return received


def test_what_is_no_http_is_refused_at_once(address, kind, caplog):
  """Each gets one line at most, and nothing waits or is logged as a bug."""
  path = PATHS[kind].encode()
  post = b'POST ' + path + b' HTTP/1.1\r\n' + HOST
  for text in (
    bytes(range(256)),
    b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + bytes(500),  # TLS
    b'GET / HTTP/1.1\r\n\r\n',  # no host
    b'GET / HTTP/1.1\r\n' + 2 * HOST + b'\r\n',
    b'GET /' + b'a' * 2**20 + b' HTTP/1.1\r\n' + HOST + b'\r\n',
    b'GET / HTTP/1.1\r\n' + HOST + b'X: ' + b'x' * 2**20 + b'\r\n\r\n',
    b'GET / HTTP/1.1\r\n' + HOST + b'X: y\r\n' * 2**16 + b'\r\n',
    post + b'Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello',
    post + b'Content-Length: -5\r\n\r\nhello',
    post + b'Content-Length: ' + b'9' * 5000 + b'\r\n\r\nhello',
    post + b'Transfer-Encoding: gzip\r\n\r\nhello',
    b'POST ' + path + CHUNKED + b'zz\r\nhello\r\n',
    b'POST ' + path + CHUNKED + b'5;' + b'x' * 2**20 + b'\r\nhello\r\n',
    b'POST ' + path + CHUNKED + b'0\r\n' + b'X: y\r\n' * 2**16 + b'\r\n',
  ):
    status = replies(address, text)[:12]
    assert status in (b'HTTP/1.1 400', b''), text[:100]
  assert ask(address, kind).status_code == 200
  gc.collect()  # asyncio logs what nobody has awaited
  assert {x.getMessage() for x in caplog.records} == {
    'Invalid HTTP request received.'
  }


def test_a_reply_before_a_damaged_body_is_the_only_one(address, kind, caplog):
  with connect(address) as connection:
    connection.sendall(b'PUT ' + PATHS[kind].encode() + CHUNKED)
    assert connection.recv(12) == b'HTTP/1.1 405'
    connection.sendall(b'zz\r\nhello\r\n')
    received = b''
    while data := connection.recv(2**16):
      received += data
  assert b'HTTP/1.1' not in received
  assert all(x.levelname == 'WARNING' for x in caplog.records)


def test_bodies_without_end_are_refused(address, kind):
  mebibyte = b'100000\r\n' + bytes(2**20) + b'\r\n'
  start = b'POST ' + PATHS[kind].encode() + CHUNKED[:-2]
  closing = b'Connection: close\r\n\r\n'
  reply = replies(address, start + closing, *[mebibyte] * 40)
  assert reply[:12] in (b'HTTP/1.1 413', b'')  # or it was closed by then
  assert ask(address, kind).status_code == 200


def test_bodies_that_drip_end(kind, vit, monkeypatch):
  monkeypatch.setattr(page_lib, '_TIMEOUT_S', 0.2)
  with running(kind, vit, timeout_s=0.2) as address:
    with connect(address) as connection:
      connection.sendall(b'POST ' + PATHS[kind].encode() + CHUNKED)
      is_over = threading.Event()

      def drip():
        with contextlib.suppress(OSError):
          while not is_over.wait(0.01):
            connection.sendall(b'1\r\nx\r\n')

      dripping = threading.Thread(target=drip)
      dripping.start()
      assert connection.recv(12) == b'HTTP/1.1 408'
      is_over.set()
      dripping.join()


def test_more_connections_than_it_has_are_refused(kind, vit):
  with running(kind, vit, most_connections=4) as address:
    with contextlib.ExitStack() as stack:
      for _ in range(4):
        connection = stack.enter_context(connect(address))
        connection.sendall(b'GET / HTTP/1.1\r\n')
      # The last of them may not be counted yet.
      while requests.get(f'{address}nothing').status_code != 503:
        pass
    while ask(address, kind).status_code == 503:
      pass  # until it knows that they left
    assert ask(address, kind).status_code == 200


def chunk(name, content):
  """Returns a chunk of a PNG."""
  checksum = struct.pack('>I', zlib.crc32(name + content))
  return struct.pack('>I', len(content)) + name + content + checksum


def png(size, pixels, *chunks, bits=8):
  """Returns a PNG of an RGBA image, with further chunks."""
  header = struct.pack('>IIBBBBB', *size, bits, 6, 0, 0, 0)
  parts = (chunk(b'IHDR', header), *chunks, chunk(b'IDAT', pixels))
  return b'\x89PNG\r\n\x1a\n' + b''.join(parts) + chunk(b'IEND', b'')


def zeros(count):
  """Returns zeros, compressed without having them all in memory."""
  compressor, mebibyte = zlib.compressobj(9), bytes(2**20)
  parts = [compressor.compress(mebibyte) for _ in range(count >> 20)]
  parts.append(compressor.compress(bytes(count % 2**20)))
  return b''.join(parts) + compressor.flush()


def peak_bytes():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10


def test_texts_of_images_are_not_unpacked(address, kind):
  bomb, pixels = zeros(2**29), zeros(30 * (1 + 4 * 40))
  before = peak_bytes()
  for name, start in (
    (b'zTXt', b'a\0\0'),
    (b'iTXt', b'a\0\1\0\0\0'),
    (b'iCCP', b'a\0\0'),
  ):
    image = png((40, 30), pixels, chunk(name, start + bomb))
    assert ask(address, kind, image).status_code == 200
  assert peak_bytes() - before < 2**27


def test_images_are_decoded_in_so_much_memory(vit, monkeypatch):
  """However many cores there are, and whoever has left."""
  side = 100
  image = png((side, side), zeros(side * (1 + 4 * side)))
  monkeypatch.setattr(api, '_MOST_DECODED', 2 * side**2)
  monkeypatch.setattr(api.batches, 'num_cores', lambda: 8)
  lock, gate, counts = threading.Lock(), threading.Event(), [0]

  class Decoding(model_lib.Answerer):
    def pixels(self, image):
      with lock:
        counts.append(counts[-1] + 1)
      assert gate.wait(PATIENCE_S)
      with lock:
        counts.append(counts[-1] - 1)
      return super().pixels(image)

  app = api.application(Decoding(vit, 8), api.Settings(batch_size=8))
  with page_server.running(app) as address:
    results = []
    clients = [
      threading.Thread(
        target=lambda: results.append(ask(address, 'model', image))
      )
      for _ in range(6)
    ]
    for client in clients:
      client.start()
    while counts[-1] < 2:
      time.sleep(0)
    gate.set()
    for client in clients:
      client.join()
  assert [x.status_code for x in results] == [200] * 6
  assert max(counts) == 2


@pytest.mark.parametrize(
  'path', ['/api/samples/' + '9' * 5000, '/api/samples/-1', '/%00', '/page%00']
)
def test_paths_that_are_none(address, path):
  reply = requests.get(address.rstrip('/') + path)
  assert reply.status_code == 404 and reply.json()['error']


@pytest.mark.parametrize(
  'boundary, parameter, line',
  [
    ('boundary*' + '9' * 5000 + '*=b', 'filename=a', 'has no boundary'),
    ('boundary=b', "filename*=unicode_escape''%5cud800", 'are damaged'),
    ('boundary=b', "filename*=utf-7''%2b2AA-", 'are damaged'),
    ('boundary=b', "name*=utf-7''%2b2AA-", 'are damaged'),
    ('boundary=b', 'filename*' + '9' * 5000 + '*=a', 'are damaged'),
  ],
)
def test_hostile_headers_of_forms_are_refused(vit, boundary, parameter, line):
  body = f'--b\r\nContent-Disposition: form-data; {parameter}\r\n\r\nx\r\n--b--'
  with running('model', vit) as address:
    reply = requests.post(
      f'{address}predict',
      body.encode(),
      headers={'Content-Type': f'multipart/form-data; {boundary}'},
    )
  assert reply.status_code == 400 and line in reply.json()['error']
