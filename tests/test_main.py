"""The command, in processes of its own: signals, resuming, mistakes."""

import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys

import commands
from commands import CPU_ENV
import jax
import numpy as np
import pytest
import stand_in
import tiny

from vit_jax import main
from vit_jax.runs import restoring

# Metrics of a run's speed.
TIMED = r'^time$|_second|data_wait|goodput'


def start(*args, **kwargs):
  command = [sys.executable, '-m', 'vit_jax.main', *args]
  options = {'cwd': tiny.ROOT, 'env': CPU_ENV} | kwargs
  pipe = subprocess.PIPE
  return subprocess.Popen(
    command, stdout=pipe, stderr=pipe, text=True, **options
  )


def run(*args, **kwargs):
  process = start(*args, **kwargs)
  out, err = process.communicate(timeout=120)
  return process.returncode, out, err


def interrupt(process, step, number, kill=os.kill):
  """Sends a signal once the run has reported a step; returns what it said."""
  output = []
  for line in process.stderr:
    output.append(line)
    if line.startswith(f'step {step}/'):
      kill(process.pid, number)
      break
  err = process.communicate(timeout=120)[1]
  return process.returncode, ''.join(output) + err


@pytest.mark.slow
def test_killed_runs_end_in_the_same_bits(tmp_path):
  """SIGKILL at random moments, SIGTERM once; checkpoints fall in between."""
  flags = tiny.flags(
    **tiny.RANDOM,
    train__duration='40 steps',
    checkpoint__every='3 steps',
    checkpoint__best='val/accuracy',
    train__ema_decay=0.9,
    data__num_threads=2,
  )
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  status, _, err = run(*flags, f'--workdir={whole}')
  assert status == 0, err
  assert err.startswith(f'work directory: {whole}\n')
  log = (whole / 'train.log').read_text()
  for output in ('1,438 examples', 'step 40/40: loss'):
    assert output in err and output in log
  assert 'patch_embedding/kernel' in log  # the table of all parameters
  assert err.splitlines()[-1].startswith('done in ') and str(whole) in err
  rng = random.Random(int.from_bytes(os.urandom(2)))
  # Apart, so that a resumed run comes past the next one.
  steps = [rng.randrange(first, first + 4) for first in (4, 16, 28)]
  for step, number in zip(steps, [9, 15, 9], strict=True):
    process = start(*flags, f'--workdir={broken}')
    status, output = interrupt(process, step, number)
    if number == signal.SIGTERM:
      assert status == 143, output
      stopped = output.split('stopped at step ')[1].split()[0]
      assert stopped in os.listdir(broken / 'checkpoints')
    else:
      assert status == -signal.SIGKILL, output
  status, _, err = run(*flags, f'--workdir={broken}')
  assert status == 0 and 'resuming at step' in err
  for name in ('checkpoints', 'best'):
    assert set(os.listdir(whole / name)) == set(os.listdir(broken / name))
  jax.tree.map(
    np.testing.assert_array_equal,
    restoring.restore_params(whole)[0],
    restoring.restore_params(broken)[0],
  )
  # The metrics also equal a run that was never interrupted.
  lines = [
    [
      {k: v for k, v in line.items() if not re.search(TIMED, k)}
      for line in tiny.metrics(workdir)
      if 'train/useful_seconds' not in line  # one for each checkpoint
    ]
    for workdir in (whole, broken)
  ]
  assert lines[0] == lines[1], f'interrupted at {steps}'


@pytest.mark.slow
def test_a_signal_that_is_sent_twice_at_once(tmp_path):
  """As `timeout` does: to the process, and to the group that it is in."""

  def twice(pid, number):
    os.kill(pid, number)
    os.kill(pid, number)

  flags = tiny.flags(train__duration='10_000 steps')
  process = start(*flags, f'--workdir={tmp_path}/run')
  status, output = interrupt(process, 3, signal.SIGTERM, twice)
  assert status == 143 and 'saved' in output


@pytest.mark.slow
def test_ctrl_c_reaches_workers_too(tmp_path):
  """A terminal sends it to all processes; the run saves all the same."""
  root = stand_in.write_folder(tmp_path / 'images', train=8)
  flags = tiny.flags(
    data__name=f'folder:{root}',
    data__split='train',
    data__channels=3,
    data__num_workers=1,
    evals__val__split='',
    train__batch_size=8,
    train__duration='10_000 steps',
  )
  process = start(*flags, f'--workdir={tmp_path}/run', start_new_session=True)
  status, output = interrupt(process, 3, signal.SIGINT, os.killpg)
  assert status == 128 + signal.SIGINT, output
  assert 'saved' in output and 'Traceback' not in output


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder of images with an empty class."""
  root = tmp_path_factory.mktemp('images')
  for name in ('cat', 'dog'):
    (root / 'train' / name).mkdir(parents=True)
  (root / 'train' / 'cat' / '1.png').write_bytes(b'')
  return root


# Flags, and what is told of them. configs/mistakes.txt has mistakes in keys.
MISTAKES = [
  ('', '--config is missing'),
  (
    '--config=configs/digit.py',
    "no such file: did you mean 'configs/digits.py",
  ),
  ('--config=configs/digits.py:x', 'configs/digits.py: it takes'),
  ('{digits} --workdri=x', 'no flag --workdri: did you mean --workdir?'),
  ('{digits} --config.optim.lr=1', "no key 'optim.lr': did you mean"),
  ('{digits} --config.train.batch_size=many', '=many: write a whole number'),
  ('{digits} --config.optim.learning_rate=fast', 'write a number, as 0.001'),
  ('{digits} --config.data.flip=maybe', 'flip=maybe: write true or false'),
  ('{digits} --config.data.std=abc', 'each must be a finite number'),
  ('{digits} --config.train.duration=3', 'length of time'),
  ('{digits} --config.data.name=folder:{folder}', '{folder}/train/dog'),
  ('{digits} --reproduce=runs/x', 'config of the run: leave --config out'),
  ('{digits} configs/x.py', 'did you mean --config=configs/x.py?'),
  ('{digits} --config.train.duration=10 epochs', "'epochs': a value with spac"),
]


@pytest.mark.parametrize(('flags', 'message'), MISTAKES)
def test_mistakes_get_one_line(flags, message, folder, tmp_path, monkeypatch):
  monkeypatch.chdir(tiny.ROOT)
  places = {'digits': '--config=configs/digits.py', 'folder': folder}
  workdir = tmp_path / 'run'
  args = flags.format(**places).split()
  line = commands.mistake(main, *args, f'--workdir={workdir}')
  assert message.format(**places) in line
  assert not (workdir / 'checkpoints').exists()


def test_a_mistake_ends_a_process_with_status_1(tmp_path):
  flags = tiny.flags(model__num_heads=5)
  status, out, err = run(*flags, f'--workdir={tmp_path}/run')
  lines = [line for line in err.splitlines() if line.startswith('error: ')]
  assert status == 1 and len(lines) == 1, err
  assert 'Traceback' not in err and out == ''


def test_reproduce(digits_run, tmp_path, caplog, capsys):
  """The same command, once the new run is done, compares it again."""
  caplog.set_level('INFO', logger='absl')
  new = shutil.copytree(digits_run, tmp_path / 'new')
  args = f'--reproduce={digits_run}', f'--workdir={new}'
  assert commands.run(main, *args) == 0
  assert capsys.readouterr().out == ''
  lines = [x.getMessage() for x in caplog.records]
  assert lines[0].startswith(f'reproducing {digits_run}, begun ')
  assert lines[-1].startswith('equal to the bit: all '), lines
  assert 'is empty' in commands.mistake(main, '--reproduce=')
  message = commands.mistake(main, f'--reproduce={tmp_path}', '--replay=1')
  assert 'leave --replay out' in message


def test_an_unwritable_work_directory(tmp_path):
  (tmp_path / 'file').write_text('')
  workdir = f'--workdir={tmp_path}/file/run'
  message = commands.mistake(main, *tiny.flags(), workdir)
  assert 'cannot use work directory' in message


def test_a_run_that_is_refused_leaves_no_folder(tmp_path):
  there, new = tmp_path / 'there', tmp_path / 'new'
  there.mkdir()
  flags = tiny.flags(data__split='train[:2000]')
  for path in (there, new):
    message = commands.mistake(main, *flags, f'--workdir={path}')
    assert 'config.data.split' in message
  assert there.is_dir() and not new.exists()


@pytest.mark.slow
def test_tensorflow_is_never_imported(tmp_path):
  code = (
    'import sys\n'
    'sys.modules["tensorflow"] = None  # importing it fails\n'
    'import tiny\nfrom vit_jax import train\n'
    'config = tiny.config(train__duration="2 steps", optim__warmup="0 steps")\n'
    f'assert train(config, {str(tmp_path)!r}).status == 0\n'
  )
  env = CPU_ENV | {'PYTHONPATH': f'{tiny.ROOT}:{pathlib.Path(__file__).parent}'}
  subprocess.run([sys.executable, '-c', code], env=env, check=True)
