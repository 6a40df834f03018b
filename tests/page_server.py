"""Small models, and the server that shows them, in a thread of this process."""

import contextlib
import json
import os
import struct
import sys
import threading

import cv2
import jax
import numpy as np
import tiny

from vit_jax import data
from vit_jax import models
from vit_jax import weights
from vit_jax.explore import server as page
from vit_jax.train import loop
from vit_jax.web import address
from vit_jax.web import server

SIZE = (16, 24)  # pixels
CLASSES = ('cat', 'dog', 'a bird with a name that is far too long for one line')
_SIZES = {'hidden_size': 16, 'mlp_dim': 32, 'depth': 3}
SMALL = {
  'ViT': _SIZES | {'num_heads': 2},
  'Mixer': _SIZES | {'tokens_mlp_dim': 8},
  'BiT': {'stages': (1,), 'channels': (32,), 'stem_width': 8, 'num_groups': 4},
}


def load(name='ViT-Ti/4', size=SIZE, channels=3, **overrides):
  """Returns a small model with random parameters."""
  family = name.split('-')[0].split('+')[-1]
  fields = {'num_classes': 7} | SMALL[family] | overrides
  model = models.create_model(name, **fields)
  shapes = models.abstract_params(model, (*size, channels))
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32), shapes
  )
  preprocess = data.Preprocess(
    CLASSES, size, channels, mean=(0.4,), std=(0.3,), resize=20
  )
  return weights.Loaded(model, params, preprocess, size, 'corner')


def picture(size=(30, 40), ending='.png', seed=0):
  """Returns the file of an image of coloured blocks."""
  blocks = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), np.uint8)
  image = cv2.resize(blocks, size[::-1], interpolation=cv2.INTER_LINEAR)
  return cv2.imencode(ending, image)[1].tobytes()


def unpack(answer):
  """Returns what `viewer.packed` packs: JSON with arrays."""
  (length,) = struct.unpack_from('<I', answer)
  head = json.loads(answer[4 : 4 + length])
  at = 4 + length
  for name, kind, shape in head.pop('arrays'):
    dtype = np.dtype(kind).newbyteorder('<')
    assert at % dtype.itemsize == 0  # as browsers want it
    count = int(np.prod(shape))
    head[name] = np.frombuffer(answer, dtype, count, at).reshape(shape)
    at += count * dtype.itemsize
  assert at == len(answer)
  return head


def serving(viewers, hosts=(), samples=()):
  """Yields the address of a page for some viewers."""
  return running(page.application(viewers, hosts, samples))


@contextlib.contextmanager
def running(app, **settings):
  """Yields the address of an application; `settings` are of `make_server`."""
  with address.listen('127.0.0.1', 0) as listener:
    server_object = server.make_server(app, **settings)
    thread = threading.Thread(target=server_object.run, args=([listener],))
    thread.start()
    try:
      yield address.url('127.0.0.1', listener)
    finally:
      server_object.should_exit = True
      thread.join()


@contextlib.contextmanager
def written():
  """Yields the paths of files that are opened to be written meanwhile."""
  paths, is_on = [], True

  def note(event, args):
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    if is_on and event == 'open' and args[2] & writes:
      paths.append(args[0])

  sys.addaudithook(note)  # which stays; so it is turned off
  try:
    yield paths
  finally:
    is_on = False


def pairs_run(path, **options):
  """Trains two towers on digits for a moment; returns what is loaded."""
  config = tiny.config(
    objective__name='contrastive',
    data__split='train[:64]',
    data__captions='templates:a {}.|the number {}.',
    data__tokenizer='words',
    data__text_length=12,
    train__duration='2 steps',
    optim__warmup='0 steps',
    evals__val__split='',
    checkpoint__best='',
  )
  towers = {'dim': 8, 'text_width': 16, 'text_depth': 1, 'text_heads': 2}
  config.objective.options.update(towers | options)
  assert loop.run(config, str(path)).status == 0
  return weights.load(path)
