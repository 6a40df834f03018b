"""What the first batches and the fingerprint of each kind of source are.

A change means that runs begun before it cannot be resumed, or see other
examples. Digits, folders and TFDS are in host/test_batches.py.
"""

import hashlib
import itertools
import json

import numpy as np
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import splits

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
  'own': ('8b716ab968b94057', 'f1e91225ba275322', '889167a4838d5000'),
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


class Mine(base.Source):
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


def own(root):
  del root
  return {'name': f'{__name__}:Mine'}


KINDS = (csv, captions, parquet, hf, tar, pairs, scans, video, tones, own)


def digest(batches):
  result = hashlib.sha256()
  for batch in batches:
    for key, x in sorted(batch.items()):
      result.update(f'{key} {x.dtype} {x.shape}'.encode() + x.tobytes())
  return result.hexdigest()[:16]


def facts(root, kind) -> tuple[str, str, str]:
  """Returns the fingerprint of a source, and the digests of its batches."""
  config = config_lib.default()
  config.train.batch_size, config.seed = 4, 3
  config.data.update(image_size=(16, 16), split='train')
  for key, value in kind(root).items():
    config_lib.set_value(config, f'data.{key}', value)
  data.check(config)
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
