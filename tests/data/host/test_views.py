"""An image of which a step has several crops is read and decoded once."""

import collections
import io
from typing import ClassVar

import numpy as np
from PIL import Image
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data.host import batches as batches_lib
from vit_jax.data.host import decode
from vit_jax.data.host import geometry
from vit_jax.data.host import transforms

SIZE = 12


def jpeg(number: int) -> bytes:
  """Large enough to be decoded at an eighth, a quarter, a half or whole."""
  file = io.BytesIO()
  image = Image.fromarray(stand_in.pixels(number, 20, 30))
  image.resize((300 + number, 200)).save(file, 'JPEG')
  return file.getvalue()


class Counted(base.Source):
  """Files of some kind, which count how often they are read."""

  features: ClassVar = {
    'image': features.Image(),
    'label': features.Label(('a',)),
  }

  def __init__(self, kind):
    self.kind = kind
    make = {'jpeg': jpeg, 'png': lambda i: stand_in.png(make_pixels(i))}[kind]
    self.files = [make(i) for i in range(SIZE)]
    self.reads = collections.Counter()

  def __len__(self):
    return SIZE

  def read(self, position):
    self.reads[position] += 1
    values = {'image': self.files[position], 'label': 0}
    return base.Example(values, position, f'file {position}')

  def fingerprint(self):
    return ''


def make_pixels(number):
  return stand_in.pixels(number, 30 + number, 50)


@pytest.fixture(params=['jpeg', 'png'])
def source(request):
  return Counted(request.param)


@pytest.fixture
def decoded(monkeypatch):
  """Counts how often each file is decoded."""
  counter = collections.Counter()

  def count(image, *args, decode=decode.decode, **kwargs):
    counter[kwargs['origin']] += 1
    return decode(image, *args, **kwargs)

  monkeypatch.setattr(decode, 'decode', count)
  return counter


def make_config(**augment):
  result = config_lib.default()
  result.seed = 5
  result.data.image_size = 24
  result.train.batch_size = 6
  result.augment.update(augment)
  return result


def crop(side, scale):
  return geometry.Crop(
    'random_resized', (side, side), None, scale, (0.75, 1.33), flip=True
  )


VIEWS = {
  'global': geometry.View(crop(32, (0.4, 1.0)), 2),
  'whole': geometry.View(geometry.Crop('center', (16, 16))),
  'local': geometry.View(crop(8, (0.05, 0.4)), 4),
}


def train(source, config, views=None, **host):
  return list(
    data.train_batches(
      source, config, start_step=0, num_steps=2, views=views, **host
    )
  )


def test_views_are_read_and_decoded_once(source, decoded):
  batches = train(source, make_config(), VIEWS)
  assert set(source.reads.values()) == {1} and len(source.reads) == SIZE
  assert set(decoded.values()) == {1} and len(decoded) == SIZE
  for batch in batches:
    assert batch['global'].shape == (6, 2, 32, 32, 3)
    assert batch['whole'].shape == (6, 16, 16, 3)
    assert batch['local'].shape == (6, 4, 8, 8, 3)


def test_views_depend_on_seed_and_draw_alone(source):
  """And each has a key of its own, of which the first is a single crop's."""
  config = make_config()
  for step, batch in enumerate(train(source, config, VIEWS)):
    for row, position in enumerate(batch['index'].tolist()):
      image = transforms.StoredImage(source.files[position], 3)
      key = config.seed, batches_lib._CROP, 6 * step + row
      keys = [key, *((*key, i) for i in range(1, 7))]
      crops = [x.crop for x in VIEWS.values() for _ in range(x.count or 1)]
      rngs = map(np.random.default_rng, keys)
      expected = image.crops(list(zip(crops, rngs, strict=True)))
      actual = [
        *batch['global'][row],
        batch['whole'][row],
        *batch['local'][row],
      ]
      for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)
  parts = [
    train(source, config, VIEWS, host_index=i, host_count=3) for i in range(3)
  ]
  for whole, *hosts in zip(train(source, config, VIEWS), *parts, strict=True):
    for name, x in whole.items():
      joined = np.concatenate([host[name] for host in hosts])
      np.testing.assert_array_equal(x, joined)


@pytest.mark.parametrize('antialias', [False, True])
def test_repeats_are_read_once_and_cropped_as_alone(source, decoded, antialias):
  """To the bit, whatever fraction of a JPEG's size each crop asks for."""
  config = make_config(repeats=6)
  config.data.antialias = antialias
  batches = train(source, config)
  assert list(source.reads.values()) == [1, 1]
  if not (antialias and source.kind == 'jpeg'):  # which is reduced by the crop
    assert list(decoded.values()) == [1, 1]
  for step, batch in enumerate(batches):
    for row, position in enumerate(batch['index'].tolist()):
      rng = np.random.default_rng(
        (config.seed, batches_lib._CROP, 6 * step + row)
      )
      expected = transforms.transform(
        source.files[position], 3, geometry.train_crop(config), rng
      )
      np.testing.assert_array_equal(batch['image'][row], expected)
