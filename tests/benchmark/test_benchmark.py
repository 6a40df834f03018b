"""The benchmark's report, with a tiny model; no time is asserted."""

import dataclasses
import importlib.util
import json
import os
import sys
import types

import commands
import numpy as np
import other_libraries
import pytest
import rates
import tiny

from benchmarks import compile_part
from benchmarks import guard
from benchmarks import measures
from benchmarks import peers
from benchmarks import processes
from benchmarks import report as report_lib
from benchmarks import setting as setting_lib
from benchmarks import timing
from vit_jax import config as config_lib
from vit_jax.parallel import topologies

steps_per_block = timing.steps_per_block


@pytest.fixture(scope='module')
def config(tmp_path_factory):
  """Of a tiny model, on a folder of images that are made for it."""
  folder = tmp_path_factory.mktemp('images')
  setting_lib.write_images(folder, 160, (8, 8))
  return tiny.config(
    data__name=f'folder:{folder}',
    data__split='train',
    data__source_size=(8, 8),
    data__channels=3,
    model__pool='token',
    model__dropout_rate=0.1,
    evals__val__split='',
    checkpoint__every='',
    train__ema_decay=0.0,
    optim__clip_norm=1.0,
  )


@pytest.fixture(scope='module')
def bench(config):
  bench = measures.Bench(config, blocks=2, matmul_flops=1e9)
  bench.check()
  return bench


@pytest.mark.slow
def test_every_entry_has_its_ratio(bench):
  for part in ('infer', 'train', 'end_to_end'):
    entry = getattr(bench, part)()
    rates.check_rates(entry)
    if part == 'end_to_end':
      continue
    assert entry['against'] == 'baseline'
    assert entry['peak_memory_mb'] > 0 and entry['peak_memory_from']
    assert entry['gflops'] > 0 and entry['milliseconds_per_step'] > 0
    # Of tiny matrices, all else is much; and of the layers, none is forgotten.
    assert entry['compiled_gflop_per_step'] > 0.9 * entry['gflop_per_step'] > 0


def test_what_augmentation_costs(bench):
  entry = json.loads(json.dumps(bench.augment()))
  low, high = entry['range']
  assert low <= entry['extra'] <= high and entry['milliseconds_per_step'] > 0


def test_what_a_save_costs(bench):
  entry = json.loads(json.dumps(bench.checkpoint()))
  low, high = entry['range']
  assert 0 < low <= entry['seconds_blocked'] <= high
  assert entry['steps_blocked'] == pytest.approx(
    1e3 * entry['seconds_blocked'] / entry['milliseconds_per_step']
  )


@pytest.mark.slow
def test_transformers_in_turns(config):
  pytest.importorskip('torch', reason='needs torch and transformers')
  other_libraries.imported('transformers')
  bench = measures.Bench(config, 2, 1e9, 'transformers')
  bench.check()
  for entry in (bench.infer(), bench.train()):
    rates.check_rates(entry)
    assert entry['against'] == 'transformers'


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_scanned_layers_and_other_types(config, dtype):
  config = config.copy_and_resolve_references()
  config.model.scan, config.model.remat = True, 'full'
  config.train.dtype = dtype
  bench = measures.Bench(config, 1, 1e9)
  bench.check()
  rates.check_rates(bench.train())


def test_a_wrong_answer_is_not_timed(config, monkeypatch):
  bench = measures.Bench(config, 1, 1e9)
  right = bench.rival.logits()
  monkeypatch.setattr(bench.rival, 'logits', lambda: right + 0.1)
  with pytest.raises(config_lib.UserError, match='logits of baseline: ours'):
    bench.check()
  bench = measures.Bench(config, 1, 1e9)
  monkeypatch.setattr(bench.rival, 'logits', lambda: right * np.nan)
  with pytest.raises(config_lib.UserError, match='differs by nan'):
    bench.check()


def test_another_update_is_not_timed(config):
  """The second loss shows it."""
  bench = measures.Bench(config, 1, 1e9)
  create = bench._create

  def faster(task):
    optim = task.optim.copy_and_resolve_references()
    optim.learning_rate *= 3
    return create(dataclasses.replace(task, optim=optim))

  bench._create = faster
  with pytest.raises(config_lib.UserError, match='at step 1: ours differs'):
    bench.check()


def test_a_library_that_is_not_there(bench, monkeypatch):
  for name in ('timm', 'transformers'):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
      config_lib.UserError, match=f'pip install torch.* {name}'
    ):
      peers.create(name, bench.ours.task())
  with pytest.raises(config_lib.UserError, match='choose one of baseline'):
    peers.create('fastai', bench.ours.task())


def test_settings():
  with setting_lib.Setting(batch_size=22).changes() as changes:
    tutorial = setting_lib.config(changes)
    folder = tutorial.data.name.removeprefix('folder:')
    assert len([*os.scandir(f'{folder}/train')]) == 10
    assert sum(len(files) for *_, files in os.walk(folder)) == 12 * 22
  assert not os.path.exists(folder)
  assert tutorial.model.dropout_rate == 0.2
  setting = setting_lib.Setting(
    'ViT-Ti/16', image_size=96, dtype='bfloat16', scan=True, data='folder:x'
  )
  with setting.changes() as changes:
    config = setting_lib.config(changes)
  assert f'--config.data.name={config.data.name}' in setting_lib.flags(changes)
  assert (config.model.hidden_size, config.model.depth) == (192, 12)
  assert (config.model.num_classes, config.train.batch_size) == (1000, 32)
  assert (config.data.image_size, config.data.source_size) == (96, None)
  assert config.model.scan and config.train.dtype == 'bfloat16'
  for name in ('ViT-B', 'BiT-R50x1', 'R50+ViT-B/16'):
    with (
      pytest.raises(config_lib.UserError, match=r'^--model'),
      setting_lib.Setting(name).changes(),
    ):
      pass


def test_blocks_last_long_enough(monkeypatch):
  now, steps = 0.0, []

  def step(seconds):
    def take(count):
      nonlocal now
      now += seconds * count
      steps.append(count)

    return take

  clock = types.SimpleNamespace(perf_counter=lambda: now)
  monkeypatch.setattr(timing, 'time', clock)
  assert steps_per_block([step(2.0), step(5.0)]) == 1
  assert steps_per_block([step(0.25), step(5.0)]) == 4
  assert steps_per_block([step(2**-7), step(2**-6)]) == 2**7
  assert max(steps) == 13


def test_the_table():
  rates = timing.compare([1.0, 2.0, 4.0], [2.0, 2.0, 6.0], 128)
  assert rates['ratio'] == 1.5 and rates['ratio_range'] == [1.0, 2.0]
  assert rates['images_per_second'] == 64 and rates['range'] == [32, 128]
  train = rates | {'against': 'timm', 'gflops': 100.0, 'mfu': 0.5}
  table = report_lib.table(
    {
      'train': train,
      'input': {'crop/cv2': rates},
      'restart': {'seconds': 1.25},
      'device': 'cpu',
    }
  )
  header, row, crop, restart, rest = table.splitlines()
  assert crop.split()[:2] == ['input', 'crop/cv2']
  assert 'ratio' in header and 'train' in row and 'timm' in row
  assert '1.5 (1 - 2)' in row and '50.0% of peak' in row
  assert (restart, rest) == ('restart: seconds 1.25', 'device cpu')


@pytest.mark.parametrize('factor', [0.85, 0.75])
def test_the_guard(monkeypatch, capsys, factor):
  """It looks twice, and allows for less than a fifth."""
  calls = []

  class Bench:
    def __init__(self, *_, **__):
      self.check = lambda: calls.append('check')

    def infer(self):
      calls.append('infer')
      return {'ratio': guard.EXPECTED['infer']}

    def train(self):
      calls.append('train')
      return {'ratio': factor * guard.EXPECTED['train']}

  monkeypatch.setattr(measures, 'Bench', Bench)
  with pytest.raises(config_lib.UserError, match="unexpected argument 'x'"):
    guard.main(['guard', 'x'])
  status = guard.main([])
  assert status == (factor < 0.8)
  assert calls == ['check', 'infer'] + ['train'] * (1 + status)
  assert json.loads(capsys.readouterr().out).keys() == guard.EXPECTED.keys()


@pytest.mark.slow
def test_processes_of_their_own(monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(tiny.ROOT))
  monkeypatch.setenv('JAX_NUM_CPU_DEVICES', '1')
  entry = processes.parallel(tiny.config(), blocks=2)
  low, high = entry['ratio_range']
  assert 0 < low <= entry['ratio'] <= high
  entry = processes.allocator(tiny.config(), blocks=2)
  low, high = entry['ratio_range']
  assert 0 < low <= entry['ratio'] <= high
  for name in ('cpu_seconds_per_step', 'peak_memory_mb'):
    assert entry[name] > 0 and entry[f'baseline_{name}'] > 0
  # The cadences leave the run time to be stopped.
  flags = tiny.flags(train__duration='10_000 steps', evals__val__split='')
  entry = json.loads(json.dumps(processes.restart(flags, runs=1)))
  assert entry['ratio'] == pytest.approx(
    entry['warm_seconds'] / entry['cold_seconds']
  )
  assert entry['warm_seconds'] > 0
  # A resumed run may find all that its main thread needs in the cache.
  assert 0 <= entry['warm_compile_seconds'] < entry['cold_compile_seconds']
  with pytest.raises(RuntimeError, match='ended before a step'):
    processes.restart(['--config=missing.py'], runs=1)


def test_functions_take_turns():
  calls = []
  functions = {name: lambda name=name: calls.append(name) for name in 'ab'}
  times = timing.in_turns(functions, blocks=3, warmup=1)
  assert ''.join(calls) == 'abababab'
  assert {name: len(seconds) for name, seconds in times.items()} == {
    'a': 3,
    'b': 3,
  }
  summary = timing.summarize([1.0, 4.0, 2.0], images=8)
  assert summary == {'images_per_second': 4.0, 'range': [2.0, 8.0]}


@pytest.mark.slow
def test_the_command_prints_one_json_object():
  result = commands.python(
    *('-m', 'benchmarks', '--parts=infer'),
    *('--batch_size=4', '--blocks=1'),
  )
  assert result.returncode == 0, result.stderr
  report = json.loads(result.stdout)
  rates.check_rates(report['infer'])
  assert report['matmul_gflops'] > 0 and report['batch_size'] == 4
  assert report['attention'] is None and report['remat'] == 'auto'
  assert report['scan'] is False and 'torch_compile' not in report
  assert report['date'] and report['cores'] >= 1
  assert 'images/s' in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None,
  reason='needs libtpu: vit_jax[compile-tpu]',
)
def test_steps_compiled_for_a_tpu_have_ratios():
  config = tiny.config(
    model__pool='token',
    model__depth=2,
    model__hidden_size=128,
    model__num_classes=10,
    data__image_size=32,
    train__dtype='bfloat16',
  )
  report = compile_part.measure(config, topologies.parse('v5e:1x2'))
  assert report['devices'] == 2
  for key in ('temporary_gib', 'accessed_gb', 'tflop', 'copies'):
    actual, plain = report['ours'][key], report['plain'][key]
    assert actual > 0 and plain > 0
    assert report['ratios'][key] == pytest.approx(actual / plain)
  # The model is the same: only the plain one computes the last of two layers
  # in full.
  assert 0.5 < report['ratios']['tflop'] < 1.05
