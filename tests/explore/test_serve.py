"""The web page's server and its command, over real connections."""

from concurrent import futures
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib

import commands
import cv2
import numpy as np
import pytest
import requests
import tiny

pytest.importorskip('starlette', reason='starlette is not installed')
pytest.importorskip('uvicorn', reason='uvicorn is not installed')

import page_server

from vit_jax import convert
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.explore import samples as samples_lib
from vit_jax.explore import serve
from vit_jax.explore import viewer as viewer_lib
from vit_jax.web import uploads

PATIENCE_S = 120
PICTURE = page_server.picture()


class Counted(viewer_lib.Viewer):
  """Knows how many look at once, and can be held."""

  gate, calls, now, most = None, 0, 0, 0

  def look(self, image):
    self.calls += 1
    self.now += 1
    self.most = max(self.most, self.now)
    if self.gate:
      assert self.gate.wait(PATIENCE_S)
    try:
      return super().look(image)
    finally:
      self.now -= 1


@pytest.fixture(scope='module')
def viewers():
  names = ('ViT-Ti/4', 'Mixer-S/4')
  return [Counted(page_server.load(name), name) for name in names]


@pytest.fixture(scope='module')
def page(viewers):
  with page_server.serving(viewers, ['My-Machine']) as address:
    yield address


def look(page, image=PICTURE, model=0, **headers):
  return requests.post(f'{page}api/look/{model}', data=image, headers=headers)


def raw(page, *lines):
  """Sends a request as it is; returns the status and the JSON."""
  host = page.removeprefix('http://').strip('/')
  address, port = host.split(':')
  lines = [lines[0], f'Host: {host}', 'Connection: close', *lines[1:], '', '']
  with socket.create_connection((address, int(port)), PATIENCE_S) as s:
    s.sendall('\r\n'.join(lines).encode())
    with s.makefile('rb') as answer:
      head, _, body = answer.read().partition(b'\r\n\r\n')
  return int(head.split()[1]), body


def test_models_are_described(page):
  actual = requests.get(f'{page}api/models').json()
  assert actual['most_bytes'] == uploads.MOST_BYTES
  vit, mixer = actual['models']
  assert vit == vit | {
    'name': 'ViT-Ti/4',
    'heads': 2,
    'layers': 3,
    'grid': [4, 6],
    'start': 'class token',
    'note': '',
  }
  assert '3 layers, 2 heads, patches of 4 × 4 pixels' in vit['facts']
  assert mixer['heads'] == 0


def test_an_upload_is_answered(page, viewers):
  for i, viewer in enumerate(viewers):
    answer = look(page, model=i)
    assert answer.status_code == 200
    assert answer.content == viewer_lib.Viewer.look(viewer, PICTURE)


def test_images_of_the_data_of_a_run(digits_run, viewers, tmp_path):
  """They are files that the page takes; of data elsewhere there are none."""
  actual = samples_lib.read(weights.load(digits_run))
  assert len(actual) == 12 and len({x.file for x in actual}) == 12
  with page_server.serving(viewers, samples=actual) as page:
    names = requests.get(f'{page}api/models').json()['samples']
    assert names == [x.name for x in actual]
    answer = requests.get(f'{page}api/samples/11')
    assert answer.content == actual[11].file
    assert look(page, answer.content).status_code == 200
    assert requests.get(f'{page}api/samples/12').status_code == 404
  loaded = weights.load(digits_run)
  loaded.trained_with.data.name = f'folder:{tmp_path}/gone'
  assert samples_lib.read(loaded) == []
  assert samples_lib.read(page_server.load()) == []


def test_twenty_at_once_are_answered_one_after_the_other(page, viewers):
  pictures = [page_server.picture(seed=i) for i in range(20)]
  viewers[0].most = 0
  with futures.ThreadPoolExecutor(20) as pool:
    answers = list(pool.map(lambda image: look(page, image), pictures))
  assert viewers[0].most == 1
  for image, answer in zip(pictures, answers, strict=True):
    assert answer.status_code == 200
    assert answer.content == viewer_lib.Viewer.look(viewers[0], image)


def test_who_left_is_not_waited_on(page, viewers):
  viewer = viewers[0]
  viewer.gate, calls = threading.Event(), viewer.calls
  try:
    with futures.ThreadPoolExecutor(1) as pool:
      first = pool.submit(look, page)
      while viewer.now == 0:
        requests.get(f'{page}api/models')
      host, port = page.removeprefix('http://').strip('/').split(':')
      with socket.create_connection((host, int(port))) as s:
        head = f'POST /api/look/0 HTTP/1.1\r\nHost: {host}\r\nContent-Length:'
        s.sendall(f'{head} {len(PICTURE)}\r\n\r\n'.encode() + PICTURE)
        for _ in range(3):  # it is read, and waits
          requests.get(f'{page}api/models')
      for _ in range(3):  # it is known to have left
        requests.get(f'{page}api/models')
      viewer.gate.set()
      assert first.result().status_code == 200
  finally:
    viewer.gate = None
  assert look(page).status_code == 200
  assert viewer.calls == calls + 2


def encode_png(width, height):
  """Returns a PNG that says it is of a size, and holds next to nothing."""

  def chunk(name, content):
    checksum = struct.pack('>I', zlib.crc32(name + content))
    return struct.pack('>I', len(content)) + name + content + checksum

  header = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
  return (
    b'\x89PNG\r\n\x1a\n'
    + chunk(b'IHDR', header)
    + chunk(b'IDAT', zlib.compress(b'\0' * 10))
    + chunk(b'IEND', b'')
  )


def encode_jpeg(width, height):
  """Returns a JPEG whose header says that it is of a size."""
  jpeg = bytearray(page_server.picture(ending='.jpg'))
  struct.pack_into('>HH', jpeg, jpeg.index(b'\xff\xc0') + 5, height, width)
  return bytes(jpeg)


def encode_gif(width, height):
  """Returns a GIF whose header says that it is of a size."""
  gif = bytearray(page_server.picture(ending='.gif'))
  struct.pack_into('<HH', gif, 6, width, height)
  return bytes(gif)


def encode_webp(width, height):
  sizes = struct.pack('<I', width - 1)[:3] + struct.pack('<I', height - 1)[:3]
  return b'RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0' + b'\0\0\0\0' + sizes


@pytest.mark.parametrize(
  'image, line',
  [
    (b'', 'no image'),
    (b'hello', 'no image'),
    (b'GIF89a' + bytes(100), 'JPEG, PNG, WebP, GIF or BMP'),
    (b'\x89PNG\r\n\x1a\n', 'its start is damaged'),
    (b'\xff\xd8\xff' + bytes(50), 'its start is damaged'),
    (b'RIFF\0\0\0\0WEBPVP8X', 'its start is damaged'),
    (PICTURE[:-20], 'it is damaged'),
    (page_server.picture(ending='.jpg')[:-200], 'it is damaged'),
    (page_server.picture(ending='.gif')[:-200], 'it is damaged'),
    (encode_gif(2, 2), 'lies outside of it'),
    (encode_png(0, 5), 'no image'),
    (
      encode_png(60_000, 50_000),
      '60000 x 50000 pixels, and at most 67 million',
    ),
    (encode_jpeg(60_000, 50_000), '60000 x 50000 pixels, and at most'),
    (encode_webp(60_000, 50_000), '60000 x 50000 pixels, and at most'),
    (encode_gif(60_000, 50_000), '60000 x 50000 pixels, and at most'),
    (page_server.picture((2, 150)), 'at most 64 times the other'),
  ],
  ids=[
    'nothing',
    'text',
    'GIF',
    'PNG-start',
    'JPEG-start',
    'WebP-start',
    'PNG-cut',
    'JPEG-cut',
    'GIF-cut',
    'GIF-outside',
    'PNG-empty',
    'PNG-large',
    'JPEG-large',
    'WebP-large',
    'GIF-large',
    'long',
  ],
)
def test_bad_files_are_refused(page, viewers, image, line):
  answer = look(page, image)
  assert answer.status_code == 422
  assert line in answer.json()['error']
  assert 'image 0' not in answer.json()['error']
  assert look(page).status_code == 200  # still


@pytest.mark.parametrize(
  'ending, parameters, channels',
  [
    ('.png', (), 3),
    ('.jpg', (), 3),
    ('.bmp', (), 3),
    ('.gif', (), 3),
    ('.webp', (cv2.IMWRITE_WEBP_QUALITY, 80), 3),  # VP8
    ('.webp', (cv2.IMWRITE_WEBP_QUALITY, 101), 3),  # VP8L
    ('.webp', (cv2.IMWRITE_WEBP_QUALITY, 80), 4),  # VP8X
  ],
)
def test_sizes_are_read_off_headers(ending, parameters, channels):
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (321, 123, channels), np.uint8)
  file = cv2.imencode(ending, image, parameters)[1].tobytes()
  assert uploads.image_size(file) == (321, 123)
  uploads.check(file)


def test_a_model_that_has_no_answer_says_so(monkeypatch):
  vit = page_server.load()
  vit.params['head']['bias'][0] = np.nan
  with page_server.serving([viewer_lib.Viewer(vit, 'it')]) as page:
    answer = look(page)
  assert answer.status_code == 422 and 'not finite' in answer.json()['error']


def test_our_own_mistakes_are_no_answer_either(page, viewers, monkeypatch):
  monkeypatch.setattr(viewers[0], '_top', lambda _: 1 / 0)
  answer = look(page)
  assert answer.status_code == 500 and 'terminal' in answer.json()['error']
  assert answer.headers['X-Content-Type-Options'] == 'nosniff'


def test_large_uploads_are_refused(page, monkeypatch):
  huge = 'Content-Length: 1000000000000'  # of which nothing is sent
  status, body = raw(page, 'POST /api/look/0 HTTP/1.1', huge)
  assert status == 413 and 'more than 20 MiB' in json.loads(body)['error']
  monkeypatch.setattr(uploads, 'MOST_BYTES', len(PICTURE))
  assert look(page).status_code == 200
  unannounced = iter([PICTURE, b'\0'])  # are sent in chunks
  assert look(page, unannounced).status_code == 413
  assert look(page, PICTURE + b'\0').status_code == 413


def test_an_upload_of_more_than_the_limit_gets_the_message(page):
  answer = look(page, bytes(uploads.MOST_BYTES + 1))
  assert answer.status_code == 413 and 'MiB' in answer.json()['error']


@pytest.mark.parametrize(
  'method, path, status',
  [
    ('GET', 'api/look/0', 405),
    ('POST', 'api/look/2', 404),
    ('POST', 'api/look/-1', 404),
    ('POST', 'api/models', 405),
    ('GET', 'nothing.html', 404),
  ],
)
def test_what_is_not_there_is_refused(page, method, path, status):
  answer = requests.request(method, page + path, data=PICTURE)
  assert answer.status_code == status and answer.json()['error']


@pytest.mark.parametrize(
  'path',
  [
    '/../server.py',
    '/page/../../server.py',
    '/%2e%2e/server.py',
    '/..%2fserver.py',
    '//etc/passwd',
    '/%2fetc%2fpasswd',
    '/..\\server.py',
  ],
)
def test_nothing_else_on_the_disk_is_served(page, path):
  status, body = raw(page, f'GET {path} HTTP/1.1')
  assert status == 404 and b'import' not in body and b'root:' not in body


def test_other_sites_are_refused(page):
  port = page.strip('/').rsplit(':', 1)[1]
  for host, status in [
    ('evil.example', 421),
    (f'evil.example:{port}', 421),
    ('127.0.0.1.evil.example', 421),
    ('[', 421),
    ('', 421),
    ('localhost', 200),
    (f'localhost:{port}', 200),
    (f'my-machine:{port}', 200),
    (f'[::1]:{port}', 200),
    ('192.168.1.7', 200),
  ]:
    assert requests.get(page, headers={'Host': host}).status_code == status
  for origin in ('http://evil.example', 'null', 'http://127.0.0.1:1', ''):
    assert look(page, Origin=origin).status_code == 403
  assert look(page, Origin=page.strip('/')).status_code == 200


def test_the_page_loads_nothing_from_elsewhere(page):
  for name in ('', 'page.js', 'page.css', 'api/models'):
    answer = requests.get(page + name)
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers['Content-Security-Policy']
    assert answer.headers['X-Content-Type-Options'] == 'nosniff'
    assert 'https://' not in answer.text


def test_uploads_stay_in_memory(page):
  noise = np.random.default_rng(0).integers(0, 256, (1200, 1200, 3), np.uint8)
  image = cv2.imencode('.png', noise)[1].tobytes()
  assert len(image) > 2**22
  assert look(page, image).status_code == 200  # all is imported
  with page_server.written() as paths:
    assert look(page, image).status_code == 200
  assert paths == []


# The command.


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, status', [('SIGINT', 0), ('SIGTERM', 128 + signal.SIGTERM)]
)
def test_the_command_serves_until_it_is_stopped(digits_run, name, status):
  command = [sys.executable, '-m', 'vit_jax.explore', 'serve', '--port=0']
  command += [f'--from={digits_run}'] * (2 if name == 'SIGINT' else 1)
  with subprocess.Popen(
    command,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {'PYTHONPATH': str(tiny.ROOT)},
  ) as process:
    try:
      page = process.stdout.readline().strip()
      assert page.startswith('http://127.0.0.1:'), process.stderr.read()
      assert 'Attention and predictions' in requests.get(page).text
      samples = requests.get(f'{page}api/models').json()['samples']
      assert len(samples) == 12
      models = requests.get(f'{page}api/models').json()['models']
      assert len(models) == (2 if name == 'SIGINT' else 1)
      seen = page_server.unpack(look(page, page_server.picture((8, 8))).content)
      assert len(seen['top']) == 5 and seen['pixels'].shape == (8, 8, 3)
      process.send_signal(getattr(signal, name))
      out, log = process.communicate(timeout=PATIENCE_S)
    finally:
      process.kill()
  assert process.returncode == status
  assert out == '' and 'Traceback' not in log


@pytest.mark.parametrize(
  'args, line',
  [
    ([], '--from is missing'),
    (['--from='], '--from is missing'),
    (['--from=a', '--from=b', '--from=c'], '--from=c: at most two'),
    (['--from=a', 'b'], "unexpected argument 'b'"),
    (['--from=/nowhere', '--port=0'], '/nowhere'),
    (['--from=a', '--host=256.0.0.1'], '--host=256.0.0.1'),
    (['--from=a', '--host=a..b'], '--host=a..b .* no name of a host'),
  ],
)
def test_wrong_flags_are_refused(args, line):
  with pytest.raises(UserError, match=line):
    commands.run(serve, *args)


def test_volumes_are_refused(tmp_path):
  vit = page_server.load(size=(8, 8, 8), patch_size=(4, 4, 4), channels=1)
  convert.write_workdir(vit, tmp_path / 'run', 'here')
  with pytest.raises(UserError, match='takes volumes or videos'):
    commands.run(serve, f'--from={tmp_path}/run', '--port=0')


def test_a_port_in_use_is_refused():
  with socket.create_server(('127.0.0.1', 0)) as s:
    port = s.getsockname()[1]
    with pytest.raises(UserError, match=f'--port={port} cannot be .* in use'):
      commands.run(serve, '--from=a', f'--port={port}')


def test_a_missing_package_is_asked_for(monkeypatch):
  monkeypatch.setitem(sys.modules, 'uvicorn', None)
  with pytest.raises(UserError, match=r"uvicorn: run pip install 'vit_jax\[de"):
    commands.run(serve, '--from=a')
