"""A batch is computed in as many microbatches as memory asks for."""

import json
import resource
import shutil
import subprocess
import sys
import types

import jax
import methods
import psutil
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax.parallel import memory
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.train import program as program_lib

UserError = config_lib.UserError

# Activations take far more than anything else.
LARGE = {
  'train__batch_size': 512,
  'train__duration': '4 steps',
  'optim__warmup': '0 steps',
  'evals__val__split': '',
  'checkpoint__every': '2 steps',
}


def needed(**overrides):
  """Returns the temporary bytes of a step."""
  e = experiment_lib.build(tiny.config(**LARGE | overrides))
  return program_lib.temporary_bytes(e.program.compile())


@pytest.fixture
def give(monkeypatch):
  """Returns a function that sets what the machine has available."""

  def give(size):
    room = types.SimpleNamespace(available=int(size))
    monkeypatch.setattr(psutil, 'virtual_memory', lambda: room)

  return give


@pytest.mark.slow
def test_too_little_memory_names_what_fits(tmp_path, give, capsys):
  """Before the first step; and what it names does fit, as the plan has it."""
  give(needed() / 3)
  with pytest.raises(UserError, match=r'^a step of 512 [^\n]*$') as error:
    loop.run(tiny.config(**LARGE), str(tmp_path / 'all'))
  assert methods.losses(tmp_path / 'all') == []
  text = str(error.value)
  parts = int(text.split('train.accumulation=')[1].split()[0])
  size = int(text.split('train.batch_size=')[1].split()[0])
  assert parts > 3 and size * parts == 512
  with pytest.raises(UserError, match=f'accumulation={parts} fits'):
    loop.run(tiny.config(**LARGE), str(tmp_path / 'dry'), dry_run=True)
  assert json.loads(capsys.readouterr().out)['total_gib'] > 0
  # In the same work directory, and the smaller batch in another.
  same = tiny.config(**LARGE, train__accumulation=parts)
  assert loop.run(same, str(tmp_path / 'all')).status == 0
  small = tiny.config(**LARGE | {'train__batch_size': size})
  assert loop.run(small, str(tmp_path / 'dry'), dry_run=True).status == 0


@pytest.mark.slow
def test_auto_takes_what_fits_and_keeps_it(tmp_path, give, caplog):
  """Resumed with more memory, a run goes on with as many microbatches."""
  caplog.set_level('INFO', logger='absl')
  give(needed() / 3)
  config = tiny.config(**LARGE, train__accumulation='auto')
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  stored = json.loads((tmp_path / 'run' / 'config.json').read_text())
  parts = stored['train']['accumulation']
  assert 512 % parts == 0 and parts > 3
  assert f"config.train.accumulation='auto' is {parts}" in caplog.text
  assert f'4 steps of 512 images in {parts} microbatches' in caplog.text
  cut = shutil.copytree(tmp_path / 'run', tmp_path / 'cut')
  (cut / 'DONE').unlink()
  shutil.rmtree(cut / 'checkpoints' / '4')
  give(needed() * 9)
  assert loop.run(config, str(cut)).status == 0
  assert methods.losses(cut) == methods.losses(tmp_path / 'run')
  # With less, it says what to do.
  (cut / 'DONE').unlink()
  shutil.rmtree(cut / 'checkpoints' / '4')
  give(needed(train__accumulation=parts) * 0.8)
  with pytest.raises(UserError, match=rf'in {parts} microbatches needs'):
    loop.run(config, str(cut))


def test_auto_leaves_a_batch_whole_where_there_is_room(tmp_path, capsys):
  config = tiny.config(**LARGE, train__accumulation='auto')
  results = loop.run(config, str(tmp_path / 'run'), dry_run=True)
  assert results.metrics == json.loads(capsys.readouterr().out)
  assert results.metrics['temporary_gib'] == needed() / 2**30


@pytest.mark.slow
def test_microbatches_respect_mesh_and_pairs(tmp_path, give):
  """Four devices, and mixed pairs: at most 16 microbatches of 64 images."""
  config = tiny.config(
    **LARGE | {'train__batch_size': 64},
    train__accumulation='auto',
    mesh__data=4,
    augment__mixup=0.2,
  )
  give(4 * 60_000)  # of which the state takes 44,000
  with pytest.raises(UserError, match=r'nor do smaller ones fit') as error:
    loop.run(config, str(tmp_path / 'run'))
  assert 'in 16 microbatches' in str(error.value)
  assert 'for each device' in str(error.value)
  give(2**30)
  assert loop.run(config, str(tmp_path / 'run')).status == 0


def test_a_state_that_does_not_fit(tmp_path, give):
  """Known at once: nothing is compiled, and nothing written."""
  give(30_000)
  with pytest.raises(UserError, match=r'^the train state needs 0\.00 GiB'):
    loop.run(tiny.config(**LARGE), str(tmp_path / 'run'))
  assert not (tmp_path / 'run' / 'config.json').exists()


def test_what_says_that_memory_is_too_little():
  """Of a CPU in the middle of a step, of a GPU, and of something else."""
  error = jax.errors.JaxRuntimeError
  for kind, raised in (
    (UserError, error('INTERNAL: Error dispatching: Out of memory allocating')),
    (UserError, error('RESOURCE_EXHAUSTED: Out of memory while trying to')),
    (error, error('INTERNAL: no kernel image is available')),
    (TypeError, TypeError('Out of memory')),
  ):
    with pytest.raises(kind), memory.explained('lower it'):
      raise raised


def test_the_address_space_counts():
  """As `ulimit -v` limits it: in a process of its own, which is left so."""
  code = (
    'from vit_jax.parallel import memory\n'
    'print(memory.free_on_host())\n'
    'import resource\n'
    'now = memory.psutil.Process().memory_info().vms\n'
    'resource.setrlimit(resource.RLIMIT_AS, (now + 2**28, now + 2**28))\n'
    'print(memory.free_on_host())\n'
  )
  out = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  ).stdout
  before, after = map(int, out.split())
  assert after <= 2**28 < before
  assert resource.getrlimit(resource.RLIMIT_AS)[0] < 0  # nothing changed here


@pytest.mark.parametrize('version', [1, 2])
def test_control_groups_count(tmp_path, monkeypatch, version):
  """The limit of a parent holds, too; cached files can be given up."""
  files = [('memory.max', 'memory.current', 'inactive_file')]
  files += [('memory.limit_in_bytes', 'memory.usage_in_bytes', None)]
  limit, used, _ = files[version == 1]
  cached = 'inactive_file' if version == 2 else 'total_inactive_file'
  root = tmp_path / 'memory' if version == 1 else tmp_path
  group = root / 'job' / 'step'
  group.mkdir(parents=True)
  unlimited = 'max' if version == 2 else str(2**63 - 4096)
  for folder, most in ((group, unlimited), (group.parent, str(3 * 2**20))):
    (folder / limit).write_text(f'{most}\n')
    (folder / used).write_text(f'{2 * 2**20}\n')
    (folder / 'memory.stat').write_text(f'anon 5\n{cached} {2**19}\n')
  listed = tmp_path / 'cgroup'
  controller = 'memory' if version == 1 else ''
  listed.write_text(f'7:cpu:/other\n4:{controller}:/job/step\n')
  monkeypatch.setattr(memory, '_CGROUPS', tmp_path)
  monkeypatch.setattr(memory, '_OWN_CGROUPS', listed)
  assert memory.free_on_host() == 2**20 + 2**19
