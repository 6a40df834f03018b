"""The benchmark's report, with a tiny model; no time is asserted."""

import json
import os
import subprocess
import sys

import jax
import pytest
import tiny

from vit_jax.benchmark import measures
from vit_jax.benchmark import processes
from vit_jax.benchmark import timing


@pytest.fixture(scope='module')
def bench(tmp_path_factory):
  """A tiny model on a folder of images that are made for it."""
  folder = tmp_path_factory.mktemp('images')
  measures.write_images(folder, 160, size=8)
  config = tiny.config(
    data__name=f'folder:{folder}',
    data__split='train',
    data__source_size=(8, 8),
    model__pool='token',
    model__scan=False,
    evals__val__split='',
    checkpoint__every='',
    train__ema_decay=0.0,
  )
  return measures.Bench(config, blocks=2, matmul_flops=1e9)


def test_every_entry_has_its_ratio(bench):
  bench.check()
  for part in ('train', 'infer', 'input', 'end_to_end'):
    entry = json.loads(json.dumps(getattr(bench, part)()))
    assert entry['ratio'] == pytest.approx(
      entry['images_per_second'] / entry['baseline']
    )
    low, high = entry['range']
    assert 0 < low <= entry['images_per_second'] <= high
    if part in ('train', 'infer'):
      assert entry['peak_memory_mb'] > 0 and entry['gflops'] > 0
      assert entry['milliseconds_per_step'] > 0


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


def test_processes_of_their_own(monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(tiny.ROOT))
  monkeypatch.setenv('JAX_NUM_CPU_DEVICES', '1')
  entry = processes.parallel(tiny.config(), blocks=2)
  assert entry['ratio'] == pytest.approx(
    entry['images_per_second'] / entry['baseline']
  )
  # The cadences leave the run time to be stopped.
  flags = tiny.flags(train__duration='10_000 steps', evals__val__split='')
  entry = json.loads(json.dumps(processes.restart(flags, runs=1)))
  assert entry['ratio'] == pytest.approx(
    entry['warm_seconds'] / entry['cold_seconds']
  )
  assert entry['warm_seconds'] > 0 and entry['warm_compile_seconds'] > 0
  with pytest.raises(RuntimeError, match='ended before a step'):
    processes.restart(['--config=missing.py'], runs=1)


def test_a_wrong_answer_is_not_timed(bench, monkeypatch):
  wrong = jax.tree.map(lambda x: x + 0.1, bench._plain_params)
  monkeypatch.setattr(bench, '_plain_params', wrong)
  with pytest.raises(AssertionError, match='differ'):
    bench.check()


def test_functions_take_turns():
  calls = []
  functions = {name: lambda name=name: calls.append(name) for name in 'ab'}
  times = timing.in_turns(functions, blocks=3, warmup=1)
  assert ''.join(calls) == 'abababab'
  assert {name: len(seconds) for name, seconds in times.items()} == {
    'a': 3,
    'b': 3,
  }
  summary = timing.summarize([1.0, 4.0, 2.0], work=8)
  assert summary == {'median': 4.0, 'min': 2.0, 'max': 8.0}


def test_the_command_prints_one_json_object():
  command = [sys.executable, '-m', 'vit_jax.benchmark', '--parts=startup']
  command += ['--batch_size=8', '--blocks=1']
  env = os.environ | {'PYTHONPATH': str(tiny.ROOT)}
  env['JAX_NUM_CPU_DEVICES'] = '1'
  result = subprocess.run(
    command, env=env, capture_output=True, text=True, check=True
  )
  report = json.loads(result.stdout)
  assert report['startup']['seconds_to_first_step'] > 0
  assert report['matmul_gflops'] > 0
