"""A model behind HTTP, over real connections of this machine."""

import base64
from concurrent import futures
import dataclasses
import gc
import http.client
import json
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse

import commands
import cv2
import documented
import jax
import jsonschema
import numpy as np
import psutil
import pytest
import requests

pytest.importorskip('starlette', reason='starlette is not installed')
pytest.importorskip('uvicorn', reason='uvicorn is not installed')

import page_server

import vit_jax
from vit_jax.config import UserError
from vit_jax.data import input_kinds
from vit_jax.data.host import batches
from vit_jax.serve import __main__ as command
from vit_jax.serve import api
from vit_jax.serve import model as model_lib
from vit_jax.serve import room
from vit_jax.web import server
from vit_jax.web import uploads

PATIENCE_S = 120
PICTURES = [page_server.picture(seed=i) for i in range(20)]
BATCH = 8  # as many as there are devices
# Of logits of the same images in batches of other sizes.
ROUNDING = 1e-5


class Held(model_lib.Answerer):
  """Knows its batches, and can be held or broken."""

  def __init__(self, loaded, batch_size=BATCH):
    super().__init__(loaded, batch_size)
    self.gate, self.batches, self.error = threading.Event(), [], None
    self.gate.set()

  def __call__(self, images):
    self.batches.append(len(images))
    assert self.gate.wait(PATIENCE_S)
    if self.error:
      raise self.error
    return super().__call__(images)


def serving(answerer, hosts=(), idle_s=PATIENCE_S, **settings):
  """Yields the address of a served model."""
  settings = api.Settings(**{'batch_size': BATCH} | settings)
  app = api.application(answerer, settings, hosts)
  return page_server.running(app, most_connections=512, idle_s=idle_s)


@pytest.fixture(scope='module')
def vit():
  return page_server.load()


@pytest.fixture(scope='module')
def answerer(vit):
  result = Held(vit)
  result.warm()
  return result


@pytest.fixture(scope='module')
def served(answerer):
  with serving(answerer, ['My-Machine']) as address:
    yield address


@pytest.fixture
def held(answerer):
  """Holds the model, which has no batch yet."""
  answerer.batches.clear()
  answerer.gate.clear()
  yield answerer
  answerer.gate.set()


def ask(address, image=PICTURES[0], path='predict', kind='image/png', **query):
  headers = {'Content-Type': kind} if kind is not None else {}
  return requests.post(address + path, image, headers=headers, params=query)


def as_json(*images):
  encoded = [base64.b64encode(image).decode() for image in images]
  return json.dumps({'images': encoded})


def metrics(address):
  text = requests.get(f'{address}metrics').text
  pairs = (x.rsplit(' ', 1) for x in text.splitlines() if x[0] != '#')
  return {name.removeprefix('vit_jax_'): float(x) for name, x in pairs}


def waiting(address):
  """Returns how many images and requests wait."""
  values = metrics(address)
  return values['queued_images'] + values['arriving_requests']


def wait_for(address, count):
  """Asks until a number of images and requests wait."""
  while waiting(address) != count:
    pass


def wait_for_queue(address, count):
  """Asks until a number of images are in the queue."""
  while metrics(address)['queued_images'] != count:
    pass


def check(result, vit, image, top=5):
  """Checks the answer for an image against the model's own."""
  (logits,) = vit.predict([image])
  expected = np.asarray(jax.nn.softmax(logits))
  index = [x['index'] for x in result['predictions']]
  probabilities = [x['probability'] for x in result['predictions']]
  assert len(index) == top
  np.testing.assert_allclose(probabilities, expected[index], rtol=ROUNDING)
  np.testing.assert_allclose(
    probabilities, np.sort(expected)[::-1][:top], rtol=ROUNDING
  )


# Answers.


def test_answers_are_those_of_the_loaded_run(digits_run):
  vit = vit_jax.load(digits_run)
  files = [page_server.picture((8, 8), seed=i) for i in range(3)]
  form = {f'field{i}': (f'{i}.png', x) for i, x in enumerate(files)}
  with serving(model_lib.Answerer(vit, BATCH)) as address:
    alone = [ask(address, x).json() for x in files]
    named = requests.post(f'{address}predict', files=form).json()
    together = ask(address, as_json(*files), kind='application/json').json()
    embedded = requests.post(f'{address}embed', files=form).json()
  for i, image in enumerate(files):
    for reply, name in ((named, f'{i}.png'), (together, f'image {i}')):
      assert reply['results'][i]['image'] == name
      check(reply['results'][i], vit, image)
    check(alone[i]['results'][0], vit, image)
    for prediction in alone[i]['results'][0]['predictions']:
      assert prediction['class'] == vit.classes[prediction['index']]
  np.testing.assert_allclose(
    [x['embedding'] for x in embedded['results']],
    vit.outputs(files)['features'],
    rtol=ROUNDING,
    atol=ROUNDING,
  )
  origin = vit.origin.to_dict()
  assert named['checkpoint'] == embedded['checkpoint'] == origin


def test_int8_answers_as_the_loaded_model(digits_run):
  vit = vit_jax.load(digits_run, quantize='int8')
  image = page_server.picture((8, 8))
  with serving(model_lib.Answerer(vit, BATCH)) as address:
    check(ask(address, image).json()['results'][0], vit, image)


def test_names_of_files_come_back(served):
  form = {'a': ('größe 1.png', PICTURES[0])}
  reply = requests.post(f'{served}predict', files=form)
  assert reply.json()['results'][0]['image'] == 'größe 1.png'


def test_the_number_of_classes(served, vit):
  for top in (1, 7):
    reply = ask(served, top=top).json()
    check(reply['results'][0], vit, PICTURES[0], top)
  names = [x['class'] for x in reply['results'][0]['predictions']]
  assert sorted(names) == sorted([*page_server.CLASSES, *'3456'])


@pytest.mark.parametrize(
  'query, line',
  [
    ({'top': '0'}, 'top=0: write a whole number from 1 to 7'),
    ({'top': '8'}, 'from 1 to 7'),
    ({'top': '-1'}, 'from 1 to 7'),
    ({'top': 'all'}, 'from 1 to 7'),
    ({'top': '\u0663'}, 'from 1 to 7'),  # an Arabic 3
    ({'top': '9' * 5000}, 'from 1 to 7'),
    ({'k': '3'}, "no parameter 'k': top is known"),
  ],
)
def test_wrong_parameters_are_refused(served, query, line):
  reply = ask(served, **query)
  assert reply.status_code == 400 and line in reply.json()['error']
  reply = ask(served, path='embed', **query)
  assert reply.status_code == 400 and 'no parameter' in reply.json()['error']


def test_several_labels_and_numbers():
  """Probabilities of their own, and numbers in the units of the data."""
  vit = page_server.load(num_classes=3)

  def with_target(feature, **facts):
    outputs = {'logits': {'feature': 'y', **facts}}
    preprocess = dataclasses.replace(
      vit.preprocess, classes=(), features={'y': feature}, outputs=outputs
    )
    return dataclasses.replace(vit, preprocess=preprocess)

  names = ('a', 'b', 'c')
  (logits,) = vit.predict([PICTURES[0]])
  labels = with_target({'kind': 'MultiLabel', 'classes': names})
  with serving(model_lib.Answerer(labels, BATCH)) as address:
    (result,) = ask(address).json()['results']
  values = {x['class']: x['probability'] for x in result['predictions']}
  expected = dict(zip(names, np.asarray(jax.nn.sigmoid(logits)), strict=True))
  assert values == pytest.approx(expected, rel=ROUNDING)
  numbers = with_target(
    {'kind': 'Number', 'quantities': names}, mean=[1, 2, 3], std=[4, 5, 6]
  )
  with serving(model_lib.Answerer(numbers, BATCH)) as address:
    (result,) = ask(address).json()['results']
    assert ask(address, top=1).status_code == 400
  expected = logits * [4, 5, 6] + [1, 2, 3]
  assert [*result['numbers']] == [*names]
  assert [*result['numbers'].values()] == pytest.approx(expected, rel=1e-4)


def test_a_model_without_a_head_has_embeddings():
  vit = page_server.load(num_classes=0)
  with serving(model_lib.Answerer(vit, BATCH)) as address:
    refused = ask(address)
    assert refused.status_code == 404 and 'ask /embed' in refused.text
    (result,) = ask(address, path='embed').json()['results']
    paths = requests.get(f'{address}openapi.json').json()['paths']
  assert '/embed' in paths and '/predict' not in paths
  expected = vit.outputs(PICTURES[:1])['features'][0]
  assert result['embedding'] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_a_model_of_images_and_texts_has_their_space(tmp_path):
  vit = page_server.pairs_run(tmp_path / 'run')
  image = page_server.picture((8, 8))
  with serving(model_lib.Answerer(vit, BATCH)) as address:
    assert ask(address, image).status_code == 404
    (result,) = ask(address, image, 'embed').json()['results']
  assert len(result['embedding']) == 8
  assert np.linalg.norm(result['embedding']) == pytest.approx(1, abs=1e-5)


# Batches.


def test_each_of_64_clients_gets_the_answer_for_its_image(
  served, answerer, vit
):
  """All of them at once, three times, in fewer batches than requests."""
  answerer.batches.clear()
  before, rounds = metrics(served), 3
  barrier = threading.Barrier(64)

  def client(number):
    image, results = PICTURES[number % len(PICTURES)], []
    with requests.Session() as session:
      for _ in range(rounds):
        barrier.wait(PATIENCE_S)
        reply = session.post(
          f'{served}predict', image, headers={'Content-Type': 'image/png'}
        )
        results.append((reply.status_code, reply.json()))
    return image, results

  with futures.ThreadPoolExecutor(64) as pool:
    answers = list(pool.map(client, range(64)))
  assert len(answers) == 64
  for image, results in answers:
    for status, reply in results:
      assert status == 200
      check(reply['results'][0], vit, image)
  assert sum(answerer.batches) == rounds * 64
  assert len(answerer.batches) < rounds * 64 and max(answerer.batches) <= BATCH
  after = metrics(served)
  assert after['images_total'] - before['images_total'] == rounds * 64
  key = 'requests_total{path="/predict",status="200"}'
  assert after[key] - before.get(key, 0) == rounds * 64
  assert after['queued_images'] == after['arriving_requests'] == 0


def test_images_that_wait_are_one_batch(served, held, vit):
  with futures.ThreadPoolExecutor(13) as pool:
    replies = [pool.submit(ask, served)]
    while not held.batches:
      pass
    replies += [pool.submit(ask, served, x) for x in PICTURES[:12]]
    wait_for_queue(served, 12)
    held.gate.set()
    replies = [x.result() for x in replies]
  assert held.batches == [1, 8, 4]
  for image, reply in zip(PICTURES[:12], replies[1:], strict=True):
    check(reply.json()['results'][0], vit, image)


def test_images_wait_for_those_that_are_read(answerer, vit):
  """Until they are there, or for so long; alone, an image does not wait."""
  answerer.batches.clear()
  with serving(answerer, max_delay_s=PATIENCE_S) as address:
    assert ask(address).status_code == 200  # at once
    slow = Slow(address, PICTURES[1])
    wait_for(address, 1)
    with futures.ThreadPoolExecutor(1) as pool:
      reply = pool.submit(ask, address)
      wait_for(address, 2)
      slow.finish()
      assert reply.result().status_code == 200
    check(slow.reply()['results'][0], vit, PICTURES[1])
  assert answerer.batches == [1, 2]
  with serving(answerer, max_delay_s=0.01) as address:
    slow = Slow(address, PICTURES[1])
    wait_for(address, 1)
    assert ask(address).status_code == 200
    slow.finish()
    assert slow.reply()['results']


class Slow:
  """A client that sends the last byte of its image when it is told to."""

  def __init__(self, address, image, path='predict', kind='image/png'):
    host = urllib.parse.urlsplit(address)
    self.image = image
    self.connection = http.client.HTTPConnection(
      host.hostname, host.port, timeout=PATIENCE_S
    )
    self.connection.putrequest('POST', f'/{path}')
    self.connection.putheader('Content-Type', kind)
    self.connection.putheader('Content-Length', str(len(image)))
    self.connection.endheaders(image[:-1])

  def finish(self):
    self.connection.send(self.image[-1:])

  def has_reply(self):
    return bool(select.select([self.connection.sock], [], [], 0)[0])

  def reply(self):
    with self.connection.getresponse() as response:
      return json.loads(response.read())


def test_who_left_is_not_answered(served, held, caplog):
  """Neither while it sends nor while it waits; and nothing is logged."""
  with futures.ThreadPoolExecutor(1) as pool:
    first = pool.submit(ask, served)
    while not held.batches:
      pass
    for number, is_sent in enumerate((True, False), 1):
      leaving = Slow(served, PICTURES[1])
      if is_sent:
        leaving.finish()
      wait_for(served, 1)
      leaving.connection.close()
      key = 'requests_total{path="/predict",status="499"}'
      while metrics(served).get(key) != number:
        pass
      wait_for(served, 0)
    held.gate.set()
    assert first.result().status_code == 200
  assert ask(served).status_code == 200
  assert held.batches == [1, 1]
  gc.collect()  # asyncio logs what nobody has awaited
  assert not caplog.messages


def test_images_of_who_left_are_not_decoded(vit):
  gate, decoded = threading.Event(), []

  class Decoding(Held):
    def pixels(self, image):
      decoded.append(image)
      assert gate.wait(PATIENCE_S)
      return super().pixels(image)

  decoding = Decoding(vit)
  with serving(decoding) as address:
    body = as_json(*PICTURES[:1] * 64).encode()
    leaving = Slow(address, body, kind='application/json')
    leaving.finish()
    while not decoded:
      pass
    leaving.connection.close()
    key = 'requests_total{path="/predict",status="499"}'
    while metrics(address).get(key) != 1:
      pass
    gate.set()
    assert ask(address, PICTURES[1]).status_code == 200
  assert len(decoded) <= batches.num_cores() + 1 < 64
  assert decoding.batches == [1]


def test_nothing_is_compiled_while_it_serves(served, caplog):
  jax.config.update('jax_log_compiles', True)
  try:
    with futures.ThreadPoolExecutor(20) as pool:
      replies = list(pool.map(lambda x: ask(served, x), PICTURES))
  finally:
    jax.config.update('jax_log_compiles', False)
  assert all(x.status_code == 200 for x in replies)
  assert not [x for x in caplog.messages if 'ompiling' in x]


# Limits and errors.


@pytest.mark.parametrize(
  'image, line',
  [
    (b'', 'no image'),
    (b'hello', 'no image'),
    (b'\xff\xd8\xff' + bytes(50), 'its start is damaged'),
    (PICTURES[0][:-20], 'it is damaged'),
    (page_server.picture(ending='.jpg')[:-200], 'it is damaged'),
    (page_server.picture((2, 150)), 'at most 64 times the other'),
  ],
  ids=['nothing', 'text', 'start', 'PNG', 'JPEG', 'long'],
)
def test_a_damaged_image_is_named(served, image, line):
  reply = ask(served, image)
  assert reply.status_code == 400 and line in reply.json()['error']
  encoded = as_json(PICTURES[0], PICTURES[1], image, b'another')
  reply = ask(served, encoded, kind='application/json')
  assert reply.status_code == 400
  assert re.match(f'image 2: .*{line}', reply.json()['error'])
  form = [('x', ('good.png', PICTURES[0])), ('x', ('bad.png', image))]
  reply = requests.post(f'{served}predict', files=form)
  assert reply.status_code == 400
  assert re.match(f'bad.png: .*{line}', reply.json()['error'])
  assert ask(served).status_code == 200  # still


@pytest.mark.parametrize(
  'body, line',
  [
    ('{', 'is no JSON'),
    ('[' * 100_000, 'is no JSON'),
    ('[]', 'must be {"images": [base64, ...]}'),
    ('{"images": 3}', 'must be'),
    ('{"images": ["aa="], "top": 3}', 'must be'),
    ('{"images": []}', 'there are no images'),
    ('{"images": ["!"]}', 'image 0 is no base64'),
    ('{"images": ["", 7]}', 'image 1 is no base64'),
    (json.dumps({'images': ['data:,'] * 64}), 'image 0 is no base64'),
  ],
)
def test_wrong_json_is_refused(served, body, line):
  reply = ask(served, body, kind='application/json')
  assert reply.status_code == 400 and line in reply.json()['error']


@pytest.mark.parametrize(
  'body, kind, line',
  [
    (b'', 'multipart/form-data', 'no boundary'),
    (b'', 'multipart/form-data; boundary=b', 'no end'),
    (b'--b\r\n\r\n\r\nx', 'multipart/form-data; boundary=b', 'no end'),
    (b'--b\r\nx\r\n--b--', 'multipart/form-data; boundary=b', 'no headers'),
    (b'--b--', 'multipart/form-data; boundary=b', 'there are no images'),
    (
      b'--b\r\nContent-Disposition: form-data; name="top"\r\n\r\n3\r\n--b--',
      'multipart/form-data; boundary="b"',
      'the field top of the form is no file',
    ),
    (
      b"--b\r\nContent-Disposition: form-data; name*=utf-8''a%20b\r\n\r\n3"
      b'\r\n--b--',
      'multipart/form-data; boundary=b',
      'the field a b of the form is no file',
    ),
    (
      b"--b\r\nContent-Disposition: form-data; filename*=idna''%ff\r\n\r\n3"
      b'\r\n--b--',
      'multipart/form-data; boundary=b',
      'the headers of a part of the form are damaged',
    ),
    (
      b'--b\r\nX: ' + b'x' * 2**13 + b'\r\n\r\n3\r\n--b--',
      'multipart/form-data; boundary=b',
      'more than 8 KiB',
    ),
  ],
)
def test_wrong_forms_are_refused(served, body, kind, line):
  reply = ask(served, body, kind=kind)
  assert reply.status_code == 400 and line in reply.json()['error']


@pytest.mark.parametrize(
  'kind', [None, '', 'text/plain', 'application/x-www-form-urlencoded', '/']
)
def test_other_types_are_refused(served, kind):
  reply = ask(served, kind=kind)
  assert reply.status_code == 415
  assert 'multipart/form-data or application/json' in reply.json()['error']


@pytest.mark.parametrize('kind', ['image/jpeg', 'IMAGE/PNG; a=b', 'image/x'])
def test_the_type_of_an_image_is_read_off_its_file(served, kind):
  assert ask(served, kind=kind).status_code == 200


def test_large_requests_are_refused(served, answerer):
  reply = ask(served, bytes(uploads.MOST_BYTES + 1))
  assert reply.status_code == 413 and '20 MiB' in reply.json()['error']
  chunks = iter([bytes(uploads.MOST_BYTES), b'\0'])  # of no announced length
  assert ask(served, chunks).status_code == 413
  many = as_json(*PICTURES[:1] * 65)
  reply = ask(served, many, kind='application/json')
  assert reply.status_code == 413
  assert 'there are 65 images, and a request may have 64' in reply.text
  with serving(answerer, max_queue=3) as address:
    few = as_json(*PICTURES[:4])
    assert ask(address, few, kind='application/json').status_code == 413
    few = as_json(*PICTURES[:3])
    assert ask(address, few, kind='application/json').status_code == 200


@pytest.mark.parametrize(
  'start, value, kind',
  [
    ('{"images": [""', ',""', 'application/json'),
    ('\r\n--b', '\r\n--b', 'multipart/form-data; boundary=b'),
  ],
)
def test_many_images_are_not_taken_apart(served, start, value, kind):
  """Since they end nowhere, the status is that of their number."""
  reply = ask(served, start + value * 1_000_000, kind=kind)
  assert reply.status_code == 413 and 'may have 64' in reply.json()['error']


def test_all_images_together_have_so_many_pixels(served, monkeypatch):
  monkeypatch.setattr(api, '_MOST_PIXELS', 2 * 30 * 40)
  for count, status in ((2, 200), (3, 413)):
    reply = ask(served, as_json(*PICTURES[:count]), kind='application/json')
    assert reply.status_code == status
  assert 'million pixels' in reply.json()['error']


@pytest.mark.parametrize(
  'method, path, status, line',
  [
    ('GET', 'predict', 405, '/predict has no GET: send POST'),
    ('PUT', 'embed', 405, '/embed has no PUT: send POST'),
    ('POST', 'health', 405, '/health has no POST: send GET or HEAD'),
    ('GET', '', 404, 'there is no /: GET /docs lists the requests'),
    ('POST', 'predict/', 404, 'there is no /predict/: GET /docs lists'),
    ('GET', 'docs/../api.py', 404, 'there is no /'),
    ('GET', '%2e%2e/api.py', 404, 'there is no /'),
  ],
)
def test_what_is_not_there_is_refused(served, method, path, status, line):
  reply = requests.request(
    method, served + path, data=PICTURES[0], allow_redirects=False
  )
  assert reply.status_code == status
  assert reply.json()['error'].startswith(line)


def test_other_sites_are_refused_and_counted(served):
  before = metrics(served)
  for host, status in [
    ('evil.example', 421),
    ('localhost', 200),
    ('my-machine:80', 200),
    ('10.0.0.7', 200),
  ]:
    reply = requests.get(f'{served}health', headers={'Host': host})
    assert reply.status_code == status
  headers = {'Origin': 'http://evil.example', 'Content-Type': 'image/png'}
  reply = requests.post(f'{served}predict', PICTURES[0], headers=headers)
  assert reply.status_code == 403
  after = metrics(served)
  for path, status in (('health', 421), ('predict', 403)):
    key = f'requests_total{{path="/{path}",status="{status}"}}'
    assert after[key] == before.get(key, 0) + 1


def test_more_than_the_queue_holds_is_refused(held):
  with serving(held, max_queue=4) as address:
    with futures.ThreadPoolExecutor(5) as pool:
      replies = [pool.submit(ask, address)]
      while not held.batches:
        pass
      replies += [pool.submit(ask, address, x) for x in PICTURES[:4]]
      wait_for_queue(address, 4)
      refused = ask(address)
      assert refused.status_code == 503
      assert refused.headers['Retry-After'] == '1'
      assert 'too many images wait' in refused.json()['error']
      held.gate.set()
      assert all(x.result().status_code == 200 for x in replies)
    assert ask(address).status_code == 200


def test_bodies_that_come_slowly_keep_nobody_out(answerer):
  with serving(answerer, max_queue=2) as address:
    slow = [Slow(address, PICTURES[0]) for _ in range(3)]
    wait_for(address, 3)
    assert ask(address).status_code == 200
    for client in slow:
      client.finish()
      assert client.reply()['results']


def test_bodies_have_so_much_memory(served, answerer, monkeypatch):
  monkeypatch.setattr(room, 'MOST_BYTES', len(PICTURES[0]))
  for _ in range(2):  # it is given back
    assert ask(served).status_code == 200
    assert ask(served, PICTURES[0] + b'\0').status_code == 503


def test_slow_bodies_lose_their_memory_to_others(answerer, monkeypatch):
  size = len(PICTURES[0])
  monkeypatch.setattr(room, 'MOST_BYTES', 3 * size - 3)
  monkeypatch.setattr(room, '_PACE_S', PATIENCE_S)
  with serving(answerer) as address:
    slow = [Slow(address, PICTURES[0]) for _ in range(2)]
    while ask(address).status_code != 503:  # none of them is slow yet
      pass
    monkeypatch.setattr(room, '_PACE_S', 0.0)
    assert ask(address).status_code == 200
    wait_for(address, 1)
    assert ask(address).status_code == 200  # its memory is free
    (kept, evicted) = sorted(slow, key=lambda x: x.has_reply())
    assert 'came so slowly' in evicted.reply()['error']
    kept.finish()
    assert kept.reply()['results']


def test_slow_bodies_end(answerer):
  with serving(answerer, timeout_s=0.1) as address:
    slow = Slow(address, PICTURES[0])
    assert 'did not arrive within 0.1 s' in slow.reply()['error']
    assert slow.connection.sock is None  # closed, as the reply says
    assert waiting(address) == 0


@pytest.mark.parametrize(
  'text', [b'', b'GET /health HTTP/1.1\r\nHost: local', None]
)
def test_connections_without_a_request_end(answerer, text):
  """Also after a first request."""
  with serving(answerer, idle_s=0.1) as address:
    host = urllib.parse.urlsplit(address)
    with socket.create_connection((host.hostname, host.port), PATIENCE_S) as s:
      if text is None:
        s.sendall(b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET')
        assert s.recv(12) == b'HTTP/1.1 200'
      else:
        s.sendall(text)
      try:
        while s.recv(2**16):
          pass
      except ConnectionResetError:
        pass


def test_replies_wait_for_no_acknowledgement(answerer, monkeypatch):
  """Nagle's algorithm would hold the body back for 40 ms."""
  made, at_once = server.Protocol.connection_made, []

  def note(protocol, transport):
    made(protocol, transport)
    connection = transport.get_extra_info('socket')
    at_once.append(
      connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    )

  monkeypatch.setattr(server.Protocol, 'connection_made', note)
  with serving(answerer) as address:
    requests.get(f'{address}health')
  assert at_once and all(at_once)


def test_clients_that_read_nothing_are_left(answerer):
  """The server's buffers are full; then it closes the connection."""
  with serving(answerer, idle_s=0.1) as address:
    host = urllib.parse.urlsplit(address)
    with socket.create_connection((host.hostname, host.port), PATIENCE_S) as s:
      page = b'GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n'
      with pytest.raises(OSError):
        while True:
          s.sendall(page * 100)


def test_a_model_that_fails_says_so(served, held, caplog):
  held.gate.set()
  held.error = RuntimeError('no memory\nleft')
  try:
    reply = ask(served)
    health = requests.get(f'{served}health')
  finally:
    held.error = None
  assert reply.status_code == 500
  assert reply.json() == {'error': 'the model failed: no memory left'}
  assert health.status_code == 503
  assert health.json()['status'] == 'failing'
  assert ask(served).status_code == 200
  assert requests.get(f'{served}health').json()['status'] == 'ready'


def test_a_model_that_has_no_answer_says_so():
  vit = page_server.load()
  vit.params['head']['bias'][0] = np.nan
  with serving(model_lib.Answerer(vit, BATCH)) as address:
    for path in ('predict', 'embed'):
      reply = ask(address, path=path)
      assert reply.status_code == 500
      assert 'no answer for image 0' in reply.json()['error']


def test_uploads_stay_in_memory(served):
  noise = np.random.default_rng(0).integers(0, 256, (1200, 1200, 3), np.uint8)
  image = cv2.imencode('.png', noise)[1].tobytes()
  form = {'image': ('noise.png', image)}
  assert len(image) > 2**22
  assert requests.post(f'{served}predict', files=form).status_code == 200
  with page_server.written() as paths:
    assert requests.post(f'{served}predict', files=form).status_code == 200
  assert paths == []


@pytest.mark.slow
def test_memory_is_flat():
  """A kept body or input of each request would take four times the bound."""
  vit = page_server.load('ViT-Ti/32', size=(128, 128))
  image = page_server.picture((200, 200), ending='.bmp')
  count, bound = 600, 2**24
  assert min(len(image), 128 * 128 * 3) * count > 1.7 * bound

  def client(_):
    with requests.Session() as session:
      for i in range(count // 8):
        path = 'embed' if i % 2 else 'predict'
        headers = {'Content-Type': 'image/bmp'}
        reply = session.post(f'{address}{path}', image, headers=headers)
        assert reply.status_code == 200

  process = psutil.Process()
  with serving(model_lib.Answerer(vit, BATCH)) as address:
    with futures.ThreadPoolExecutor(8) as pool:
      list(pool.map(client, range(8)))
      before = process.memory_info().rss
      list(pool.map(client, range(8)))
    assert process.memory_info().rss - before < bound


# Descriptions.


def test_health(served, vit):
  actual = requests.get(f'{served}health')
  assert actual.status_code == 200
  facts = actual.json()
  assert facts['status'] == 'ready' and facts['uptime_s'] > 0
  assert facts['model'] == vit.describe()
  assert facts['checkpoint'] == vit.origin.to_dict()


def validate(description, path, reply):
  """Validates a reply against the description of its request."""
  method = reply.request.method.lower()
  response = description['paths'][path][method]['responses']
  content = response[str(reply.status_code)]['content']
  schema = content[reply.headers['Content-Type']]['schema']
  full_schema = schema | {'components': description['components']}
  jsonschema.validate(reply.json(), full_schema)


def test_the_description_is_that_of_the_replies(served, held):
  held.gate.set()
  actual = requests.get(f'{served}openapi.json').json()
  assert actual['openapi'].startswith('3.1')
  for path, methods in actual['paths'].items():
    for method, request in methods.items():
      reply = requests.request(method, served.rstrip('/') + path)
      assert reply.status_code not in (404, 405)
      assert request['summary'] and request['responses']
      assert all(x['description'] for x in request['responses'].values())
  for path in ('/predict', '/embed'):
    content = actual['paths'][path]['post']['requestBody']['content']
    assert 'application/json' in content and 'multipart/form-data' in content
    sent = jsonschema.Draft202012Validator(
      content['application/json']['schema']
      | {'components': actual['components']}
    )
    assert sent.is_valid(json.loads(as_json(*PICTURES[:2])))
    assert not sent.is_valid({'images': []})
    for reply in (
      ask(served, path=path[1:]),
      ask(served, b'', path=path[1:]),
      ask(served, bytes(uploads.MOST_BYTES + 1), path=path[1:]),
      ask(served, path=path[1:], kind='text/plain'),
    ):
      validate(actual, path, reply)
  validate(actual, '/health', requests.get(f'{served}health'))
  refs = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(actual)))
  assert refs == set(actual['components']['schemas'])


def test_the_page_is_that_of_the_description(served):
  page = requests.get(f'{served}docs')
  actual = requests.get(f'{served}openapi.json').json()
  for path, methods in actual['paths'].items():
    for method, request in methods.items():
      assert f'<code>{method.upper()} {path}</code>' in page.text
      assert request['summary'] in page.text
  assert '<script' not in page.text and '://' not in page.text
  assert "default-src 'none'" in page.headers['Content-Security-Policy']
  assert (
    requests.get(f'{served}docs.css')
    .headers['Content-Type']
    .startswith('text/css')
  )


@pytest.mark.skipif(not shutil.which('curl'), reason='curl is not installed')
def test_the_requests_of_the_page_are_answered(served, tmp_path):
  blocks = documented.blocks('docs/serving.md', 'sh')
  texts = [x for x in blocks if 'curl' in x]
  assert len(texts) == 3
  for name in ('4.png', '9.png'):
    (tmp_path / name).write_bytes(PICTURES[int(name[0])])
  text = ''.join(texts).replace('http://127.0.0.1:8000/', served)
  strict = 'set -euo pipefail; curl() { command curl -sS --fail "$@"; }\n'
  out = subprocess.run(
    ['bash', '-c', strict + text],
    cwd=tmp_path,
    check=True,
    capture_output=True,
    text=True,
  ).stdout
  assert out.count('{"results":[') == 4 and '"status":"ready"' in out


def test_the_python_of_the_page_is_answered(
  served, tmp_path, monkeypatch, capsys
):
  (code,) = documented.blocks('docs/serving.md', 'python')
  (tmp_path / '4.png').write_bytes(PICTURES[4])
  monkeypatch.chdir(tmp_path)
  exec(code.replace('http://127.0.0.1:8000/', served), {})
  (result,) = ask(served, PICTURES[4]).json()['results']
  expected = result['predictions'][0]['class']
  assert capsys.readouterr().out == f'{expected}\n'


# The command.


@pytest.mark.slow
@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_the_command_ends_after_what_it_has(digits_run, name):
  words = [sys.executable, '-m', 'vit_jax.serve', '--port=0', '--batch_size=2']
  with subprocess.Popen(
    [*words, f'--from={digits_run}'],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=commands.CPU_ENV,
  ) as process:
    try:
      address = process.stdout.readline().strip()
      assert address.startswith('http://127.0.0.1:'), process.stderr.read()
      image = page_server.picture((8, 8))
      assert len(ask(address, image).json()['results']) == 1
      slow = Slow(address, image)
      wait_for(address, 1)
      process.send_signal(getattr(signal, name))
      host = urllib.parse.urlsplit(address)
      while socket.socket().connect_ex((host.hostname, host.port)) == 0:
        pass  # until it takes no more
      slow.finish()
      check(slow.reply()['results'][0], vit_jax.load(digits_run), image)
      out, log = process.communicate(timeout=PATIENCE_S)
    finally:
      process.kill()
  assert process.returncode == (143 if name == 'SIGTERM' else 0)
  assert out == '' and 'Traceback' not in log
  assert 'compiling batches of 1 images' in log
  assert 'compiled batches of 1, 2 images' in log


@pytest.mark.parametrize(
  'args, line',
  [
    ([], '--from is missing'),
    (['--from=a', 'b'], "unexpected argument 'b'"),
    (['--from=/nowhere', '--port=0'], '/nowhere'),
    (['--from=.', '--host=256.0.0.1'], '--host=256.0.0.1'),
    (['--from=.', '--batch_size=0'], 'batch_size'),
    (['--from=.', '--batch_size=4097'], 'batch_size'),
    (['--from=.', '--max_delay_ms=-1'], 'max_delay_ms'),
    (['--from=.', '--max_queue=0'], 'max_queue'),
    (['--from=.', '--timeout_s=0'], 'timeout_s'),
  ],
)
def test_wrong_flags_are_refused(args, line):
  assert line in commands.mistake(command, *args)


def test_a_run_without_preprocess_is_refused(tmp_path):
  (tmp_path / 'config.json').write_text('{}')
  line = commands.mistake(command, f'--from={tmp_path}', '--port=0')
  assert str(tmp_path) in line


def test_a_port_in_use_is_refused(tmp_path):
  with socket.create_server(('127.0.0.1', 0)) as s:
    port = s.getsockname()[1]
    with pytest.raises(UserError, match=f'--port={port} cannot be .* in use'):
      commands.run(command, f'--from={tmp_path}', f'--port={port}')


def test_a_missing_package_is_asked_for(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'uvicorn', None)
  with pytest.raises(UserError, match=r"uvicorn: run pip install 'vit_jax\[se"):
    commands.run(command, f'--from={tmp_path}')


@pytest.mark.parametrize('kind', ['volumes', 'segmentation', 'sounds'])
def test_other_models_are_refused(tmp_path, kind):
  if kind == 'volumes':
    fields = {'size': (8, 8, 8), 'patch_size': (4, 4, 4), 'channels': 1}
    vit = page_server.load(**fields)
  else:
    vit = page_server.load()
    changes = {'outputs': {'segments': {'feature': 'map'}}}
    if kind == 'sounds':
      changes = {'features': {'image': input_kinds.Audio().to_dict()}}
    preprocess = dataclasses.replace(vit.preprocess, **changes)
    vit = dataclasses.replace(vit, preprocess=preprocess)
  with pytest.raises(UserError, match=kind):
    model_lib.check(vit)
