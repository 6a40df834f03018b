"""What the tests of training methods have in common."""

import itertools
import re
import shutil

import jax
import numpy as np
import pytest
import tiny

from vit_jax.data.device.rng import Rng
from vit_jax.runs import checkpoint
from vit_jax.runs import restoring
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

TIMES = re.compile('time|second|data_wait|goodput|mfu|stall')
# Ways to compute the same run.
LAYOUTS = {
  '8 devices': {'mesh__data': 2, 'mesh__fsdp': 4, 'mesh__min_size': 0},
  'accumulated': {'mesh__data': 1, 'train__accumulation': 2},
}


def finished(make_config):
  """Returns a fixture: the work directory of a finished run of a config."""

  @pytest.fixture(scope='module')
  def run(tmp_path_factory):
    path = tmp_path_factory.mktemp('runs') / 'run'
    assert loop.run(make_config(), str(path)).status == 0
    return path

  return run


def scalars(path):
  """Returns what was measured, but for times."""
  return [
    {k: v for k, v in line.items() if not TIMES.search(k)}
    for line in tiny.metrics(path)
    if 'train/loss' in line or 'val/loss' in line
  ]


def losses(path):
  """Returns the training losses of a run, step by step."""
  return [x['train/loss'] for x in tiny.metrics(path) if 'train/loss' in x]


def final_state(path):
  """Returns the checksums of all arrays of the last checkpoint."""
  folder = workdir_lib.newest_first(path / 'checkpoints')[0]
  arrays = restoring.read_info(folder)['arrays']
  return {name: x['checksum'] for name, x in arrays.items()}


def train(config, path=None):
  """Takes all steps as the loop does, with no evaluation, checkpoint or log.

  Args:
    config: Its config.
    path: A work directory; the steps go on from its newest checkpoint. None:
      from the beginning.

  Returns:
    (the last state, the scalars of each step by its number).
  """
  experiment_lib.check(config)
  experiment = experiment_lib.build(config, resumes=path is not None)
  state = restored(experiment, path) if path else experiment.init()
  step, scalars_by_step = int(state.step), {}
  calls, lengths = itertools.tee(experiment.calls(step))
  with experiment.train_batches(step, lengths) as batches:
    while step < experiment.total_steps:
      length = next(calls)
      program = experiment.program.variant(step)
      function = program.train_step if length == 1 else program.train_steps
      state, scalars = function(state, next(batches), np.int32(step))
      for i, values in enumerate(per_step(jax.device_get(scalars), length)):
        scalars_by_step[step + i + 1] = values
      step += length
  return state, scalars_by_step


def training_losses(config):
  """Returns the training losses of a config, step by step, as `train` does."""
  return [x['loss'] for x in train(config)[1].values()]


def per_step(scalars, length):
  """Yields the scalars of each step of a call."""
  for i in range(length):
    yield {k: x if length == 1 else x[i] for k, x in scalars.items()}


def restored(experiment, path):
  """Returns the state of the newest checkpoint of a work directory."""
  state, *_ = restoring.newest_good(
    path / 'checkpoints', experiment.program.state_to_read
  )
  return experiment.program.adopt(state)


def assert_resumes_to_the_bit(config, path, copy):
  """Checks that the last checkpoint but one leads to the bits of the last.

  Args:
    config: Its config.
    path: Work directory of a finished run.
    copy: A new directory.
  """
  shutil.copytree(path, copy)
  shutil.rmtree(workdir_lib.newest_first(copy / 'checkpoints')[0])
  state, scalars_by_step = train(config, path=copy)
  losses_by_step = {
    line['step']: line['train/loss']
    for line in tiny.metrics(path)
    if 'train/loss' in line
  }
  for step, values in scalars_by_step.items():
    assert values['loss'] == np.float32(losses_by_step[step]), step
  assert checkpoint.checksums(state) == final_state(path)


def assert_a_run_resumes_to_the_bit(config, path, copy):
  """Checks that a run without its last checkpoint ends in the same bits.

  Args:
    config: Its config.
    path: Its work directory.
    copy: A new directory.
  """
  shutil.copytree(path, copy)
  expected = scalars(copy)
  (copy / 'DONE').unlink()
  shutil.rmtree(workdir_lib.newest_first(copy / 'checkpoints')[0])
  assert loop.run(config, str(copy)).status == 0
  assert scalars(copy) == expected
  assert final_state(copy) == final_state(path)


def assert_same_result(config, path):
  """Checks that the steps of a config give what a finished run reported.

  Args:
    config: That of the run, computed in another way.
    path: Work directory of the run.
  """
  _, scalars_by_step = train(config)
  for line in tiny.metrics(path):
    if 'train/loss' in line:
      for name, value in scalars_by_step[line['step']].items():
        if (expected := line.get(f'train/{name}')) is not None:
          assert value == pytest.approx(expected, rel=2e-3, abs=1e-4), name


def assert_learns(objective, batch):
  """Checks that the gradient of a batch lowers its loss."""
  params = jax.jit(objective.init)(jax.random.key(0))
  extra = objective.init_extra(params)
  rows = np.arange(len(batch['image']), dtype=np.int32)
  rng = Rng(jax.random.key(1), rows)

  @jax.jit
  def loss_fn(params):
    return objective.loss(params, extra, batch, rng)[0]

  before, grads = jax.jit(jax.value_and_grad(loss_fn))(params)
  after = loss_fn(jax.tree.map(lambda p, g: p - 0.01 * g, params, grads))
  assert np.isfinite(before) and after < before
