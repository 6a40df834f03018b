"""What the tests of training methods have in common."""

import re
import shutil

import jax
import numpy as np
import pytest
import tiny

from vit_jax.data.device.rng import Rng
from vit_jax.runs import checkpoint_format
from vit_jax.train import loop

TIMES = re.compile('time|second|data_wait|goodput|mfu|stall')
# Ways to compute the same run.
HOW = {
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
  folder = checkpoint_format.newest_first(path / 'checkpoints')[0]
  arrays = checkpoint_format.read_info(folder)['arrays']
  return {name: x['checksum'] for name, x in arrays.items()}


def assert_resumes_to_the_bit(config, path, copy):
  """Checks that a run without its last checkpoint ends in the same bits.

  Args:
    config: Its config.
    path: Its work directory.
    copy: A new directory.
  """
  shutil.copytree(path, copy)
  expected, state = scalars(copy), final_state(copy)
  (copy / 'DONE').unlink()
  shutil.rmtree(checkpoint_format.newest_first(copy / 'checkpoints')[0])
  assert loop.run(config, str(copy)).status == 0
  assert scalars(copy) == expected
  assert final_state(copy) == state


def assert_same_result(config, path, other):
  """Checks that a config gives what another one, of a finished run, gave.

  Args:
    config: The config.
    path: Work directory of the other run.
    other: A new directory.
  """
  assert loop.run(config, str(other)).status == 0
  for found, wanted in zip(scalars(other), scalars(path), strict=True):
    for name, value in wanted.items():
      assert found[name] == pytest.approx(value, rel=2e-3, abs=1e-4), name


def assert_learns(objective, batch):
  """Checks that the gradient of a batch lowers its loss."""
  params = jax.jit(objective.init)(jax.random.key(0))
  extra = objective.init_extra(params)
  rows = np.arange(len(batch['image']), dtype=np.int32)
  rng = Rng(jax.random.key(1), rows)

  @jax.jit
  def loss_of(params):
    return objective.loss(params, extra, batch, rng)[0]

  before, grads = jax.jit(jax.value_and_grad(loss_of))(params)
  after = loss_of(jax.tree.map(lambda p, g: p - 0.01 * g, params, grads))
  assert np.isfinite(before) and after < before
