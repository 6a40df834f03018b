"""Runs, models and data in S3 and Google's storage: servers of this process."""

import json
import os
import pathlib
import shutil
import signal
import sys

import commands
import file_server
import fsspec
import numpy as np
import pytest
import stand_in_stores
import tiny

import vit_jax
from vit_jax import embed
from vit_jax import evaluate
from vit_jax import search
from vit_jax.compare import __main__ as compare
from vit_jax.config import UserError
from vit_jax.data import __main__ as data
from vit_jax.data import sources
from vit_jax.downloads import copies
from vit_jax.explore import pictures
from vit_jax.predict import __main__ as predict
from vit_jax.runs import restoring
from vit_jax.runs import workdir as workdir_lib
from vit_jax.summary import __main__ as summary
from vit_jax.train import loop
from vit_jax.weights import download

pytestmark = pytest.mark.usefixtures('programs_once')

# Uploads all the time, not every minute.
KILLED = """
from vit_jax.runs import object_store
object_store._PERIOD_S = 0.01
from vit_jax import main
main.cli.run(main.main, '', computes=False)
"""


@pytest.fixture(scope='module', params=['s3', 'gs'])
def server(request):
  """The scheme of a store, and the environment that leads to it."""
  serving = stand_in_stores.serving(request.param)
  with serving as env, pytest.MonkeyPatch.context() as context:
    for name, value in env.items():
      context.setenv(name, value)
    context.setenv('NO_PROXY', '*')
    yield request.param, env


class Bucket:
  """A bucket of its own, and the address of a run in it."""

  def __init__(self, scheme: str, name: str):
    self.files, _ = fsspec.core.url_to_fs(f'{scheme}://{name}')
    self.files.mkdir(name)
    self.address = f'{scheme}://{name}/runs/digits'

  def put(self, folder, address=''):
    for path in pathlib.Path(folder).rglob('*'):
      if path.is_file():
        name = path.relative_to(folder).as_posix()
        self.files.put_file(str(path), f'{address or self.address}/{name}')

  def names(self):
    self.files.invalidate_cache()
    paths = self.files.find(self.address)
    return {x.partition('/digits/')[2] for x in paths}


@pytest.fixture
def bucket(server, tmp_path, monkeypatch):
  """An empty bucket; what is read from it is kept in tmp_path/cache."""
  scheme, _ = server
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path / 'cache'))
  fsspec.get_filesystem_class(scheme).clear_instance_cache()
  return Bucket(scheme, tmp_path.name.replace('_', '-').strip('-'))


@pytest.fixture
def run(bucket, digits_run):
  """A finished run in the store, and the same in a folder."""
  bucket.put(digits_run)
  return bucket.address, digits_run


def check_equal(run, other):
  """Checks that two runs in folders have the same losses and parameters."""
  losses, arrays = [], []
  for folder in (run, other):
    lines = tiny.metrics(folder)
    losses.append([x['train/loss'] for x in lines if 'train/loss' in x])
    (newest, *_) = workdir_lib.newest_first(folder / 'checkpoints')
    arrays.append(restoring.read_info(newest)['arrays'])
  assert losses[0] == losses[1] and len(losses[0]) == 12
  assert arrays[0] == arrays[1]


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_bit(bucket, tmp_path, monkeypatch):
  """From another cache, as on another machine."""
  config = tiny.config(train__hooks='stopping:Stop')
  assert loop.run(config, bucket.address).status == 143
  assert 'checkpoints/6/_CHECKPOINT_METADATA' in bucket.names()
  assert not {'DONE', 'lock.json', '.lock'} & bucket.names()
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path / 'other'))
  results = loop.run(tiny.config(), bucket.address)
  assert loop.run(tiny.config(), str(tmp_path / 'run')) == results
  check_equal(copies.fetch(bucket.address), tmp_path / 'run')


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_bit(bucket, tmp_path):
  flags = tiny.flags(train__hooks='stopping:Kill')
  paths = os.pathsep.join(sys.path)
  done = commands.python(
    *('-c', KILLED, *flags, f'--workdir={bucket.address}'),
    env=os.environ
    | {'PYTHONPATH': paths, 'JAX_NUM_CPU_DEVICES': '1', 'RUN': bucket.address},
  )
  assert done.returncode == -signal.SIGKILL, done.stderr
  with pytest.raises(UserError, match=r'was killed, start again in \d+ s'):
    loop.run(tiny.config(), bucket.address)
  lock = json.loads(bucket.files.cat_file(f'{bucket.address}/lock.json'))
  assert copies.fetch_record(bucket.address)[1]
  lock['time'] -= 1000
  bucket.files.pipe_file(
    f'{bucket.address}/lock.json', json.dumps(lock).encode()
  )
  assert not copies.fetch_record(bucket.address)[1]
  loop.run(tiny.config(), bucket.address)
  loop.run(tiny.config(), str(tmp_path / 'run'))
  check_equal(copies.fetch(bucket.address), tmp_path / 'run')


def test_a_run_is_loaded_from_a_store(run):
  address, folder = run
  vit, other = vit_jax.load(address), vit_jax.load(folder)
  images = [np.full((8, 8, 1), 99, np.uint8)]
  np.testing.assert_array_equal(vit.predict(images), other.predict(images))
  assert vit.origin.step == 3 and vit.classes == other.classes
  with pytest.raises(UserError, match='there is no checkpoint'):
    vit_jax.load(address, step=7)


def test_commands_read_runs_of_a_store(run, tmp_path, capsys, class_folder):
  address, folder = run
  image = next(x for x in class_folder.rglob('*') if x.is_file())

  def out(command, *args):
    results = []
    for path in (address, str(folder)):
      assert commands.run(command, f'--from={path}', *args) == 0
      text = capsys.readouterr().out
      results.append(text.replace(str(download.fetch(path)), 'RUN'))
    assert results[0] == results[1]
    return results[0]

  digits = ('--data=digits', '--split=train[:32]')
  assert 'accuracy' in out(evaluate, *digits, '--format=json')
  assert out(predict, str(image))
  assert out(summary, '--keys=optim.learning_rate')
  for path in (address, folder):
    for command, name in ((embed, 'x.npz'), (pictures, 'pictures')):
      flags = [f'--from={path}', f'--out={tmp_path / name}', *digits]
      flags += ['--only=patches'] if command is pictures else []
      assert commands.run(command, *flags) == 0


def test_runs_of_a_store_are_compared(run, bucket, tmp_path, capsys):
  address, folder = run
  other = f'{address}-2'
  copy = shutil.copytree(folder, tmp_path / 'copy')
  config = json.loads((copy / 'config.json').read_text())
  config['seed'] = 77
  (copy / 'config.json').write_text(json.dumps(config))
  bucket.put(copy, other)
  assert commands.run(compare, address, other, '--out=', '--format=json') == 0
  result = json.loads(capsys.readouterr().out)
  assert sorted(result['config']['seed'].items()) == [
    ('digits', [0]),
    ('digits-2', [77]),
  ]
  assert not list((tmp_path / 'cache').rglob('checkpoints'))  # not for this


def test_what_has_changed_is_copied_again(run, bucket, monkeypatch):
  address, _ = run
  local = copies.fetch(address)
  (local / 'train.log').write_text('stays if it is not copied again')
  bucket.files.pipe_file(f'{address}/checkpoints/9/x', b'9')
  bucket.files.pipe_file(f'{address}/checkpoints/12/x', b'12')
  bucket.files.pipe_file(f'{address}/checkpoints/15/x', b'15')
  bucket.files.pipe_file(f'{address}/run.json', b'{"runs": []}')
  bucket.files.rm_file(f'{address}/DONE')
  assert copies.fetch(address, 9) == local
  assert (local / 'train.log').read_text().startswith('stays')
  assert (local / 'run.json').read_text() == '{"runs": []}'
  assert not (local / 'DONE').exists()
  kept = {x.name for x in (local / 'checkpoints').iterdir()}
  assert kept == {'3', '9', '12', '15'}  # the first one was copied before
  bucket.files.rm_file(f'{address}/checkpoints/9/x')
  copies.fetch(address)
  assert not (local / 'checkpoints/9').exists()


def test_one_file_of_a_store(run, bucket, monkeypatch):
  """A public one of Google's is read without an account: see test_download."""
  address, _ = run
  bucket.files.pipe_file(f'{address}.npz', b'an array')
  public = file_server.Server()  # it shows nothing to everybody
  monkeypatch.setattr(download, '_GCS', public.url)
  try:
    path = download.fetch(f'{address}.npz')
  finally:
    public.stop()
  assert path.read_bytes() == b'an array' and path.name == 'digits.npz'
  assert bool(public.paths) == address.startswith('gs')


def test_mistakes_with_a_store(run, bucket):
  address, _ = run
  above = address.removesuffix('/digits')
  for path, line in (
    (f'{address}-3', 'there is no such object'),
    (above, 'neither a run nor a model: name a folder in it, as digits'),
    (address.replace('://', '://not-'), f'cannot read {address[:2]}://not-'),
    (f'{above}/../../../run', "write it without '//', '.' and '..'"),
  ):
    with pytest.raises(UserError, match=line) as error:
      vit_jax.load(path)
    assert '\n' not in str(error.value)


COPIES = {'s3': 'aws s3 cp --recursive', 'gs': 'gcloud storage cp -r'}


@pytest.mark.parametrize('scheme', COPIES)
def test_data_in_a_store_is_to_be_copied(scheme, tmp_path):
  """Data is read at random, again and again: not through a network."""
  place = f'{scheme}://bucket/data'
  for name in (
    *(f'folder:{place}', f'video:{place}', f'audio:{place}', f'hf:{place}'),
    *(f'table:{place}.csv', f'tar:{place}-{{000..007}}.tar'),
  ):
    with pytest.raises(UserError) as error:
      sources.open_source(tiny.config(data__name=name), 'train')
    path = name.partition(':')[2]
    assert str(error.value).startswith(
      f'config.data.name={name}: data is read from local files: copy it, as'
      f' with {COPIES[scheme]} {path} FOLDER, or mount the bucket'
    )
  config = tiny.config(data__name='mnist', data__dir=place)
  with pytest.raises(UserError, match=r'^config.data.dir=.* local files: copy'):
    sources.open_source(config, 'train')
  (tmp_path / 'x.csv').write_text(f'image,label\n{place}/a.jpg,cat\n')
  config = tiny.config(data__name=f'table:{tmp_path}/x.csv')
  with pytest.raises(UserError, match=r'x.csv, row 1: .*a.jpg: data is read'):
    sources.open_source(config, 'train').read(0)


@pytest.mark.parametrize('scheme', COPIES)
def test_images_in_a_store_are_to_be_copied(scheme, digits_run):
  place = f'{scheme}://bucket/data'
  for command, *args in (
    (predict, f'--from={digits_run}', place),
    (embed, f'--from={digits_run}', f'--images={place}', '--out=x.npz'),
    (pictures, f'--from={digits_run}', f'--images={place}', '--out=x'),
    (data, 'check', place),
    (search, f'--from={digits_run}', place, '--text=x'),
  ):
    line = commands.mistake(command, *args, has_config=False)
    assert line.startswith(f'{place}: data is read from local files: copy it')
