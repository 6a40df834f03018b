"""Images that stay in memory, and several steps in one call."""

import functools
import itertools
import os
import signal
import types
from typing import ClassVar
import weakref

import jax
import numpy as np
import psutil
import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax.data import base
from vit_jax.data import cache as cache_lib
from vit_jax.data import features
from vit_jax.data import sources
from vit_jax.runs import checkpoint
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.train import monitor

UserError = config_lib.UserError

# Calls of three steps.
CALLS = {
  'train__steps_per_call': 3,
  'evals__val__every': '6 steps',
  'checkpoint__every': '6 steps',
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Images of one size: 13 of each class to train on, 5 to evaluate."""
  root = tmp_path_factory.mktemp('folder')
  for i, (split, name) in enumerate(
    itertools.product(('train', 'val'), stand_in.CLASSES)
  ):
    path = root / split / name
    path.mkdir(parents=True)
    for j in range(13 if split == 'train' else 5):
      image = stand_in.png(stand_in.pixels(20 * i + j, 12, 16))
      (path / f'{j}.png').write_bytes(image)
  return root


make_config = functools.partial(stand_in.config, data__source_size=(12, 16))


def build(folder, **overrides):
  config = make_config(folder, **overrides)
  experiment_lib.check(config)
  return experiment_lib.build(config)


MESHES = {'one': {}, 'eight': {'mesh__data': 4, 'mesh__fsdp': 2}}


@pytest.mark.parametrize('mesh', MESHES)
@pytest.mark.parametrize('cache', ['host', 'device'])
def test_batches_are_those_without_a_cache(folder, cache, mesh):
  """Across epochs, with repeats, from any step, and with padding."""
  settings = MESHES[mesh] | {'augment__repeats': 2}
  plain = build(folder, **settings)
  kept = build(folder, data__cache=cache, **settings).cached()
  for make in (
    lambda e: e.train_batches(0),
    lambda e: e.train_batches(7),
    lambda e: e.train_batches(2, [1, 4, 3, 1, 1]),
    lambda e: e.eval_batches('val'),
  ):
    with make(plain) as expected, make(kept) as actual:
      pairs = list(zip(expected, actual, strict=True))
    assert pairs
    for a, b in pairs:
      assert a.keys() == b.keys()
      for name in a:
        assert a[name].sharding.is_equivalent_to(b[name].sharding, a[name].ndim)
        np.testing.assert_array_equal(a[name], b[name], strict=True)


def test_calls_begin_where_a_resumed_run_finds_them():
  settings = CALLS | {'evals__val__every': '10 steps'}
  e = experiment_lib.build(tiny.config(**settings))
  assert list(e.calls(0)) == [3, 3, 3, 1, 1, 1]  # one at the evaluation
  for start, rest in ((3, [3, 3]), (4, [1, 1, 3]), (8, [1])):
    assert list(e.calls(start)) == [*rest, 1, 1, 1]


def run(workdir, config):
  """Trains; returns each step's scalars, and the final state."""
  assert loop.run(config, str(workdir)).status == 0
  lines = [x for x in tiny.metrics(workdir) if 'train/loss' in x]
  names = ('loss', 'accuracy', 'grad_norm', 'param_norm', 'learning_rate')
  scalars = {x['step']: [x[f'train/{name}'] for name in names] for x in lines}
  e = experiment_lib.build(config)
  with checkpoint.Checkpointer(workdir, config.checkpoint) as checkpoints:
    state, *_ = checkpoints.restore(e.program.state_to_read)
  return scalars, jax.device_get(state)


@pytest.fixture(scope='module')
def plain_run(tmp_path_factory):
  settings = CALLS | tiny.RANDOM | {'train__steps_per_call': 1}
  return run(tmp_path_factory.mktemp('plain'), tiny.config(**settings))


@pytest.fixture(scope='module')
def called_run(tmp_path_factory):
  settings = CALLS | tiny.RANDOM
  return run(tmp_path_factory.mktemp('calls'), tiny.config(**settings))


@pytest.mark.slow
def test_several_steps_in_a_call_are_the_same_steps(plain_run, called_run):
  """What is compiled differs: so may the last bit, as documented."""
  scalars, state = called_run
  assert list(scalars) == list(range(1, 13))  # each step is reported
  for step, values in plain_run[0].items():
    np.testing.assert_allclose(scalars[step], values, rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    state,
    plain_run[1],
  )


@pytest.mark.slow
def test_a_run_that_was_stopped_between_calls_resumes_to_the_bit(
  tmp_path, called_run, monkeypatch
):
  """And with its images in another place."""

  def after_call(self, run, call, after_call=monitor.Monitor.after_call):
    after_call(self, run, call)
    if run.step == 3:
      monkeypatch.undo()
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(monitor.Monitor, 'after_call', after_call)
  config = tiny.config(**CALLS, **tiny.RANDOM, data__cache='device')
  assert loop.run(config, str(tmp_path)).status == 128 + signal.SIGTERM
  assert os.listdir(tmp_path / 'checkpoints') == ['3']
  actual = run(tmp_path, config)
  assert actual[0] == called_run[0]
  jax.tree.map(np.testing.assert_array_equal, actual[1], called_run[1])


def test_a_step_that_is_not_finite_within_a_call(tmp_path):
  config = tiny.config(
    **CALLS,
    optim__name='sgd',
    optim__learning_rate=1e38,
    optim__warmup='0 steps',
    evals__val__split='',
  )
  with pytest.raises(UserError, match='not finite') as error:
    loop.run(config, str(tmp_path))
  step = int(str(error.value).split('step ')[1].split()[0])
  assert os.listdir(tmp_path / 'checkpoints') == [str(step - 1)]
  assert len(str(error.value).split('examples [')[1].split(',')) >= 16


def test_too_little_memory(folder, monkeypatch):
  e = build(folder, data__cache='host')
  size = (39 + 15) * 12 * 16 * 3
  room = types.SimpleNamespace(available=size - 1)
  monkeypatch.setattr(psutil, 'virtual_memory', lambda: room)
  with pytest.raises(
    UserError, match=r'cache=host.* more than is free'
  ) as info:
    e.cached()
  assert '\n' not in str(info.value)
  room.available = size
  e.cached()


class Stored(base.Source):
  """3 GiB of images in files, once decoded."""

  features: ClassVar = {
    'image': features.Image((1024, 1024)),
    'label': features.Label(('a',)),
  }

  def __len__(self):
    return 1024

  def read(self, position):
    raise AssertionError(position)

  def fingerprint(self):
    return ''


# As large, and in memory already.
IN_MEMORY = base.ArraySource(
  {
    'image': np.broadcast_to(np.uint8(0), (1024, 1024, 1024, 3)),
    'label': np.zeros(1024),
  },
  np.arange(1024),
  {'label': features.Label(('a',))},
)

STORED = Stored()


@pytest.mark.parametrize(
  'cache, splits, needed',
  [
    ('host', [Stored()], 3),
    ('host', [Stored(), Stored()], 6),
    ('host', [STORED, STORED], 3),  # one split with two uses
    ('host', [Stored(), IN_MEMORY], 3),
    ('host', [IN_MEMORY], 0),
    # On each of two CPU devices, and the one that is decoded.
    ('device', [Stored()], 6 + 3),
    ('device', [Stored(), Stored()], 12 + 3),
    ('device', [STORED, STORED], 6 + 3),
    ('device', [IN_MEMORY, Stored()], 12 + 3),
    ('device', [IN_MEMORY], 6),
  ],
)
def test_what_is_counted(monkeypatch, cache, splits, needed):
  room = types.SimpleNamespace(available=needed * 2**30)
  monkeypatch.setattr(psutil, 'virtual_memory', lambda: room)
  mesh = types.SimpleNamespace(local_devices=jax.devices('cpu')[:2])
  config = tiny.config(data__cache=cache, data__channels=3)
  named = {f'evals.{i}': source for i, source in enumerate(splits)}
  cache = sources.keep(config, mesh, named)
  cache.check()
  if not needed:
    return
  room.available -= 2**29
  with pytest.raises(UserError) as info:
    cache.check()
  assert f'take {needed:.1f} GiB of memory, 0.5 GiB more' in str(info.value)


def test_memory_of_accelerators(monkeypatch):
  """Each has room for all, the host for the largest split."""

  class Device:
    device_kind, id = 'H200', 3

    def memory_stats(self):
      return {'bytes_limit': 7 * 2**30, 'bytes_in_use': 2 * 2**30}

  room = types.SimpleNamespace(available=3 * 2**30)
  monkeypatch.setattr(psutil, 'virtual_memory', lambda: room)
  mesh = types.SimpleNamespace(local_devices=[Device()])
  config = tiny.config(data__cache='device', data__channels=3)
  cache_lib.Cache(config, mesh, {'train': Stored()}).check()
  splits = {'train': Stored(), 'evals.val': Stored()}
  both = cache_lib.Cache(config, mesh, splits)
  with pytest.raises(UserError, match=r'6\.0 GiB of H200 3, 1\.0 GiB more'):
    both.check()
  room.available = 2 * 2**30
  with pytest.raises(UserError, match=r'3\.0 GiB of memory, 1\.0 GiB more'):
    both.check()


@pytest.mark.parametrize('cache', ['host', 'device'])
def test_where_decoded_images_are_kept(folder, monkeypatch, cache):
  loaded = []

  def decode(*args, decode=cache_lib.decode_split):
    result = decode(*args)
    loaded.append(weakref.ref(result))
    return result

  monkeypatch.setattr(cache_lib, 'decode_split', decode)
  e = build(folder, data__cache=cache)
  kept = e.cached()
  assert len(loaded) == 2
  if cache == 'host':
    assert [kept.source, kept.eval_sources['val']] == [x() for x in loaded]
  else:
    assert [x() for x in loaded] == [None, None]
    assert kept.splits == e.splits
    assert set(kept.cache.on_devices) == set(e.splits)


@pytest.mark.parametrize('cache', ['host', 'device'])
def test_a_split_with_several_uses_is_kept_once(folder, cache):
  config = make_config(folder, data__cache=cache)
  config.evals.knn = config_lib.evaluation(
    'val', '1 epochs', kind=f'knn({config.data.split!r})'
  )
  e = experiment_lib.build(config).cached()
  where = e.splits if cache == 'host' else e.cache.on_devices
  assert where['train'] is where['evals.knn.train']
  assert where['evals.val'] is where['evals.knn']
  assert where['train'] is not where['evals.val']


def test_images_that_differ_in_size(folder):
  e = build(folder, data__cache='device', data__source_size=None)
  with pytest.raises(UserError, match=r'cache=device.*for train differ'):
    e.cached()


def test_a_damaged_image_is_named(folder, tmp_path):
  os.symlink(folder / 'val', tmp_path / 'val')
  for name in stand_in.CLASSES:
    (tmp_path / 'train' / name).mkdir(parents=True)
    (tmp_path / 'train' / name / 'bad.png').write_bytes(b'no image')
  e = build(tmp_path, data__cache='host', train__batch_size=2)
  with pytest.raises(UserError, match=r'bad\.png'):
    e.cached()
