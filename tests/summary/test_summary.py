"""The summary of a model, from a config and from a work directory."""

import importlib
import json
import re
import shutil
import sys

import commands
import pytest
import tiny

from vit_jax.ahead import roofline
from vit_jax.config import UserError
from vit_jax.parallel import hardware
from vit_jax.summary import __main__ as summary
from vit_jax.train import loop


@pytest.fixture
def run(monkeypatch, capsys):
  """Returns what the command prints."""

  def run_command(*args):
    monkeypatch.setattr(sys, 'argv', ['summary', *args])  # as config flags read
    command = importlib.reload(summary)  # config flags are defined only once
    assert commands.run(command, *args) == 0
    return capsys.readouterr().out

  return run_command


@pytest.mark.parametrize('scan', [False, True])
def test_modules_of_a_config(run, scan):
  # Scanned layers are one array: they are frozen together.
  frozen = 'blocks' if scan else 'blocks_0|blocks_1/mlp'
  overrides = {'model__depth': 3, 'model__scan': scan}
  overrides['optim__freeze'] = f'^(patch_|{frozen})'
  flags = [*tiny.flags(**overrides), '--nomemory', '--format=json', '--depth=3']
  report = json.loads(run(*flags))
  rows = {row.pop('module'): row for row in report['modules']}
  kernel, bias = 2 * 4 * 16 * 32, 32 * 16 + 32  # T = 4, D = 16, M = 32
  assert rows['blocks_1/mlp/up'] == {
    'output_shape': [1, 4, 32],
    'parameters': bias,
    'trainable': 'no',
    'gflop': kernel / 1e9,
  }
  trainable = {name: row['trainable'] for name, row in rows.items()}
  layers = [trainable[f'blocks_{i}'] for i in range(3)]
  assert layers == (['no'] * 3 if scan else ['no', 'part', 'yes'])
  assert trainable['head'] == 'yes'
  assert rows['position_embedding']['output_shape'] is None
  top = [row for name, row in rows.items() if '/' not in name]
  for what in ('parameters', 'gflop'):
    assert sum(row[what] for row in top) == pytest.approx(report[what])
  assert report['trainable'] == 'part' and report['memory'] is None
  assert report['output_shape'] == [1, 10]


@pytest.mark.slow
def test_memory_of_a_work_directory(run, tmp_path):
  """Of a config as of the work directory that it made."""
  settings = {'optim__trainable': '^head/', 'train__ema_decay': 0.9}
  settings |= {'model__scan': True, 'model__depth': 2}
  assert loop.run(tiny.config(**settings), str(tmp_path / 'run')).status == 0
  by_from = json.loads(run(f'--from={tmp_path}/run', '--format=json'))
  table = run(*tiny.flags(**settings))
  memory = by_from['memory']
  for name in ('activations', 'total'):
    assert re.search(
      rf'^  {name} +{1024 * memory[name]:.3f}$', table, re.MULTILINE
    )
  assert re.search(rf'total .*{by_from["parameters"]:,}.* part ', table)
  assert memory.pop('device') == 'cpu' and memory.pop('batch_size') == 16
  total = memory.pop('total')
  assert sum(memory.values()) == pytest.approx(total)
  gib, head = 4 / 2**30, 170
  assert memory['parameters'] == by_from['parameters'] * gib
  assert memory['gradients'] == memory['average'] == head * gib
  assert memory['optimizer'] == (2 * head + 1) * gib
  changes = '--image_size=16', '--model.scan=False'
  changed = json.loads(run(f'--from={tmp_path}/run', '--format=json', *changes))
  assert changed['parameters'] > by_from['parameters']
  assert changed['memory']['parameters'] == changed['parameters'] * gib


def test_without_its_data(run, tmp_path, caplog):
  """The model is shown all the same, where the config says its classes."""
  settings = {'data__name': f'folder:{tmp_path}/none'}
  with pytest.raises(UserError, match='none'):
    run(*tiny.flags(**settings))
  table = run(*tiny.flags(**settings, model__num_classes=7))
  assert 'B, 7' in table and 'GiB' not in table
  assert 'cannot be trained here: ' in caplog.text


def test_mistakes_are_named(run):
  for args in ((), (*tiny.flags(), '--from=somewhere')):
    with pytest.raises(UserError, match='name one model'):
      run(*args)
  with pytest.raises(UserError, match='matches no parameter'):
    run(*tiny.flags(optim__freeze='blocks_9/'))


def test_of_a_file(run):
  """Another program's file has no config, and no memory for training."""
  path = tiny.ROOT / 'tests' / 'data' / 'golden' / 'google' / 'mixer.npz'
  report = json.loads(run(f'--from={path}', '--format=json'))
  assert report['output_shape'] == [1, 7] and report['memory'] is None
  assert report['trainable'] == 'yes'


def test_of_a_public_file_in_a_bucket(run, tmp_path, monkeypatch):
  """It needs no package of the store; it was downloaded before."""
  monkeypatch.setitem(sys.modules, 'gcsfs', None)  # as if it were missing
  monkeypatch.setenv('VIT_JAX_CACHE', str(tmp_path))
  file = tiny.ROOT / 'tests' / 'data' / 'golden' / 'google' / 'mixer.npz'
  folder = tmp_path / 'downloads' / 'storage.googleapis.com' / 'bucket'
  folder.mkdir(parents=True)
  shutil.copy(file, folder)
  report = json.loads(run('--from=gs://bucket/mixer.npz', '--format=json'))
  assert report['output_shape'] == [1, 7]


def test_plan_without_data_and_devices(run, tmp_path):
  """As JSON."""
  settings = {'data__name': f'folder:{tmp_path}/none', 'mesh__min_size': 256}
  flags = tiny.flags(**settings, model__num_classes=7, model__scan=True)
  with pytest.raises(UserError, match=r'none.*set --config.model.num_classes'):
    run(*tiny.flags(**settings), '--devices=16')
  report = json.loads(run(*flags, '--mesh=2,8,1', '--format=json'))
  assert report['memory'] is None and report['output_shape'] == [1, 7]
  plan = report['plan']
  assert plan['mesh'] == {'data': 2, 'fsdp': 8, 'tensor': 1}
  assert plan['memory']['total'] > plan['memory']['parameters'] > 0
  gathered, *_ = (c for c in plan['collectives'] if c['kind'] == 'all-gather')
  assert gathered['axes'] == ['fsdp'] and gathered['group_size'] == 8
  assert [e['hardware'] for e in plan['estimates']] == [
    device.name for device in hardware.TABLE
  ]
  assert all(0 < e['best'] <= e['worst'] for e in plan['estimates'])
  assert plan['assumptions'] == list(roofline.ASSUMPTIONS)


def test_plan_of_a_work_directory(run, digits_run):
  text = run(f'--from={digits_run}', '--devices=1', '--hardware=v5e')
  assert 'TPU v5e' in text and 'H100' not in text
  assert re.search(r'^  none$', text, re.MULTILINE)  # no collectives
  for line in ('parameters', 'activations', 'GFLOP', 'overlap', 'efficiency'):
    assert line in text


@pytest.mark.parametrize(
  ('flags', 'match'),
  [
    (['--hardware=H100'], '--hardware needs --devices'),
    (['--devices=8', '--mesh=model=8'], '--mesh=model=8: write the sizes'),
    (['--devices=8', '--mesh=fsdp=3'], '--mesh=fsdp=3 does not fit'),
    (['--devices=8', '--hardware=B300'], 'choose one of A100'),
    (['--devices=0'], '--devices=0'),
    (['--mesh=fsdp=32'], r'batch_size=16 in .* over 32 devices'),
  ],
)
def test_mistakes_of_a_plan(run, flags, match):
  with pytest.raises(UserError, match=match):
    run(*tiny.flags(), *flags)


def test_plan_of_a_file(run):
  path = tiny.ROOT / 'tests' / 'data' / 'golden' / 'google' / 'mixer.npz'
  with pytest.raises(UserError, match='is neither'):
    run(f'--from={path}', '--devices=8')
