"""One run on several processes, for real: on CPUs of this machine."""

import json
import os
import pathlib
import signal
import time

import jax
import numpy as np
import processes
import pytest
import stand_in
import tiny

from vit_jax import data
from vit_jax.runs import restoring
from vit_jax.train import loop

MAIN = ['-m', 'vit_jax.main']
STEPS = 60
RUN = {
  'train__duration': f'{STEPS} steps',
  'train__batch_size': 24,
  'evals__val__every': '25 steps',
  'checkpoint__every': '10 steps',
  # Adam would enlarge what the order of sums makes of gradients that are 0.
  'optim__name': 'sgd',
  'optim__learning_rate': 0.05,
  'model__hidden_size': 64,  # large enough for a part on each device
  'mesh__data': -1,
}


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
  """The work directory of an undisturbed run in this process, on one device."""
  path = tmp_path_factory.mktemp('runs') / 'reference'
  assert loop.run(tiny.config(**RUN | {'mesh__data': 1}), str(path)).status == 0
  return path


def command(workdir, **overrides):
  return [*MAIN, *tiny.flags(**RUN | overrides), f'--workdir={workdir}']


@pytest.mark.slow
def test_killed_and_resumed_on_any_number(reference, tmp_path):
  """Two processes, then four, then one; each stopped in another way.

  The two make several steps in a call, of images that they keep.
  """
  workdir = tmp_path / 'run'
  calls = {'train__steps_per_call': 5, 'data__cache': 'device'}
  several = command(workdir, **calls)
  with processes.start(several, 2, tmp_path / 'two') as group:
    processes.wait_for_step(group, workdir, 12)
    os.kill(group.members[1].pid, signal.SIGTERM)  # one hears it, both stop
    assert group.statuses() == [143, 143], group.log(0)
    assert 'stopped at step' in group.log(0)
    assert 'step' not in group.log(1)  # process 0 alone says what happens
  stopped = max(line['step'] for line in tiny.metrics(workdir))
  assert str(stopped) in os.listdir(workdir / 'checkpoints')

  fsdp = command(workdir, mesh__fsdp=2)
  with processes.start(fsdp, 4, tmp_path / 'four') as group:
    processes.wait_for_step(group, workdir, stopped + 12)
    killed = time.monotonic()
    group.members[2].kill()
    assert group.statuses() == [1, 1, -signal.SIGKILL, 1]
    assert time.monotonic() - killed < 120
    for i in (0, 1, 3):
      errors = [x for x in group.log(i).splitlines() if x.startswith('error:')]
      assert len(errors) == 1, group.log(i)
      assert 'run the same command again to resume' in errors[0]
  assert not (workdir / 'DONE').exists()

  with processes.start(command(workdir), 1, tmp_path / 'one', 3) as group:
    assert group.statuses() == [0], group.log(0)
    assert 'resuming at step' in group.log(0)

  resumed, undisturbed = tiny.metrics(workdir), tiny.metrics(reference)
  for name, tolerance in (('train/loss', 1e-4), ('val/loss', 1e-4)):
    actual, expected = (
      [(line['step'], line[name]) for line in lines if name in line]
      for lines in (resumed, undisturbed)
    )
    np.testing.assert_allclose(actual, expected, rtol=tolerance)
  counts = [line['val/examples'] for line in resumed if 'val/loss' in line]
  assert counts == [359] * 3  # 15 batches of 24, the last one is padded
  params = [restoring.restore_params(path)[0] for path in (workdir, reference)]
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      np.linalg.norm(a - b), 0, atol=1e-4 * np.linalg.norm(b) + 1e-6
    ),
    *params,
  )


@pytest.mark.slow
def test_each_process_reads_its_own_part(tmp_path):
  """All batches equal one process's, whatever step they begin at."""
  root = stand_in.write_folder(tmp_path / 'images', train=24)
  overrides = {
    'data__name': f'folder:{root}',
    'data__split': 'train',
    'data__channels': 3,
    'evals__val__split': 'train[3:]',  # does not divide
    'train__batch_size': 8,
    'train__duration': '5 steps',
  }
  config = tiny.config(**overrides)
  source = data.open_source(config, 'train')
  expected = [
    batch['index'].tolist()
    for batch in data.train_batches(source, config, start_step=2, num_steps=5)
  ]
  show = [str(tiny.TESTS.joinpath('show_batches.py'))]
  show += tiny.flags(**overrides | {'mesh__data': -1})
  with processes.start(show, 2, tmp_path / 'two', devices=2) as group:
    assert group.statuses() == [0, 0], group.log(0)
    actual = [json.loads(group.log(i).splitlines()[-1]) for i in range(2)]
  assert actual[0]['global'] == actual[1]['global']
  assert actual[0]['global'][:3] == expected
  evaluated = sorted(i for batch in actual[0]['global'][3:] for i in batch)
  assert [i for i in evaluated if i >= 0] == list(range(3, len(source)))
  for k in range(2):
    half = slice(4 * k, 4 * k + 4)
    part = {i for batch in actual[k]['global'] for i in batch[half] if i >= 0}
    assert set(actual[k]['read']) == part


@pytest.mark.slow
def test_a_damaged_image_stops_all(tmp_path):
  """The process that reads it names it; nothing done before is lost."""
  root = stand_in.write_folder(tmp_path / 'images', train=16)
  overrides = {
    'data__name': f'folder:{root}',
    'data__split': 'train',
    'data__channels': 3,
    'evals__val__split': '',
    'train__batch_size': 8,
    'mesh__data': -1,
  }
  config = tiny.config(**overrides)
  source = data.open_source(config, 'train')
  batches = list(data.train_batches(source, config, start_step=0, num_steps=2))
  last = batches[1]['index'][-1]  # of the second half: process 1 reads it
  path = next(
    e.origin for e in map(source.read, range(len(source))) if e.index == last
  )
  pathlib.Path(path).write_bytes(b'no image')
  workdir = tmp_path / 'run'
  flags = [*MAIN, *tiny.flags(**overrides), f'--workdir={workdir}']
  with processes.start(flags, 2, tmp_path / 'logs') as group:
    assert group.statuses() == [1, 1]
    assert f'error: {path}' in group.log(1)
    assert 'error: another process could not make its part' in group.log(0)
  assert os.listdir(workdir / 'checkpoints') == ['1']


def test_what_only_the_first_finds_wrong_stops_all(tmp_path):
  workdir = tmp_path / 'file'
  workdir.write_text('')
  with processes.start(command(workdir), 2, tmp_path / 'logs') as group:
    assert group.statuses() == [1, 1]
    for i in range(2):
      assert 'error: cannot use work directory' in group.log(i)
      assert 'Traceback' not in group.log(i)
