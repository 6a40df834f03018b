"""An address is refused in the place of a local path."""

import os
import pathlib
import re
import sys

import commands
import pytest

import vit_jax
from vit_jax import convert
from vit_jax import embed
from vit_jax import evaluate
from vit_jax import search
from vit_jax.compare import __main__ as compare
from vit_jax.config import UserError
from vit_jax.data import __main__ as data
from vit_jax.downloads import places
from vit_jax.explore import inputs
from vit_jax.explore import pictures
from vit_jax.export import __main__ as export
from vit_jax.predict import __main__ as predict
from vit_jax.sweep import __main__ as sweep

ADDRESSES = {
  'gs://bucket/run': 'gcsfuse',
  's3://bucket/run': 'mount-s3',
  'hf:owner/name': '--push',
  'https://host/run': 'a local folder',
  'file:///tmp/run': 'write the path alone',
}
# A run may be in these, with a package, and be compared there.
STORES = {
  'gs://bucket/run': r" needs gcsfs: run pip install 'vit_jax\[gs\]'$",
  's3://bucket/run': r" needs s3fs: run pip install 'vit_jax\[s3\]'$",
}
FLAGS = [
  (compare, 'out'),
  (data, 'out'),
  (embed, 'out'),
  (evaluate, 'predictions'),
  (export, 'out'),
  (inputs, 'out'),
  (pictures, 'out'),
  (predict, 'output'),
  (search, 'cache'),
  (search, 'picture'),
  (sweep, 'workdir'),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  yield
  assert not os.listdir()  # as a folder 'gs:'


@pytest.mark.parametrize('address', ADDRESSES)
def test_an_address_is_no_place_to_write_to(address, monkeypatch):
  for command, flag in FLAGS:
    error = commands.mistake(command, f'--{flag}={address}')
    assert error.startswith(f'--{flag}={address}: it must be a local path: ')
    assert ADDRESSES[address] in error
  error = commands.mistake(convert, 'runs/x', address, '--to=timm')
  assert ADDRESSES[address] in error
  wrong = STORES.get(address, ': it must be a local path')
  for package in ('gcsfs', 's3fs'):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were missing
  assert re.search(wrong, commands.mistake(compare, address, 'b'))
  with pytest.raises(UserError, match=rf'^workdir=\S+{wrong}'):
    vit_jax.train(vit_jax.config.load('digits'), pathlib.Path(address))
  monkeypatch.setenv('VIT_JAX_CACHE', address)
  with pytest.raises(UserError, match=r'^VIT_JAX_CACHE=\S+: it must be a lo'):
    places.cache()


@pytest.mark.parametrize(
  'flag',
  ['workdir=hf:owner/run', 'reproduce=gs://bucket/run'],
)
def test_training_refuses_it_before_the_config_is_read(flag):
  done = commands.python('-m', 'vit_jax.main', f'--{flag}', '--config=digits')
  assert done.returncode == 1
  assert done.stderr.startswith(f'error: --{flag}: it must be')
  assert done.stderr.count('\n') == 1


@pytest.mark.parametrize('path', ['a:b/run', 'C:/run', './gs:/run', 'gs:x'])
def test_local_paths_may_have_colons(path):
  vit_jax.config.check_local(path, 'workdir')
