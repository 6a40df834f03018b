"""Sweeps: mostly with quick stand-ins for runs, and once with real ones."""

import csv
import dataclasses
import importlib.util
import io
import json
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

import case_files
import cv2
import numpy as np
import pytest
import scipy.stats
import stand_in_trials
import tiny

from vit_jax import config as config_lib

pytest.importorskip('optuna')
pytest.importorskip('matplotlib')

from vit_jax.runs import safe_io
from vit_jax.sweep import __main__ as command
from vit_jax.sweep import board
from vit_jax.sweep import loop
from vit_jax.sweep import picture
from vit_jax.sweep import runs
from vit_jax.sweep import space
from vit_jax.sweep import study as study_lib

CONFIG = f'--config={tiny.ROOT}/configs/digits.py'
GRID = """
  space={'optim.learning_rate': sweep.choice(0.01, 0.03),
         'optim.weight_decay': sweep.choice(0.0, 0.1, 0.2)},
  sampler='grid', seeds=(0, 1)"""
RANDOM = """
  space={'optim.learning_rate': sweep.uniform(0, 0.1)},
  sampler='random', trials=4"""
PATIENCE_S = 120


@pytest.fixture
def files(tmp_path):
  """Returns what writes a sweep file, and returns the flags for it."""

  def write(fields, name='sweep.py'):
    text = 'from vit_jax import sweep\n\n\ndef get_sweep(arg=""):\n'
    (tmp_path / name).write_text(f'{text}  return sweep.Sweep({fields})\n')
    path = tmp_path / 'sweep'
    return [CONFIG, f'--sweep={tmp_path / name}', f'--workdir={path}']

  return write


@pytest.fixture
def run(monkeypatch, capsys):
  """Returns what runs a sweep of stand-ins here, and returns its rows."""

  def run(*flags, status=0):
    monkeypatch.setattr(sys, 'argv', ['sweep', *flags, '--format=json'])
    for name in command.FLAGS:
      command.FLAGS[name].unparse()
    argv = command.cli.parse_flags(sys.argv, command.FLAGS)
    program = stand_in_trials.PROGRAM
    assert command.main(argv, program, poll_s=0.02) == status
    rows = json.loads(capsys.readouterr().out)
    return sorted(rows, key=lambda row: row['trial'])

  return run


def start(*flags):
  """Starts a sweep of stand-ins as a process of its own."""
  return subprocess.Popen(
    [sys.executable, stand_in_trials.__file__, 'sweep', *flags],
    env=os.environ | {'PYTHONPATH': str(tiny.ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def end(process, status=0):
  """Waits for a sweep; returns what it said on stderr."""
  _, err = process.communicate(timeout=PATIENCE_S)
  assert process.returncode == status, err
  return err


def until(condition):
  deadline = time.monotonic() + PATIENCE_S
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def folder(flags):
  return pathlib.Path(flags[2].removeprefix('--workdir='))


def hold(flags):
  """Has runs wait at step 4; returns what ends that."""
  path = folder(flags) / 'hold'
  path.parent.mkdir(exist_ok=True)
  path.touch()
  return path.unlink


def starts(flags, trial, seed=0):
  """Returns the process of each start of a run."""
  path = folder(flags) / f'trials/{trial:04d}/seed{seed}/starts'
  return list(map(int, path.read_text().split())) if path.exists() else []


def holds(flags, trial, seed=0):
  """Whether a run has come to step 4."""
  path = folder(flags) / f'trials/{trial:04d}/seed{seed}/saved'
  return path.exists() and path.read_text() == '4'


def leaderboard(flags):
  with (folder(flags) / 'leaderboard.csv').open() as file:
    return list(csv.DictReader(file))


def points(rows):
  return [(r['optim.learning_rate'], r['optim.weight_decay']) for r in rows]


@pytest.mark.slow
def test_two_processes_share_a_grid(files):
  flags = files(GRID)
  processes = [start(*flags, '--jobs=2') for _ in range(2)]
  errors = [end(process) for process in processes]
  began = [set(re.findall(r'^trial (\d+):', err, re.M)) for err in errors]
  assert sorted(map(int, [*began[0], *began[1]])) == list(range(6))
  rows = leaderboard(flags)
  expected = {(str(x), str(y)) for x in (0.01, 0.03) for y in (0.0, 0.1, 0.2)}
  assert len(rows) == 6 and set(points(rows)) == expected
  for row in rows:
    trial = int(row['trial'])
    assert row['state'] == 'complete'
    assert [len(starts(flags, trial, seed)) for seed in (0, 1)] == [1, 1]
    xy = map(float, points([row])[0])
    rate, decay = xy
    values = [stand_in_trials.value(rate, decay, seed) for seed in (0, 1)]
    assert [float(row[f'seed{seed}']) for seed in (0, 1)] == values
  means = [float(row['mean']) for row in rows]
  assert means == sorted(means, reverse=True)
  png = cv2.imread(str(folder(flags) / 'sweep.png'))
  assert png.std() > 20


@pytest.mark.slow
def test_a_killed_sweep_goes_on_with_the_run_that_it_left(files):
  flags = files(GRID)
  let_go = hold(flags)
  first = start(*flags)
  until(lambda: holds(flags, 0))
  first.kill()
  end(first, -signal.SIGKILL)
  second = start(*flags)
  # It waits for the run that lives, and does not start another one beside it.
  line = next(x for x in second.stderr if x.startswith('trial'))
  assert line.startswith('trial 0 goes on: ')
  let_go()
  end(second)
  assert len(leaderboard(flags)) == 6
  for trial in range(6):
    assert len(starts(flags, trial)) == 1


@pytest.mark.slow
def test_a_run_that_was_killed_with_its_sweep_is_resumed(files):
  flags = files(GRID)
  let_go = hold(flags)
  first = start(*flags, '--jobs=3')
  until(lambda: all(holds(flags, *at) for at in ((0, 0), (0, 1), (1, 0))))
  first.kill()
  for at in ((0, 0), (0, 1), (1, 0)):
    os.kill(starts(flags, *at)[0], signal.SIGKILL)
  end(first, -signal.SIGKILL)
  let_go()
  with (folder(flags) / 'journal.jsonl').open('a') as file:
    file.write('{"op_code":6,"trial_id"')  # as far as it had come
  end(start(*flags, '--jobs=3'))
  rows = leaderboard(flags)
  assert len(set(points(rows))) == len(rows) == 6
  counts = [len(starts(flags, *at)) for at in ((0, 0), (0, 1), (1, 0), (5, 1))]
  assert counts == [2, 2, 2, 1]
  path = folder(flags) / 'trials/0000/seed1'
  steps = [line['step'] for line in tiny.metrics(path)]
  assert steps == [2, 4, 6, 8, 10, 12]


@pytest.mark.slow
def test_what_one_process_leaves_another_takes(files):
  flags = files(RANDOM)
  let_go = hold(flags)
  processes = [start(*flags, '--jobs=2') for _ in range(2)]
  until(lambda: all(holds(flags, trial) for trial in range(4)))
  processes[0].send_signal(signal.SIGINT)
  assert 'stopping: 2 run(s) save and end\n' in end(processes[0], 130)
  assert [row['state'] for row in leaderboard(flags)] == ['unfinished'] * 4
  let_go()
  end(processes[1])
  assert [row['state'] for row in leaderboard(flags)] == ['complete'] * 4
  counts = sorted(len(starts(flags, trial)) for trial in range(4))
  assert counts == [1, 1, 2, 2]


def test_a_config_that_every_trial_refuses_ends_the_sweep(files, run):
  flags = files(RANDOM)
  flags.append('--config.optim.decay_pattern=refused')
  with pytest.raises(config_lib.UserError) as error:
    run(*flags)
  assert str(error.value) == (
    'the first 2 trials failed alike, and so would all: config.optim.warmup is'
    ' too long (status 1)'
  )
  states = [row['state'] for row in leaderboard(flags)]
  assert states == ['failed', 'failed']


def test_one_refused_value_does_not_end_the_sweep(files, run):
  """The first two trials share it and fail alike; the others work."""
  flags = files("""
    space={'optim.decay_pattern': sweep.choice('refused', 'kernel$'),
           'optim.weight_decay': sweep.choice(0.1, 0.2)},
    sampler='grid', sampler_seed=4""")
  rows = run(*flags)
  patterns = [row['optim.decay_pattern'] for row in rows]
  assert patterns == ['refused', 'refused', 'kernel$', 'kernel$']
  states = [row['state'] for row in rows]
  assert states == ['failed', 'failed', 'complete', 'complete']


def test_failures_are_recorded_and_do_not_end_the_sweep(files, run):
  flags = files("""
    space={'optim.decay_pattern': sweep.choice('kernel$', 'fails', 'dies')},
    sampler='grid', seeds=(0, 1)""")
  rows = {row['optim.decay_pattern']: row for row in run(*flags)}
  assert rows['kernel$']['state'] == 'complete'
  assert rows['fails']['state'] == rows['dies']['state'] == 'failed'
  assert rows['fails']['error'] == (
    'seed 0: the loss of step 6 is not finite (status 1)'
  )
  assert 'killed by SIGKILL' in rows['dies']['error']
  counts = [len(starts(flags, trial)) for trial in range(3)]
  assert counts == [1, 1, 1]
  again = run(*flags)  # and are not tried again
  assert {row['trial']: row for row in again} == {
    row['trial']: row for row in rows.values()
  }
  assert [len(starts(flags, trial)) for trial in range(3)] == counts


def test_runs_get_the_argument_of_the_config(files, run, tmp_path):
  """As it is: it may be an address, which is no path of this machine."""
  (tmp_path / 'config.py').write_text(
    'from vit_jax import config\n\n\n'
    "def get_config(arg=''):\n"
    f"  return config.load('{tiny.ROOT}/configs/digits.py')\n"
  )
  expected = f'{tmp_path}/config.py:gs://bucket/a/../b,digits'
  _, *flags = files("space={}, sampler='grid'")
  assert len(run(f'--config={expected}', *flags)) == 1
  there = tmp_path / 'sweep' / 'trials' / '0000' / 'seed0' / 'config'
  assert there.read_text() == expected


def test_a_sweep_without_a_result_says_why(files, run):
  flags = files("""
    space={'optim.decay_pattern': sweep.choice('fails')}, sampler='grid'""")
  with pytest.raises(config_lib.UserError, match='of step 6 is not finite'):
    run(*flags)


class Steps:
  """Starts runs that make a step at each look at them.

  Attributes:
    stopped: Work directories of those that were asked to stop.
  """

  def __init__(self, value=stand_in_trials.value):
    self.value = value
    self.stopped = []

  def start(self, flags, workdir):
    values = dict(flag.removeprefix('--config.').split('=') for flag in flags)
    return Steps.Run(self, values, workdir)

  class Run:
    def __init__(self, launcher, given, workdir):
      self.launcher, self.workdir = launcher, workdir
      self.rate = float(given.get('optim.learning_rate', 0))
      self.decay = float(given.get('optim.weight_decay', 0))
      self.seed = int(given['seed'])
      self.step = 0

    def poll(self):
      if self.workdir in self.launcher.stopped:
        return runs.Ended(143, 'stopped')
      self.workdir.mkdir(exist_ok=True)
      self.step += 1
      x = self.launcher.value(self.rate, self.decay, self.seed, self.step)
      line = {'step': self.step, 'val/accuracy': x, 'val/loss': -x}
      with (self.workdir / 'metrics.jsonl').open('a') as file:
        file.write(json.dumps(line) + '\n')
      if self.step < stand_in_trials.STEPS:
        return None
      (self.workdir / 'DONE').touch()
      return runs.Ended(0)

    def stop(self):
      self.launcher.stopped.append(self.workdir)


def conduct(flags, launcher=None, jobs=1):
  """Runs a sweep without processes; returns its rows."""
  sweep = space.load(flags[1].removeprefix('--sweep='))
  study = study_lib.Study(folder(flags), sweep, space.check(sweep, [CONFIG]))
  assert loop.run(study, launcher or Steps(), [CONFIG], jobs, poll_s=0) == 0
  return study.rows()


def test_bad_trials_are_pruned(files):
  flags = files("""
    space={'optim.learning_rate': sweep.choice(*(0.01 * i for i in range(9)))},
    sampler='grid', seeds=(0, 1), pruner='median', prune_after_trials=2,
    prune_after_steps=4""")
  launcher = Steps()
  rows = conduct(flags, launcher, jobs=2)
  done, pruned = [], []
  for row in rows:
    rate = row.point['optim.learning_rate']
    means = [
      statistics.fmean(
        stand_in_trials.value(rate, 0, seed, step) for seed in (0, 1)
      )
      for step in range(1, 13)
    ]
    # Optuna's rule, from step 4 on and once two are done.
    bad = len(done) >= 2 and means[3] < statistics.median(x[3] for x in done)
    assert row.state == ('pruned' if bad else 'complete')
    assert row.step == (4 if bad else 12)
    assert row.value == pytest.approx(means[row.step - 1])
    assert len(row.seeds) == (0 if bad else 2)
    (pruned if bad else done).append(means)
  assert len(pruned) >= 2
  assert len(launcher.stopped) == 2 * len(pruned)


def test_a_trial_with_all_its_steps_is_complete(files):
  """Though the value of its last step would have it pruned."""
  flags = files("""
    space={'optim.learning_rate': sweep.choice(0.01, 0.02, 0.03)},
    sampler='grid', pruner='median', prune_after_trials=1,
    prune_after_steps=12""")
  rows = conduct(flags)
  assert [row.state for row in rows] == ['complete'] * 3
  assert len({row.value for row in rows}) == 3


def test_of_one_run_at_a_time_the_first_seed_decides(files):
  flags = files("""
    space={'optim.learning_rate': sweep.choice(.01, .02, .0, .05, .001, .06)},
    sampler='grid', seeds=(0, 1), pruner='median', prune_after_trials=1""")
  launcher = Steps()
  rows = conduct(flags, launcher)
  pruned = [row.number for row in rows if row.state == 'pruned']
  assert pruned
  assert [(x.parent.name, x.name) for x in launcher.stopped] == [
    (f'{number:04d}', 'seed0') for number in pruned
  ]
  trials = folder(flags) / 'trials'
  assert not (trials / f'{pruned[0]:04d}' / 'seed1').exists()


def test_halving_stops_most_trials_early(files):
  flags = files("""
    space={'optim.learning_rate': sweep.uniform(0, 0.1)}, sampler='random',
    trials=24, pruner='halving'""")
  rows = conduct(flags)
  states = [row.state for row in rows]
  assert states.count('pruned') >= 12 and 'complete' in states
  best = max(rows, key=lambda row: row.value)
  assert best.state == 'complete'


def test_points_depend_on_the_seed_and_not_on_restarts(files):
  fields = """
    space={'optim.learning_rate': sweep.log_uniform(1e-4, 1e-1),
           'model.depth': sweep.integers(1, 8),
           'optim.weight_decay': sweep.choice(0.0, 0.1)},
    sampler='tpe', trials=%d, sampler_seed=%d"""
  flags = files(fields % (5, 1))
  conduct(flags)
  stopped = conduct(files(fields % (13, 1)))  # it goes on
  flags[2] += '_again'
  whole = conduct(flags[:1] + files(fields % (13, 1))[1:2] + flags[2:])
  assert [row.point for row in stopped] == [row.point for row in whole]
  assert len({row.point['optim.learning_rate'] for row in whole}) == 13
  assert {row.point['model.depth'] for row in whole} <= set(range(1, 9))
  flags[2] += '_other'
  other = conduct(flags[:1] + files(fields % (1, 2))[1:2] + flags[2:])
  assert other[0].point != whole[0].point


@pytest.mark.parametrize(
  'pick, direction, wanted',
  [('last', 'maximize', 1), ('best', 'maximize', 5), ('best', 'minimize', -2)],
)
def test_the_value_is_the_last_or_the_best(pick, direction, wanted, files):
  flags = files(f"""
    space={{}}, sampler='grid', pick='{pick}', direction='{direction}'""")
  curve = [0, 5, 2, -2, *[0] * 7, 1]
  (row,) = conduct(
    flags, Steps(lambda rate, decay, seed, step: curve[step - 1])
  )
  assert row.value == wanted


def test_a_value_that_is_not_finite_is_a_failure(files):
  flags = files("space={}, sampler='grid'")
  (row,) = conduct(flags, Steps(lambda *_: math.nan))
  assert row.state == 'failed'
  assert row.error == 'val/accuracy is not finite'


def test_intervals_are_students(files):
  flags = files(GRID.replace('(0, 1)', '(0, 1, 2)'))
  rows = conduct(flags)
  sweep = space.load(flags[1].removeprefix('--sweep='))
  board.write_csv(rows, sweep, folder(flags))
  for row in leaderboard(flags):
    values = [float(row[f'seed{seed}']) for seed in range(3)]
    low, high = scipy.stats.t.interval(
      0.95, 2, scipy.stats.tmean(values), scipy.stats.sem(values)
    )
    assert float(row['mean']) == pytest.approx(statistics.fmean(values))
    assert float(row['low']) == pytest.approx(low)
    assert float(row['high']) == pytest.approx(high)
    assert float(row['deviation']) == pytest.approx(statistics.stdev(values))
    assert row['seeds'] == '3'


@pytest.mark.slow
def test_runs_are_jobs_of_submitit(files):
  """They are told to stop, resumed, and fail, like others."""
  if importlib.util.find_spec('submitit') is None:  # it changes our logging
    pytest.skip('needs submitit')
  flags = files("""
    space={'optim.decay_pattern': sweep.choice('kernel$', 'fails')},
    sampler='grid', sampler_seed=1""")
  flags += ['--slurm', '--local', '--jobs=2', '--grace_s=1']
  let_go = hold(flags)
  process = start(*flags)
  until(lambda: holds(flags, 0) and holds(flags, 1))
  process.send_signal(signal.SIGTERM)
  end(process, 143)
  assert [row['state'] for row in leaderboard(flags)] == ['unfinished'] * 2
  let_go()
  end(start(*flags))
  rows = {row['optim.decay_pattern']: row for row in leaderboard(flags)}
  assert rows['kernel$']['state'] == 'complete'
  assert len(starts(flags, int(rows['kernel$']['trial']))) == 2
  assert rows['fails']['state'] == 'failed'


@pytest.mark.slow
def test_a_real_run_is_stopped_and_resumed(files):
  flags = files("""
    space={'optim.learning_rate': sweep.choice(3e-3)}, sampler='grid',
    metric='val/loss', direction='minimize', pruner='median'""")
  keys = tiny.flags(
    train__duration='600 steps',
    train__log_every='10 steps',
    evals__val__every='300 steps',
    checkpoint__every='300 steps',
  )

  def real():
    return subprocess.Popen(
      [sys.executable, '-m', 'vit_jax.sweep', *flags, *keys[1:]],
      env=os.environ
      | {'PYTHONPATH': str(tiny.ROOT), 'JAX_NUM_CPU_DEVICES': '1'},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  process = real()
  workdir = folder(flags) / 'trials/0000/seed0'
  until(lambda: (workdir / 'metrics.jsonl').exists() and tiny.metrics(workdir))
  process.send_signal(signal.SIGTERM)
  end(process, 143)
  log = (workdir.parent / 'seed0.log').read_text()
  stopped = re.search(r'stopped at step (\d+) of 600; saved', log)
  assert leaderboard(flags)[0]['state'] == 'unfinished'
  end(real())
  log = (workdir.parent / 'seed0.log').read_text()
  assert f'resuming at step {stopped[1]} of 600' in log
  (row,) = leaderboard(flags)
  done = json.loads((workdir / 'DONE').read_text())
  assert float(row['mean']) == done['val/loss']
  lines = tiny.metrics(workdir)
  steps = [line['step'] for line in lines if 'train/loss' in line]
  assert steps == [1, *range(10, 601, 10)]
  config = json.loads((workdir / 'config.json').read_text())
  assert config['optim']['learning_rate'] == 3e-3
  assert config['model']['hidden_size'] == tiny.TINY['model.hidden_size']


def test_another_sweep_in_the_same_place_is_refused(files, run, monkeypatch):
  conduct(files(GRID))
  flags = files(GRID.replace('0.03', '0.04').replace('(0, 1)', '(0, 2)'))
  with pytest.raises(config_lib.UserError) as e:
    run(*flags, '--config.train.batch_size=64', '--config.mesh.data=1')
  text = str(e.value)
  assert 'space.optim.learning_rate: choice(0.01, 0.03) -> choice(' in text
  assert 'seeds: [0, 1] -> [0, 2]' in text
  assert 'train.batch_size: 32 -> 64' in text
  assert 'mesh' not in text  # each machine has its own
  with pytest.raises(config_lib.UserError, match='trials: 6 -> 2;'):
    run(*files(GRID), '--trials=2')


def test_a_lost_journal_is_said(files):
  flags = files(GRID)
  conduct(flags)
  path = folder(flags) / 'journal.jsonl'
  path.write_text('nothing\n' + path.read_text())
  with pytest.raises(
    config_lib.UserError, match=r'cannot read .*journal\.jsonl'
  ):
    conduct(flags)


@pytest.mark.parametrize(
  ('kind', 'text', 'message'),
  case_files.read(pathlib.Path(__file__).with_name('mistakes.txt')),
)
def test_mistakes_are_one_line(kind, text, message, files, run):
  flags = files(GRID if kind == 'flag' else text)
  flags += ['--jobs=2', text] if kind == 'flag' else []
  with pytest.raises(config_lib.UserError) as e:
    run(*flags)
  assert message in str(e.value) and '\n' not in str(e.value)
  assert not folder(flags).exists()


def test_slurm_has_to_be_there(files, monkeypatch):
  if importlib.util.find_spec('submitit') is None:
    pytest.skip('needs submitit')
  monkeypatch.setenv('PATH', '')
  err = end(start(*files(GRID), '--slurm'), 1)
  assert err.startswith('error: srun is not here') and err.count('\n') == 1


def test_what_is_missing_is_named(files, run, monkeypatch):
  flags = files(GRID)
  with pytest.raises(config_lib.UserError, match='--config is missing'):
    run(*flags[1:])
  with pytest.raises(config_lib.UserError, match='--sweep is missing'):
    run(flags[0])
  find = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util, 'find_spec', lambda x: None if x == 'optuna' else find(x)
  )
  with pytest.raises(config_lib.UserError) as e:
    run(*flags)
  assert str(e.value) == (
    "a sweep needs optuna: run pip install 'vit_jax[sweep]'"
  )


def test_the_work_directory_of_a_run_is_refused(files, run):
  flags = files(GRID)
  folder(flags).mkdir()
  (folder(flags) / 'config.json').write_text('{}')
  with pytest.raises(config_lib.UserError, match='work directory of a run'):
    run(*flags)


VALUES = {
  'model.block': (None, 'block(layer_scale=0.1)'),
  'data.flip': (True, False),
  'data.crop': ('pad(1)', 'random_resized(scale=(0.5, 1.0))'),
  'optim.name': ('adamw(b2=0.95)', 'sgd(momentum=0.9)'),
  'optim.schedule': ('cosine', "wsd('1 epochs', final_factor=0.1)"),
  'optim.rules': ((), (('^head/', 10.0, 0.0),)),
  'model.patch_size': (2, (2, 4)),
  'model.name': ('ViT-Ti/2', 'ViT-S/2'),
}


def test_values_of_any_type_come_through_the_command_line():
  for key, values in VALUES.items():
    sweep = space.Sweep({key: space.choice(*values)}, 'grid')
    space.check(sweep, [CONFIG])
    for value in values:
      config = space.parse([CONFIG], {key: value})
      assert dict(config_lib.flatten(config))[key] == value


@pytest.mark.parametrize(
  'path',
  sorted((tiny.ROOT / 'configs/sweeps').glob('*.py')),
  ids=lambda x: x.name,
)
def test_the_sweeps_that_come_with_us_fit_the_digits(path):
  sweep = space.load(str(path))
  space.check(sweep, [CONFIG])
  assert sweep.total() in (1, 12, 20)


def test_gpus_are_shared_out():
  assert command._shares('0,1, 2,3', 2) == ['0,1', '2,3']


def test_a_gpu_is_free_again_though_the_lock_cannot_be_read(
  tmp_path, monkeypatch
):
  def read_text(path):
    raise OSError(f'cannot read {path}')

  monkeypatch.setattr(safe_io, 'read_text', read_text)
  gpus = []
  code = 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])'
  launcher = runs.Processes((sys.executable, '-c', code), ['3'])
  for name in ('first', 'second'):
    run = launcher.start([], tmp_path / name)
    until(lambda run=run: run.poll() is not None)
    gpus.append((tmp_path / f'{name}.log').read_text())
  assert gpus == ['3\n', '3\n']


def test_an_infinite_value_of_a_point_stays_in_the_leaderboard(tmp_path):
  sweep = space.Sweep({'optim.clip_norm': space.choice(1.0, math.inf)}, 'grid')
  row = study_lib.Row(
    number=0,
    point={'optim.clip_norm': math.inf},
    state='complete',
    step=1,
    value=math.inf,
    seeds={0: math.inf},
    error='',
  )
  entry = board.entry(row, sweep, tmp_path)
  assert entry['optim.clip_norm'] == math.inf
  assert [entry[key] for key in ('mean', 'low', 'high', 'seed0')] == [None] * 4
  picture.draw(
    [row, dataclasses.replace(row, value=0.5)], sweep, tmp_path / 'x'
  )


def rows_of_all_kinds(count=12):
  states = ('complete', 'pruned', 'failed', 'unfinished')
  return [
    study_lib.Row(
      number=i,
      point={
        'optim.learning_rate': 10 ** (-4 + i / 5),
        'model.depth': i % 8 + 1,
        'augment.policy': ('', 'randaugment(2,10)')[i % 2],
        'optim.weight_decay': (0.01, 0.1, 1.0)[i % 3],
      },
      state=states[max(i - 5, 0) % 4] if i > 5 else 'complete',
      step=100 * i,
      value=None if i % 7 == 6 else 0.9 - 0.01 * i,
      seeds={0: 0.9 - 0.01 * i, 1: 0.89 - 0.01 * i},
      error='',
    )
    for i in range(count)
  ]


SWEEP = space.Sweep(
  space={
    'optim.learning_rate': space.log_uniform(1e-4, 1e-1),
    'model.depth': space.integers(1, 8),
    'augment.policy': space.choice('', 'randaugment(2,10)'),
    'optim.weight_decay': space.choice(0.01, 0.1, 1.0),
  },
  trials=12,
  seeds=(0, 1),
)


def test_a_picture_has_a_panel_for_each_key(tmp_path):
  path = tmp_path / 'sweep.png'
  picture.draw(rows_of_all_kinds(), SWEEP, path)
  image = cv2.imread(str(path))
  height, width = image.shape[:2]
  for part in (
    image[: height // 2, : width // 2],
    image[: height // 2, width // 2 :],
    image[height // 2 :, : width // 2],
    image[height // 2 :, width // 2 :],
  ):  # blue, as BGR
    assert (abs(part.astype(int) - (0xB2, 0x72, 0)).max(-1) < 20).sum() > 50
  assert os.listdir(tmp_path) == ['sweep.png']


def test_numbers_of_a_choice_are_in_order(tmp_path):
  images = []
  for values in ((0.01, 0.1, 1.0), (1.0, 0.01, 0.1)):
    sweep = space.Sweep({'optim.weight_decay': space.choice(*values)}, 'grid')
    picture.draw(rows_of_all_kinds(), sweep, tmp_path / 'sweep.png')
    images.append(cv2.imread(str(tmp_path / 'sweep.png')))
  np.testing.assert_array_equal(*images)


def test_a_grid_frames_the_best_trial_and_is_replaced_whole(tmp_path):
  keys = {
    'augment.policy': space.choice('', 'randaugment(2,10)'),
    'optim.weight_decay': space.choice(0.01, 0.1, 1.0),
  }
  sweep = space.Sweep(keys, 'grid', seeds=(0, 1))
  path, before = tmp_path / 'sweep.png', tmp_path / 'before.png'
  rows = rows_of_all_kinds(5)
  picture.draw(rows, sweep, path)
  before.hardlink_to(path)
  image = cv2.imread(str(path)).astype(int)
  red, grey = (0x00, 0x5E, 0xD5), (0xEE, 0xEE, 0xEE)  # as BGR
  assert (image == red).all(-1).sum() > 500
  # The sixth trial has not begun.
  assert (image == grey).all(-1).sum() > 1000
  # The number of the best trial is in the title.
  rows[0] = dataclasses.replace(rows[0], number=7)
  picture.draw(rows, sweep, path)
  changed = (cv2.imread(str(path)) != image).any(-1).nonzero()[0]
  assert 0 < len(changed) and changed.max() < 60
  assert not before.samefile(path)


def test_the_live_table_fits_the_terminal(monkeypatch):
  monkeypatch.setenv('LINES', '10')
  monkeypatch.setenv('COLUMNS', '60')
  terminal = tiny.Terminal()
  monkeypatch.setattr(sys, 'stderr', terminal)
  with board.Board(SWEEP) as shown:
    shown.show(rows_of_all_kinds())
    lines = terminal.getvalue().splitlines()
    assert len(lines) <= 9 and max(map(len, lines)) <= 60
    assert lines[0].split()[:2] == ['trial', 'policy']
    assert lines[1].split()[0] == '0'  # the best
    assert lines[-1] == '... and 6 more'
    shown.show(rows_of_all_kinds())
  assert terminal.getvalue().count(f'\x1b[{len(lines)}A\x1b[J') == 2
  silent = io.StringIO()
  monkeypatch.setattr(sys, 'stderr', silent)
  with board.Board(SWEEP) as shown:
    shown.show(rows_of_all_kinds())
  assert silent.getvalue() == ''


def test_a_lock_is_held_by_one(tmp_path):
  first, second = (safe_io.Lock(tmp_path / 'lock') for _ in range(2))
  with first:
    assert not second.acquire(wait=False)
  assert second.acquire(wait=False)
  second.release()
