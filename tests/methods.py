"""What the tests of training methods have in common."""

import re
import shutil

import pytest
import tiny

from vit_jax.runs import checkpoint_format
from vit_jax.train import loop

TIMES = re.compile('time|second|data_wait|goodput|mfu')
# Ways to compute the same run.
HOW = {
  '8 devices': {'mesh__data': 2, 'mesh__fsdp': 4, 'mesh__min_size': 0},
  'accumulated': {'mesh__data': 1, 'train__accumulation': 2},
}


def scalars(path):
  """Returns what was measured, but for times."""
  return [
    {k: v for k, v in line.items() if not TIMES.search(k)}
    for line in tiny.metrics(path)
    if 'train/loss' in line or 'val/loss' in line
  ]


def final_state(path):
  """Returns the checksums of all arrays of the last checkpoint."""
  arrays = checkpoint_format.read_info(path / 'checkpoints' / '8')['arrays']
  return {name: x['checksum'] for name, x in arrays.items()}


def assert_resumes_to_the_bit(config, path, copy):
  """Checks that a run of 8 steps, cut back to step 4, ends the same.

  Args:
    config: Its config.
    path: Its work directory.
    copy: A new directory.
  """
  shutil.copytree(path, copy)
  expected, state = scalars(copy), final_state(copy)
  (copy / 'DONE').unlink()
  shutil.rmtree(copy / 'checkpoints' / '8')
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
