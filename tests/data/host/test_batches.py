"""Batches depend on the seed and the step alone."""

import contextlib
import gc
import hashlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import types

import grain
import numpy as np
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data.host import batches as batches_lib
from vit_jax.data.host import prefetch

# Of the first batches of each source. A change means that runs with the new
# packages differ from those before: say so where versions are described.
DIGESTS = {
  'digits train': '2e23ab1b104a4eae',
  'digits eval': '7139964d55a39250',
  'folder train': '91146a5977d98cbd',
  'folder eval': 'adb38d1a810eb506',
  'tfds train': 'e2fa94a4ce20df66',
  'tfds eval': '20d793582d5961f5',
}


@pytest.fixture(scope='module')
def configs(tmp_path_factory):
  """A config for each source; images differ in size in all but 'digits'."""
  root = tmp_path_factory.mktemp('data')
  result = {}
  for name in ('digits', 'folder', 'tfds'):
    config = config_lib.default()
    config.train.batch_size = 12
    config.data.image_size = (16, 20)
    config.seed = 3
    result[name] = config
  result['digits'].data.update(name='digits', image_size=8, channels=1)
  folder = stand_in.write_folder(root / 'folder', train=7, val=5)
  result['folder'].data.name = f'folder:{folder}'
  result['tfds'].data.name = stand_in.write_tfds(root / 'tfds')
  result['tfds'].data.dir = str(root / 'tfds')
  return result


@pytest.fixture(params=['digits', 'folder', 'tfds'])
def config(request, configs):
  return configs[request.param]


def train(config, start=0, stop=5, split='train', **hosts) -> list[data.Batch]:
  source = data.open_source(config, split)
  return list(
    data.train_batches(
      source, config, start_step=start, num_steps=stop, **hosts
    )
  )


def evaluate(config, split='train', batch_size=16, **hosts) -> list[data.Batch]:
  source = data.open_source(config, split)
  return list(data.eval_batches(source, config, batch_size=batch_size, **hosts))


def assert_same(a: list[data.Batch], b: list[data.Batch]) -> None:
  assert len(a) == len(b)
  for x, y in zip(a, b, strict=True):
    assert x.keys() == y.keys()
    for key in x:
      np.testing.assert_array_equal(x[key], y[key], err_msg=key)


def joined(*hosts: list[data.Batch]) -> list[data.Batch]:
  """The global batches of which these are parts, in order."""
  return [
    {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    for parts in zip(*hosts, strict=True)
  ]


def digest(batches: list[data.Batch]) -> str:
  result = hashlib.sha256()
  for batch in batches:
    named = {'mask' if key == 'valid' else key: x for key, x in batch.items()}
    for key, x in sorted(named.items()):
      result.update(f'{key} {x.dtype} {x.shape}'.encode() + x.tobytes())
  return result.hexdigest()[:16]


def test_contract(config):
  for batch in [*train(config, stop=2), *evaluate(config)]:
    size = len(batch['valid'])
    height, width = config_lib.pair(config.data.image_size, '')
    channels = config.data.channels
    assert {key: (x.dtype, x.shape) for key, x in batch.items()} == {
      'image': (np.uint8, (size, height, width, channels)),
      'label': (np.int32, (size,)),
      'valid': (np.bool_, (size,)),
      'index': (np.int32, (size,)),
    }


def test_digests(configs):
  actual = {
    f'{name} {what}': digest(make(config)[:2])
    for name, config in configs.items()
    for what, make in (('train', train), ('eval', evaluate))
  }
  assert actual == DIGESTS


def test_batch_can_be_made_alone(config):
  batches = train(config, stop=6)
  assert_same(train(config, start=4, stop=6), batches[4:])
  assert_same(train(config, start=5, stop=6), batches[5:])
  assert train(config, start=6, stop=6) == []


def test_hosts_make_together_what_one_makes(config):
  for make in (train, evaluate):
    for count in (2, 4):
      parts = [
        make(config, host_index=i, host_count=count) for i in range(count)
      ]
      assert_same(joined(*parts), make(config))


def repeated(config, repeats, batch_size=12):
  config = config.copy_and_resolve_references()
  config.augment.repeats = repeats
  config.train.batch_size = batch_size
  return config


@pytest.mark.parametrize('repeats, distinct', [(3, 4), (5, 3), (12, 1)])
def test_repeats(config, repeats, distinct):
  """A batch has few images, each several times, in the order of all."""
  plain = train(config, stop=5)
  batches = train(repeated(config, repeats), stop=5)
  for key in ('index', 'label'):
    order = np.concatenate([batch[key] for batch in plain])
    for step, batch in enumerate(batches):
      turns = step * distinct + np.arange(12) % distinct
      np.testing.assert_array_equal(batch[key], order[turns])
  assert_same(train(repeated(config, repeats), 2, 4), batches[2:4])


def test_repeats_are_cropped_each_in_its_own_way(configs):
  config = repeated(configs['folder'], 3)
  (batch,) = train(config, stop=1)
  copies = batch['image'].reshape(3, 4, -1)
  for a, b in itertools.combinations(copies, 2):
    assert (a != b).any(axis=1).all()
  # The draw keys the crop: the first image of all has that of draw 0.
  np.testing.assert_array_equal(
    batch['image'][:4], train(configs['folder'], stop=1)[0]['image'][:4]
  )
  parts = [train(config, stop=1, host_index=i, host_count=4) for i in range(4)]
  assert_same(joined(*parts), [batch])
  config.data.num_workers = 2
  assert_same(train(config, stop=1), [batch])


@pytest.mark.parametrize('repeats', [1, 3])
def test_rows_of_a_batch_can_be_made_alone(config, repeats):
  config = repeated(config, repeats)
  source = data.open_source(config, 'train')
  rows = batches_lib.train_rows(source, config, 1, range(2, 7))
  batch = train(config, stop=2)[1]
  assert_same([rows], [{key: x[2:7] for key, x in batch.items()}])


def test_batch_must_divide_into_hosts(configs):
  with pytest.raises(UserError, match='batch of 12 does not divide into 5'):
    train(configs['digits'], host_index=0, host_count=5)


def test_each_epoch_is_another_permutation(config):
  size = len(data.open_source(config, 'train'))
  steps = -(-2 * size // 12)
  batches = train(config, stop=steps)
  indices = np.concatenate([b['index'] for b in batches])
  first, second = indices[:size], indices[size : 2 * size]
  np.testing.assert_array_equal(np.sort(first), np.arange(size))
  np.testing.assert_array_equal(np.sort(second), np.arange(size))
  assert (first != second).any()
  assert (first != np.arange(size)).any()
  assert all(b['valid'].all() for b in batches)


def test_seed_changes_order_and_crops(configs):
  config = configs['folder'].copy_and_resolve_references()
  before = train(config, stop=1)[0]
  config.seed = 4
  after = train(config, stop=1)[0]
  assert (before['index'] != after['index']).any()
  # The same example in two epochs is cropped in two ways.
  batches = train(config, stop=4)
  images = {}
  for batch in batches:
    for index, image in zip(batch['index'], batch['image'], strict=True):
      images.setdefault(int(index), []).append(image)
  twice = [crops for crops in images.values() if len(crops) > 1]
  assert twice and all((a != b).any() for a, b, *_ in twice)


def test_labels_are_those_of_the_images(configs):
  config = configs['folder']
  source = data.open_source(config, 'train')
  examples = [source.read(i) for i in range(len(source))]
  label_of = {e.index: e.values['label'] for e in examples}
  for batch in [*train(config), *evaluate(config)]:
    for index, label in zip(batch['index'], batch['label'], strict=True):
      assert label == label_of.get(int(index), 0)


@pytest.mark.parametrize('hosts', [1, 2, 4])
@pytest.mark.parametrize('split', ['train', 'train[80%:]', 'train[:5]'])
def test_evaluation_counts_each_example_once(configs, hosts, split):
  config = configs['digits']  # 1,797 examples, and 128 do not divide them
  parts = [
    evaluate(config, split, 128, host_index=i, host_count=hosts)
    for i in range(hosts)
  ]
  batches = joined(*parts)
  size = len(data.open_source(config, split))
  start = 1797 - size if split == 'train[80%:]' else 0
  assert len(batches) == -(-size // 128)
  index = np.concatenate([b['index'] for b in batches])
  mask = np.concatenate([b['valid'] for b in batches])
  np.testing.assert_array_equal(index[mask], start + np.arange(size))
  assert (index[~mask] == -1).all()
  assert not np.concatenate([b['image'] for b in batches])[~mask].any()


def test_source_size_hands_over_whole_images(configs, tmp_path):
  config = configs['folder'].copy_and_resolve_references()
  config.data.source_size = (20, 24)
  with pytest.raises(
    UserError, match=r'png has \(height, width\) \(\d+, \d+\), no'
  ):
    train(config)
  folder = tmp_path / 'a'
  folder.mkdir()
  stored = [stand_in.pixels(i, 20, 24) for i in range(3)]
  for i, image in enumerate(stored):
    (folder / f'{i}.png').write_bytes(stand_in.png(image))
  config.data.name = f'folder:{tmp_path}'
  source = data.open_source(config, 'train')
  assert source.image_shape == (20, 24)
  batch = next(data.eval_batches(source, config, batch_size=3))
  where = [source.read(i).origin for i in range(3)]
  for path, image in zip(where, batch['image'], strict=True):
    number = int(path.removesuffix('.png')[-1])
    np.testing.assert_array_equal(image, stored[number])


@pytest.mark.slow
def test_workers_make_the_same_batches_and_leave_nothing(configs):
  config = configs['folder'].copy_and_resolve_references()
  config.data.image_size = (200, 200)  # large enough for shared memory
  expected = train(config, stop=5)
  for workers in (1, 3):
    config.data.num_workers = workers
    assert_same(train(config, stop=5), expected)
  config.data.num_workers = 0
  config.data.num_threads = 3
  assert_same(train(config, stop=5), expected)


def test_workers_need_no_shared_memory(configs, monkeypatch, warnings_logged):
  """As in a container, whose /dev/shm has 64 MB."""
  config = configs['folder'].copy_and_resolve_references()
  config.data.image_size = (400, 400)  # large enough for shared memory
  expected = train(config, stop=2)
  status = os.statvfs('/dev/shm')

  def full(path):
    free = {'f_bavail': 64, 'f_frsize': 2**10}
    return types.SimpleNamespace(**free) if path == '/dev/shm' else status

  monkeypatch.setattr(os, 'statvfs', full)
  config.data.num_workers = 1
  names = set(os.listdir('/dev/shm'))
  source = data.open_source(config, 'train')
  with contextlib.closing(
    data.train_batches(source, config, start_step=0, num_steps=2)
  ) as batches:
    actual = [next(batches)]
    assert not {
      x for x in set(os.listdir('/dev/shm')) - names if x.startswith('psm_')
    }
    actual += batches
  assert_same(actual, expected)
  (line,) = warnings_logged
  assert '/dev/shm has 0 MB free' in line and '--shm-size' in line


def test_a_worker_that_a_signal_ends_is_told():
  batches = prefetch.Batches(
    lambda _: os.kill(os.getpid(), signal.SIGBUS),
    *(range(2), grain.ReadOptions(0, 0), 1),
  )
  message = r'^SIGBUS .*/dev/shm is full: .*--shm-size.*num_workers=0'
  with pytest.raises(UserError, match=message):
    next(batches)


@pytest.mark.parametrize('workers', [0, 2])
def test_damaged_image_is_named_when_its_batch_is_due(tmp_path, workers):
  config = config_lib.default()
  config.data.name = f'folder:{stand_in.write_folder(tmp_path, train=4)}'
  config.data.num_workers = workers
  config.data.image_size = 8
  config.train.batch_size = 2
  source = data.open_source(config, 'train')
  bad = source.read(7).origin
  with open(bad, 'r+b') as f:
    f.truncate(60)
  batches = data.eval_batches(source, config, batch_size=2)
  assert len([next(batches) for _ in range(3)]) == 3
  with pytest.raises(UserError) as e:
    next(batches)
  assert str(e.value).startswith(f'{bad} is damaged') and '\n' not in str(
    e.value
  )
  assert list(batches) == []  # it is closed


def test_close_stops_the_threads(configs):
  source = data.open_source(configs['folder'], 'train')
  before = set(threading.enumerate())
  batches = data.train_batches(
    source, configs['folder'], start_step=0, num_steps=1000
  )
  next(batches)
  batches.close()
  batches.close()
  assert list(batches) == []
  gc.collect()
  for thread in set(threading.enumerate()) - before:
    thread.join(timeout=10)
    assert not thread.is_alive()


WORKERS = """
import os, signal, sys
from vit_jax import config as config_lib, data

if __name__ == '__main__':
  config = config_lib.default()
  config.data.update(name=sys.argv[1], image_size=8, num_workers=1)
  config.train.batch_size = 2
  source = data.open_source(config, 'train')
  batches = data.train_batches(source, config, start_step=0, num_steps=10**6)
  next(batches)
  os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_parent_that_is_killed(configs, tmp_path):
  """Also: flags need not be parsed."""
  script = tmp_path / 'main.py'
  script.write_text(WORKERS)
  command = [sys.executable, str(script), configs['folder'].data.name]
  # Reading ends when all who could write have ended: the worker, too.
  result = subprocess.run(
    command,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    timeout=60,
    text=True,
    check=False,
  )
  assert result.returncode == -9, result.stdout


def train_labels(config, **kwargs):
  """Returns the labels of some batches, [steps * B]."""
  batches = train(config, **kwargs)
  return np.concatenate([batch['label'] for batch in batches])


@pytest.fixture
def rare(tmp_path):
  """A folder with 40, 8 and 2 images of its classes, and its config."""
  for name, count in (('a', 40), ('b', 8), ('c', 2)):
    folder = tmp_path / 'images' / 'train' / name
    folder.mkdir(parents=True)
    for i in range(count):
      (folder / f'{i}.png').write_bytes(stand_in.png(stand_in.pixels(i, 9, 8)))
  config = config_lib.default()
  config.data.name = f'folder:{tmp_path / "images"}'
  config.data.image_size = 8
  config.train.batch_size = 10
  return config


@pytest.mark.parametrize(
  'balance, expected',
  [
    (0.0, [40, 8, 2]),
    # By n^(1 - b): square roots, and all alike. Rounded down or up.
    (0.5, [50 * 40**0.5, 50 * 8**0.5, 50 * 2**0.5]),
    (1.0, [50 / 3] * 3),
    ('classes', [50 / 3] * 3),
  ],
)
def test_classes_are_balanced_in_each_epoch(rare, balance, expected):
  """Each has its share of the N draws, and all its images in turn."""
  rare.data.balance = balance
  if balance == 0.5:
    expected = np.array(expected) / sum(n**0.5 for n in (40, 8, 2))
  for epoch in range(3):
    batches = train(rare, start=5 * epoch, stop=5 * epoch + 5)
    labels, index = (
      np.concatenate([batch[key] for batch in batches])
      for key in ('label', 'index')
    )
    counts = np.bincount(labels, minlength=3)
    assert counts.sum() == 50
    assert (abs(counts - expected) < 1).all()
    for label, size in enumerate((40, 8, 2)):
      times = np.bincount(index[labels == label])
      times = times[times > 0]
      assert len(times) == min(size, counts[label])
      assert times.max() - times.min() <= 1


def test_balance_depends_on_seed_and_step_alone(rare):
  """Not on hosts, repeats or where it begins; epochs differ, and seeds."""
  rare.data.balance = 0.7
  whole = train(rare, stop=12)
  assert_same(train(rare, start=4, stop=12), whole[4:])
  hosts = [train(rare, stop=12, host_index=i, host_count=2) for i in range(2)]
  assert_same(joined(*hosts), whole)
  order = [batch['index'].tolist() for batch in whole]
  assert order[:5] != order[5:10]
  rare.seed = 1
  assert [batch['index'].tolist() for batch in train(rare, stop=12)] != order
  rare.augment.repeats = 2
  for batch in train(rare, stop=12):
    np.testing.assert_array_equal(batch['index'][:5], batch['index'][5:])


@pytest.mark.parametrize('split', ['train', 'train[3:]', 'train[:3]+train[4:]'])
def test_labels_without_images(config, split):
  """All sources say the same as the examples that they read."""
  source = data.open_source(config, split)
  labels = source.column('label')
  assert labels.dtype == np.int32
  examples = map(source.read, range(len(source)))
  assert labels.tolist() == [e.values['label'] for e in examples]


def test_labels_of_a_folder_need_no_file(rare):
  source = data.open_source(rare, 'train')
  for i in range(len(source)):
    pathlib.Path(source.file(i)).unlink()
  assert np.bincount(source.column('label')).tolist() == [40, 8, 2]
