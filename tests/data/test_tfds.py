import json
import os
import pathlib

import case_files
import commands
import numpy as np
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('tfds')
  assert stand_in.write_tfds(folder) == 'stand_in'
  return folder


def open_tfds(name, data_dir, split='train', **settings) -> data.Source:
  config = config_lib.default()
  config.data.update(name=name, dir=str(data_dir), **settings)
  data.check(config)
  return data.open_source(config, split)


def test_reads_what_was_prepared(data_dir):
  source = open_tfds('stand_in', data_dir)
  assert source.classes == ('wasp', 'ant', 'bee')  # in the dataset's order
  assert source.image_shape is None
  assert len(source) == 9
  examples = [source.read(i) for i in range(9)]
  assert sorted(e.values['label'] for e in examples) == [
    0,
    0,
    0,
    1,
    1,
    1,
    2,
    2,
    2,
  ]
  assert [e.index for e in examples] == list(range(9))
  assert sorted(e.image[:4] for e in examples)[0] == b'\x89PNG'
  jpegs = [e for e in examples if e.image[:2] == b'\xff\xd8']
  assert {e.values['label'] for e in jpegs} == {2}
  assert examples[4].origin == 'stand_in/1.0.0, example 4 of train'
  of_version = open_tfds('stand_in:1.0.0', data_dir)
  assert of_version.fingerprint() == source.fingerprint()


SCRIPT = """
import sys
from vit_jax import config as config_lib, data
config = config_lib.default()
config.data.update(name='stand_in', dir=sys.argv[1], image_size=8)
config.train.batch_size = 9
data.check(config)
source = data.open_source(config, 'train')
batches = data.train_batches(source, config, start_step=0, num_steps=2)
print(sum(len(batch['label']) for batch in batches))
assert 'tensorflow' not in sys.modules
"""


def test_tensorflow_is_not_imported(data_dir):
  result = commands.python('-c', SCRIPT, data_dir)
  assert result.stdout == '18\n', result.stderr


@pytest.mark.parametrize(
  ('_', 'name', 'message'),
  case_files.read(pathlib.Path(__file__).with_name('tfds_names.txt')),
)
def test_errors_say_what_to_do(data_dir, _, name, message):
  with pytest.raises(UserError, match=message) as e:
    open_tfds(name, data_dir)
  assert '\n' not in str(e.value)


def test_an_unknown_name_asks_no_network(data_dir, monkeypatch):
  """TFDS would try again for half a minute, and say so in 134 lines."""

  def refuse(*args, **kwargs):
    raise AssertionError(f'a connection: {args}')

  monkeypatch.setattr('socket.create_connection', refuse)
  monkeypatch.setattr('socket.getaddrinfo', refuse)
  for name in ('huggingface:mnist', 'imagenet', 'no_such_thing'):
    with pytest.raises(UserError, match=r'^config\.data\.name[^\n]*$'):
      open_tfds(name, data_dir)


def test_unknown_name_that_is_a_folder(data_dir, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  os.mkdir('photos')
  with pytest.raises(UserError, match='did you mean folder:photos'):
    open_tfds('photos', data_dir)


def test_unknown_split(data_dir):
  with pytest.raises(UserError, match="stand_in has no split 'val': choose"):
    open_tfds('stand_in', data_dir, 'val')


def test_other_formats_are_refused(tmp_path):
  stand_in.write_tfds(tmp_path)
  path = tmp_path / 'stand_in' / '1.0.0' / 'dataset_info.json'
  info = json.loads(path.read_text())
  path.write_text(json.dumps(info | {'fileFormat': 'tfrecord'}))
  with pytest.raises(UserError, match='as tfrecord, which has no random acc'):
    open_tfds('stand_in', tmp_path)


def test_datasets_of_other_kinds_are_refused(tmp_path):
  import tensorflow_datasets as tfds

  def feature(name: str) -> tfds.features.FeatureConnector:
    if 'label' in name:
      return tfds.features.ClassLabel(num_classes=2)
    return tfds.features.Image(shape=(4, 5, 3))

  def write(*keys: str) -> str:
    image = stand_in.png(np.zeros((4, 5, 3), np.uint8))
    example = {k: -1 if 'label' in k else image for k in keys}
    features = {k: feature(k) for k in keys}
    name = f'odd_{"_".join(keys)}'
    return stand_in.write_dataset(tmp_path, name, features, train=[example])

  with pytest.raises(UserError, match='it has no features of type ClassLabel'):
    open_tfds(write('image'), tmp_path)
  with pytest.raises(UserError, match='it has 2 features of type Image, among'):
    open_tfds(write('left', 'right', 'label'), tmp_path)
  source = open_tfds(write('picture', 'label', 'coarse_label'), tmp_path)
  assert source.image_shape == (4, 5)
  assert source.classes == ('0', '1')
  with pytest.raises(UserError, match='example 0 of train, has no label'):
    source.read(0)


def test_captions_of_coco(tmp_path):
  """A sequence of dicts with a text, as coco_captions has; one is drawn."""
  import tensorflow_datasets as tfds

  texts = [[f'the {i}th of {n}' for i in range(n)] for n in (5, 1, 3, 2)]

  features = {
    'image': tfds.features.Image(shape=(None, None, 3)),
    'captions': tfds.features.Sequence(
      {'id': np.int64, 'text': tfds.features.Text()}
    ),
  }
  examples = [
    {
      'image': stand_in.png(stand_in.pixels(i, 8, 8)),
      'captions': [{'id': k, 'text': x} for k, x in enumerate(captions)],
    }
    for i, captions in enumerate(texts)
  ]
  stand_in.write_dataset(tmp_path, 'pairs', features, train=examples)
  settings = {'tokenizer': 'words', 'text_length': 8, 'image_size': 8}
  config = config_lib.default()
  config.data.update(name='pairs', dir=str(tmp_path), **settings)
  config.train.batch_size = 4
  source = data.open_source(config, 'train')
  assert set(source.features) == {'image', 'text'}
  actual = [source.captions(i) for i in range(4)]
  assert sorted(map(list, actual)) == sorted(texts)

  def drawn():
    batches = data.train_batches(source, config, start_step=0, num_steps=9)
    return [batch['text'] for batch in batches]

  first, again = drawn(), drawn()
  np.testing.assert_array_equal(first, again)
  decode = source.features['text'].decode
  seen = {decode(row) for batch in first for row in batch}
  assert seen <= {x for each in texts for x in each} and len(seen) > 4
