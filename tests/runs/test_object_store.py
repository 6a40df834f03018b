"""Work directories in an object store: that of fsspec in memory."""

import json
import os
import pathlib
import shutil
import time

import fsspec
import pytest
import tiny

from vit_jax.config import addresses
from vit_jax.config import UserError
from vit_jax.runs import object_store
from vit_jax.runs import restoring
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import loop

pytestmark = pytest.mark.usefixtures('programs_once')


@pytest.fixture(name='store')
def make_store(tmp_path, monkeypatch):
  """The file system of a new address, and the address."""
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setitem(addresses.STORES, 'memory', 'fsspec')
  return fsspec.filesystem('memory'), f'memory://{tmp_path.name}/run'


def names(store):
  files, address = store
  return {x.partition('/run/')[2] for x in files.find(address)}


def test_a_run_in_a_store_resumes_to_the_bit(store, tmp_path):
  """And is the run of a local folder."""
  files, address = store
  stopped = loop.run(tiny.config(train__hooks='stopping:Stop'), address)
  assert stopped.status == 143
  assert 'checkpoints/6/_CHECKPOINT_METADATA' in names(store)
  assert not {'DONE', 'lock.json', '.lock'} & names(store)
  results = loop.run(tiny.config(), address)
  assert {'DONE', 'config.json', 'run.json', 'train.log'} <= names(store)
  assert not os.listdir(tmp_path / 'cache' / 'runs')
  assert loop.run(tiny.config(), address) == results  # it is done

  assert loop.run(tiny.config(), str(tmp_path / 'local')) == results
  (tmp_path / 'there').mkdir()
  files.get(address, str(tmp_path / 'there'), recursive=True)
  runs = [tmp_path / 'there' / 'run', tmp_path / 'local']
  losses, arrays = [], []
  for run in runs:
    lines = tiny.metrics(run)
    losses.append([x['train/loss'] for x in lines if 'train/loss' in x])
    (newest, *_) = workdir_lib.newest_first(run / 'checkpoints')
    arrays.append(restoring.read_info(newest)['arrays'])
  assert losses[0] == losses[1] and arrays[0] == arrays[1]
  kept = {x.split('/')[1] for x in names(store) if x.startswith('checkpoints/')}
  assert kept == set(os.listdir(runs[1] / 'checkpoints'))


def test_a_store_that_is_in_use_is_refused(store):
  files, address = store
  lock = {'holder': 'process 1 on a host', 'time': time.time()}
  files.pipe_file(f'{address}/lock.json', json.dumps(lock).encode())
  with pytest.raises(UserError, match='in use by process 1 on a host: wait'):
    loop.run(tiny.config(), address)
  assert names(store) == {'lock.json'}


def test_an_upload_that_is_killed_loses_no_metrics(store, monkeypatch):
  """A resumed run goes on with the metrics that are there."""
  files, address = store
  put_file, uploaded = type(files).put_file, []

  def record(self, local, path, **options):
    uploaded.append(path.partition('/run/')[2])
    put_file(self, local, path, **options)

  monkeypatch.setattr(type(files), 'put_file', record)
  assert loop.run(tiny.config(train__duration='3 steps'), address).status == 0
  kinds = [name.partition('/')[0] for name in uploaded]
  assert kinds.index('config.json') < kinds.index('metrics.jsonl')
  assert kinds.index('metrics.jsonl') < kinds.index('checkpoints')
  assert kinds[-1] == 'DONE'


@pytest.mark.parametrize(
  'problem', [OSError('the quota is used up'), FileNotFoundError('no bucket')]
)
def test_what_cannot_be_uploaded_stays_here(
  store, tmp_path, monkeypatch, problem
):
  files, address = store

  def fail(*_args, **_options):
    raise problem

  monkeypatch.setattr(type(files), 'put_file', fail)
  with pytest.raises(UserError, match=f'{problem}; the whole run is in'):
    loop.run(tiny.config(train__duration='3 steps'), address)
  (copy,) = (tmp_path / 'cache' / 'runs').glob('*/run')
  assert (copy / 'DONE').exists()


@pytest.mark.parametrize('is_released', [False, True])
def test_a_copy_whose_lock_was_taken_uploads_nothing(store, is_released):
  files, address = store
  holder = 'process 1 on a host'
  lock = {'holder': holder, 'time': time.time(), 'id': '1'}
  with pytest.raises(UserError, match='has taken the work directory') as error:
    with object_store.local_copy(address) as folder:
      path = pathlib.Path(folder)
      path.mkdir()
      (path / 'run.json').write_text('{}')
      if is_released:
        files.rm_file(f'{address}/lock.json')
      else:
        files.pipe_file(f'{address}/lock.json', json.dumps(lock).encode())
  assert names(store) == (set() if is_released else {'lock.json'})
  if not is_released:  # that of the other process
    assert holder in str(error.value)
    assert json.loads(files.cat_file(f'{address}/lock.json')) == lock
  assert (path / 'run.json').exists()


def test_a_copy_that_is_gone_removes_nothing_from_the_store(store):
  files, address = store
  files.pipe_file(f'{address}/config.json', b'{}')
  with pytest.raises(UserError, match='is gone'):
    with object_store.local_copy(address) as folder:
      shutil.rmtree(folder)
  assert names(store) == {'config.json'}


def test_files_that_the_store_lost_do_not_stop_an_upload(store):
  files, address = store
  for name in ('config.json', 'old'):
    files.pipe_file(f'{address}/{name}', b'{}')
  with object_store.local_copy(address) as folder:
    files.rm_file(f'{address}/old')
    (pathlib.Path(folder) / 'old').unlink()
  assert names(store) == {'config.json'}
