"""What holds for every kind of source, and what its first batches are.

A change of the batches or of the fingerprint means that runs begun before it
cannot be resumed, or see other examples. Batches of digits, folders and TFDS
are in host/test_batches.py.
"""

import hashlib
import itertools
import json

import cloudpickle
import jax
import numpy as np
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import kinds
from vit_jax.data import made
from vit_jax.data import splits
from vit_jax.data.device import views
from vit_jax.data.host import clips

# By source: its fingerprint, and digests of batches of training and evaluation.
FROZEN = {
  'csv': ('bb53db0ed8e69004', '8f1bcd0e0761b57e', 'b60650b7c3da324d'),
  'captions': ('50370bb884f885bd', 'ba9363c0d3924810', '683c9c288e74aee9'),
  'parquet': ('95242bcff64c1364', '60cc670e421c0552', 'fde9bba3b1dcff7e'),
  'hf': ('41fbebf9ece8c6ce', '67a40ee8d25157aa', '1d425d0b153207b1'),
  'tar': ('9d8f092632c775f4', '63dbf441f0ff53b8', '6d34a58e16dd8bef'),
  'pairs': ('9aeb221bd329fc2b', 'cfd24f8ea9984868', '0e8aad41d13e9372'),
  'scans': ('dff34496f5f69e35', 'efb1c33eae015620', '83c5d0de4c363d40'),
  'video': ('8459d08741363e00', 'ec8cbf99266e87db', '00c3db506ab63d3b'),
  'tones': ('eb1d505647f28670', 'ef90f6cb1ab4b296', 'b16be7ed38579384'),
  'users_own': ('8b716ab968b94057', 'f1e91225ba275322', '889167a4838d5000'),
}
COUNT = 9


def png(i):
  return stand_in.png(stand_in.pixels(i, 20 + i % 4, 24))


def mask(i):
  return stand_in.png(stand_in.pixels(i, 20 + i % 4, 24)[..., 0] // 128)


def write(path, content):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(content)


def csv(root):
  lines = ['path,label,tags,weight,caption']
  for i in range(COUNT):
    write(root / 'images' / f'{i}.png', png(i))
    lines.append(f'images/{i}.png,{"xyz"[i % 3]},a|b,{i / 2},text {i}')
  write(root / 'x.csv', '\n'.join(lines).encode())
  return {'name': f'table:{root}/x.csv'}


def captions(root):
  csv(root)
  templates = 'templates:a {}.|the {}.'
  return {
    'name': f'table:{root}/x.csv',
    'tokenizer': 'words',
    'captions': templates,
  }


def parquet(root):
  pa = pytest.importorskip('pyarrow')
  parquet = pytest.importorskip('pyarrow.parquet')
  columns = {
    'image': [png(i) for i in range(COUNT)],
    'tags': [['a', 'b'][: i % 3] for i in range(COUNT)],
    'text': [[f'text {i}', f'more {i}'] for i in range(COUNT)],
  }
  parquet.write_table(pa.table(columns), root / 'x.parquet')
  return {'name': f'table:{root}/x.parquet', 'tokenizer': 'words'}


def hf(root):
  datasets = pytest.importorskip('datasets')
  types = {
    'image': datasets.Image(),
    'label': datasets.ClassLabel(names=['cow', 'ant', 'bee']),
  }
  columns = {
    'image': [{'bytes': png(i), 'path': None} for i in range(COUNT)],
    'label': [i % 3 for i in range(COUNT)],
  }
  rows = datasets.Dataset.from_dict(columns, datasets.Features(types))
  datasets.DatasetDict({'train': rows}).save_to_disk(str(root / 'x'))
  return {'name': f'hf:{root}/x'}


def tar(root):
  samples = {
    f'{i:04}': {
      'png': png(i),
      'seg.png': mask(i),
      'cls': b'%d' % (i % 3),
      'txt': f'text {i}'.encode(),
      'json': json.dumps({'width': i}).encode(),
    }
    for i in range(COUNT)
  }
  stand_in.write_shard(root / 'a.tar', samples)
  return {
    'name': f'tar:{root}/a.tar',
    'tokenizer': 'words',
    'columns.numbers': ('width',),
    'columns.label': 'cls',
    'columns.map': 'seg.png',
    'map.classes': ('a', 'b'),
  }


def pairs(root):
  write(root / 'classes.txt', b'a\nb\n')
  for i in range(COUNT):
    write(root / 'images' / f'{i}.png', png(i))
    write(root / 'masks' / f'{i}.png', mask(i))
  return {'name': f'folder:{root}'}


def scans(root):
  write(root / 'classes.txt', b'a\nb\n')
  for i in range(COUNT):
    values = np.indices((5 + i % 3, 6, 7)).sum(axis=0).astype(np.uint8)
    for kind, x in (('images', 9 * values), ('masks', values % 2)):
      (root / kind).mkdir(exist_ok=True)
      np.save(root / kind / f'{i}.npy', x)
  return {'name': f'folder:{root}', 'channels': 1, 'image_size': (4, 4, 4)}


def video(root):
  for label, frame in itertools.product('ab', range(6)):
    image = stand_in.png(stand_in.pixels(frame + ord(label), 20, 24))
    write(root / 'train' / label / 'x' / f'{frame}.png', image)
  return {'name': f'video:{root}', 'image_size': (4, 16, 16)}


def tones(root):
  del root
  return {
    'name': 'tones',
    'image_size': (64, 32),
    'channels': 1,
    'bits': 16,
    'split': 'train[:20]',
  }


class UsersSource(base.Source):
  """A class of a user, with arrays of different sizes."""

  def __init__(self, config, split):
    del config
    self.features = {
      'image': features.Image(),
      'label': features.Label(('a', 'b')),
    }
    self._selection = splits.Selection(split, {'train': COUNT}, 'mine')

  def __len__(self):
    return len(self._selection)

  def read(self, position):
    _, row, index = self._selection.locate(position)
    image = stand_in.pixels(row, 20 + row, 24)
    return base.Example({'image': image, 'label': row % 2}, index, 'mine')

  def fingerprint(self):
    return base.digest(map(str, self._selection.ranges))


def users_own(root):
  del root
  return {'name': f'{__name__}:UsersSource'}


def folder(root):
  return {'name': f'folder:{stand_in.write_folder(root, train=3)}'}


def tfds(root):
  return {'name': stand_in.write_tfds(root), 'dir': str(root)}


def digits(root):
  del root
  return {'name': 'digits', 'channels': 1, 'image_size': 6}


def scenes(root):
  del root
  return {'name': 'scenes'}


def volumes(root):
  del root
  return {'name': 'volumes', 'channels': 1, 'image_size': (16, 16, 16)}


def moving_digits(root):
  del root
  return {'name': 'moving_digits', 'channels': 1, 'image_size': (4, 24, 24)}


KINDS = (csv, captions, parquet, hf, tar, pairs, scans, video, tones, users_own)


def digest(batches):
  result = hashlib.sha256()
  for batch in batches:
    for key, x in sorted(batch.items()):
      result.update(f'{key} {x.dtype} {x.shape}'.encode() + x.tobytes())
  return result.hexdigest()[:16]


def make_config(root, kind):
  config = config_lib.default()
  config.train.batch_size, config.seed = 4, 3
  config.data.update(image_size=(16, 16), split='train')
  for key, value in kind(root).items():
    config_lib.set_value(config, f'data.{key}', value)
  data.check(config)
  return config


def facts(root, kind) -> tuple[str, str, str]:
  """Returns the fingerprint of a source, and the digests of its batches."""
  config = make_config(root, kind)
  source = data.open_split(config)
  train = [*data.train_batches(source, config, start_step=0, num_steps=3)]
  evaluation = [*data.eval_batches(source, config, batch_size=4)]
  if kind is tones:  # Fourier transforms round as their library does
    train, evaluation = (
      [{'index': x['index']} for x in batches]
      for batches in (train, evaluation)
    )
  return source.fingerprint(), digest(train), digest(evaluation)


@pytest.mark.parametrize('kind', KINDS)
def test_batches_are_those_of_before(tmp_path, kind):
  assert facts(tmp_path, kind) == FROZEN[kind.__name__]


# Numbers of examples for training.
MADE_SIZES = {scenes: 4_000, volumes: 400, moving_digits: 8_000, tones: 6_000}
ALL_KINDS = dict.fromkeys((*KINDS, *MADE_SIZES, folder, tfds, digits))


def assert_equal(example, second):
  assert example.index == second.index and example.origin == second.origin
  assert example.values.keys() == second.values.keys()
  for name in example.values:
    value, second_value = (
      x.read_all('') if isinstance(x, clips.Frames) else x
      for x in (example.values[name], second.values[name])
    )
    np.testing.assert_array_equal(value, second_value)


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_slices_and_copies_have_the_examples_of_a_split(tmp_path, kind):
  config = make_config(tmp_path, kind)
  count = min(len(data.open_source(config, 'train')), COUNT)
  middle = 2 * count // 3
  slices = f'[:{count}]', f'[:{middle}]', f'[{middle}:{count}]'
  whole, *parts = (data.open_source(config, f'train{x}') for x in slices)
  assert len(parts[0]) == middle > 0 and len(parts[1]) == count - middle > 0
  places = [(part, i) for part in parts for i in range(len(part))]
  copy = cloudpickle.loads(cloudpickle.dumps(whole))  # as workers get it
  for position, (part, i) in enumerate(places):
    example = whole.read(position)
    assert example.index == position
    assert part.id(i) == whole.id(position)
    assert part.file(i) == whole.file(position)
    assert_equal(part.read(i), example)
    assert_equal(copy.read(position), example)
    if 'text' in example.values:
      assert list(whole.captions(position)) == list(example.values['text'])
  assert len({whole.id(i) for i in range(count)}) == count
  for name, target in features.targets(whole.features).items():
    column = parts[1].column(name)
    for i, encoded in enumerate(column):
      value = whole.read(middle + i).values[name]
      np.testing.assert_array_equal(target.encode(value, ''), encoded)
    np.testing.assert_array_equal(whole.column(name)[middle:], column)
  for feature in whole.features.values():
    stored = json.loads(json.dumps(feature.to_dict()))
    assert kinds.from_dict(stored) == feature
  again = data.open_source(config, 'train' + slices[1])
  assert again.fingerprint() == parts[0].fingerprint()
  assert len({x.fingerprint() for x in (whole, *parts)}) == 3


@pytest.mark.parametrize('kind', MADE_SIZES)
def test_made_examples_of_test_are_others(tmp_path, kind):
  config = make_config(tmp_path, kind)
  train, test, val = (
    data.open_source(config, x) for x in ('train', 'test', 'val')
  )
  assert isinstance(train, made.MadeSource) and len(train) == MADE_SIZES[kind]
  assert (train.read(0).image != test.read(0).image).any()
  assert train.id(7) == 'train/7' and test.id(7) == 'test/7'
  assert val.fingerprint() == test.fingerprint() != train.fingerprint()


# Changes of each kind whose examples the device prepares.
AUGMENTED = {
  digits: {'policy': 'randaugment(2, 15)', 'mixup': 0.4, 'erase': 'erase(0.5)'},
  scenes: {'policy': '3augment', 'jitter': 'jitter(0.4, 0.4, 0.4, 0.1)'},
  volumes: {
    f'volume.{x}': 0.5 for x in ('flip', 'turn', 'foreground', 'shift')
  },
  moving_digits: {'mixup': 0.4},
  tones: {'mixup': 0.4, 'audio.time_mask': 10, 'audio.frequency_mask': 6},
}


@pytest.mark.parametrize('kind', AUGMENTED)
def test_a_draw_depends_on_its_row_alone(tmp_path, kind):
  config = make_config(tmp_path, kind)
  config.model.num_classes = 10
  config.data.crop = 'random_resized'
  for key, value in AUGMENTED[kind].items():
    config_lib.set_value(config, f'augment.{key}', value)
  source = data.open_source(config, 'train[:6]')
  batch = next(data.eval_batches(source, config, batch_size=6))
  transform = jax.jit(views.train_transform(config, source.features))
  whole = transform(batch, stand_in.rows(*range(6)))
  part = transform({k: x[2:4] for k, x in batch.items()}, stand_in.rows(2, 3))
  for name in source.features:
    np.testing.assert_allclose(whole[name][2:4], part[name], atol=1e-5)
  again = transform(batch, stand_in.rows(*range(6), key=1))
  assert (np.asarray(again['image']) != np.asarray(whole['image'])).any()
