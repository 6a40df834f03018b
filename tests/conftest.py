"""Eight CPU devices for all tests, and flags that nobody parses.

`VIT_JAX_TEST_PLATFORM=cuda` (or tpu) runs them elsewhere; what needs more
devices than there are is skipped.
"""

import functools
import gc
import json
import os
import pathlib
import tempfile

import quick_compiler

# Before jax starts: the tests run on the CPU, whatever else there is.
os.environ['JAX_PLATFORMS'] = os.environ.get('VIT_JAX_TEST_PLATFORM', 'cpu')
if os.environ['JAX_PLATFORMS'] != 'cpu':  # there products may be less exact
  os.environ.setdefault('JAX_DEFAULT_MATMUL_PRECISION', 'highest')
os.environ['JAX_NUM_CPU_DEVICES'] = '8'
os.environ['XLA_FLAGS'] = quick_compiler.flags(
  os.environ['JAX_PLATFORMS'], os.environ.get('XLA_FLAGS')
)

# All processes share the programs: many tests compile the same step of the same
# tiny model. Nothing that imports jax may come before.
os.environ.update(quick_compiler.cache_variables(os.environ['JAX_PLATFORMS']))

from absl import flags
from absl import logging
import pytest
import tiny

flags.FLAGS.mark_as_parsed()  # Grain reads flags
# Tracing makes millions of objects, and few of them are in cycles.
gc.set_threshold(100_000, 50, 50)
# What commands keep does not outlive the tests, nor come from before them.
if 'PYTEST_XDIST_WORKER' not in os.environ:
  _CACHE = tempfile.TemporaryDirectory(prefix='vit_jax_cache')
  os.environ['VIT_JAX_CACHE'] = _CACHE.name


@pytest.fixture(scope='module', autouse=True)
def room_for_programs():
  """Forgets what earlier modules compiled, before there is too much of it.

  Each compiled program holds some of the memory maps that Linux gives to a
  process (65,530); the compiler crashes where there are no more.
  """
  maps = pathlib.Path('/proc/self/maps')
  if maps.exists() and maps.read_bytes().count(b'\n') > 25_000:
    import jax

    jax.clear_caches()
  yield


@pytest.fixture
def warnings_logged(monkeypatch):
  """The warnings that are logged from here on, a line each."""
  lines = []
  monkeypatch.setattr(logging, 'warning', lambda f, *x: lines.append(f % x))
  return lines


@pytest.fixture(autouse=True)
def messages_as_before():
  """Restores what a command that was run as a program sets for its log."""
  verbosity, threshold = logging.get_verbosity(), flags.FLAGS.stderrthreshold
  logger = logging.get_absl_logger()
  level = logger.level
  yield
  logging.set_verbosity(verbosity)
  logger.setLevel(level)  # set_verbosity changes it, too
  logging.set_stderrthreshold(threshold)


@pytest.fixture(scope='module')
def programs_once():
  """Lets runs of one config share what is traced and compiled, in a module.

  Not for tests that replace what a step computes.
  """
  from vit_jax import config as config_lib
  from vit_jax.train import program

  create, programs = program.create, {}

  def create_once(config, features, lengths, devices=None):
    stored = json.dumps(config_lib.to_dict(config), sort_keys=True)
    key = stored, repr(sorted(features.items())), repr(lengths), repr(devices)
    if key not in programs:
      programs[key] = create(config, features, lengths, devices)
    return programs[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(program, 'create', create_once)
    yield


@pytest.fixture(scope='session')
def jpegs(tmp_path_factory):
  """Paths of photographs of many sizes."""
  import photographs

  return photographs.jpegs(tmp_path_factory.mktemp('jpegs'))


@pytest.fixture(scope='session')
def digits_run(tmp_path_factory):
  """The work directory of a finished run of the tiny config."""
  from vit_jax.train import loop

  path = tmp_path_factory.mktemp('runs') / 'digits'
  config = tiny.config(train__duration='3 steps', optim__warmup='0 steps')
  assert loop.run(config, str(path)).status == 0
  return path


@pytest.fixture(scope='session')
def method_run(tmp_path_factory, digits_run):
  """Returns a function: the work directory of a finished run of a method."""
  import methods

  from vit_jax.train import loop

  @functools.cache
  def run(method):
    path = tmp_path_factory.mktemp('methods') / 'run'
    options = {'teacher': str(digits_run)} if method == 'distillation' else {}
    config = methods.config(
      method, options, train__duration='2 steps', optim__warmup='0 steps'
    )
    assert loop.run(config, str(path)).status == 0
    return path

  return run


@pytest.fixture(scope='session')
def class_folder(tmp_path_factory):
  """A folder of images of three classes: 12 to train on, 15 others."""
  import stand_in

  path = tmp_path_factory.mktemp('data') / 'images'
  return stand_in.write_folder(path, train=4, val=5)


@pytest.fixture(scope='session')
def folder_run(class_folder, tmp_path_factory):
  """A run on images of differing size, of three classes."""
  import stand_in

  from vit_jax.train import loop

  config = stand_in.config(
    class_folder,
    data__image_size=16,
    train__batch_size=4,
    train__duration='1 steps',
    optim__warmup='0 steps',
  )
  path = tmp_path_factory.mktemp('runs') / 'folder'
  assert loop.run(config, str(path)).status == 0
  return path
