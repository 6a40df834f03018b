"""The summary of a model, from a config and from a work directory."""

import importlib
import json
import re
import sys

import commands
import pytest
import tiny

from vit_jax import summary
from vit_jax import train
from vit_jax.config import UserError


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
  overrides = {'model__depth': 3, 'model__scan': scan}
  overrides['optim__freeze'] = '^(patch_|blocks_0|blocks_1/mlp)'
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
  assert trainable['blocks_0'] == 'no' and trainable['blocks_2'] == 'yes'
  assert trainable['blocks_1'] == 'part' and trainable['head'] == 'yes'
  assert rows['position_embedding']['output_shape'] is None
  top = [row for name, row in rows.items() if '/' not in name]
  for what in ('parameters', 'gflop'):
    assert sum(row[what] for row in top) == pytest.approx(report[what])
  assert report['trainable'] == 'part' and report['memory'] is None
  assert report['output_shape'] == [1, 10]


def test_memory_of_a_work_directory(run, tmp_path):
  """Of a config as of the work directory that it made."""
  settings = {'optim__trainable': '^head/', 'train__ema_decay': 0.9}
  settings |= {'model__scan': True, 'model__depth': 2}
  assert train.run(tiny.config(**settings), str(tmp_path / 'run')) == 0
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
