"""What is measured of start-up, with a tiny model; no time is asserted."""

import json
import subprocess
import sys

import pytest
import tiny

from benchmarks import processes
from benchmarks import setting
from vit_jax import config as config_lib

CHANGES = {
  'data.split': 'train',
  'evals.val.split': '',
  'evals.test.split': '',
  'checkpoint.best': '',
  'train.batch_size': 4,
  'model.hidden_size': 16,
  'model.mlp_dim': 32,
  'model.num_heads': 2,
  'model.depth': 1,
  'mesh.data': 1,
}


@pytest.fixture(autouse=True)
def processes_of_their_own(monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(tiny.ROOT))
  monkeypatch.setenv('JAX_NUM_CPU_DEVICES', '1')


@pytest.mark.slow
def test_startup_has_its_ratio(tmp_path):
  setting.write_images(tmp_path, 8, setting.SMALL)
  file = str(tiny.ROOT / 'configs' / 'cifar10_tutorial.py')
  changes = CHANGES | {'data.name': f'folder:{tmp_path}'}
  config = config_lib.load(file, changes)
  flags = [f'--config={file}']
  flags += [f'--config.{key}={value}' for key, value in changes.items()]
  entry = json.loads(json.dumps(processes.startup(config, flags, runs=1)))
  assert entry['ratio'] == pytest.approx(
    entry['seconds_to_first_step'] / entry['baseline']
  )
  assert entry['ratio_range'] == [entry['ratio']] * 2
  assert entry['range'] == [entry['seconds_to_first_step']] * 2
  assert 0 < entry['seconds_to_first_step'] < entry['seconds_to_exit']
  assert entry['peak_memory_mb'] > 0
  with pytest.raises(RuntimeError, match='no such file'):
    processes.startup(config, ['--config=missing.py'], runs=1)


def test_the_plain_start_imports_nothing_of_ours():
  code = (
    'import sys\n'
    'from benchmarks import plain_start\n'
    'ours = {name for name in sys.modules if name.startswith("vit_jax")}\n'
    'assert not ours, ours'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
