"""Hostile inputs are accepted, or refused by one line; seeds are fixed.

`scripts/fuzz.py` runs more of the same cases.
"""

import commands
import hostile
import hostile_data
import numpy as np
import pytest
import tiny

from vit_jax.config import UserError

SEEDS = {'configs': 12, 'work_directory': 5}  # of all others as many:
_OTHER_VALUES = 10


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('hostile')
  hostile.make(path)
  return path


@pytest.mark.slow
@pytest.mark.parametrize(
  'target',
  hostile.TARGETS + hostile_data.TARGETS,
  ids=lambda x: x.__name__,
)
def test_damage(target, folder):
  seeds = range(SEEDS.get(target.__name__, _OTHER_VALUES))
  accepted = [hostile.case(target, seed, folder) for seed in seeds]
  assert not all(accepted)


@pytest.mark.slow
@pytest.mark.parametrize('key', hostile.keys())
def test_each_key_takes_or_refuses_any_value(key):
  """The check of a config, of values that have the key's type and others."""
  rng = np.random.default_rng([*key.encode()])
  kind = hostile.leaf_type(tiny.config(), key)
  for _ in range(2):
    value = hostile.hostile_value(rng, kind)
    try:
      hostile.set_and_check({key: value})
    except UserError as e:
      assert str(e) and '\n' not in str(e), (key, value)


@pytest.mark.slow
def test_the_script_runs_the_same_cases():
  result = commands.python(
    *(tiny.ROOT / 'scripts' / 'fuzz.py', '--count=2', '--seed=5'),
    *('--target=npz', '--target=images'),
  )
  assert result.returncode == 0, result.stderr
  lines = result.stdout.splitlines()[-2:]
  assert [line.split(':')[0] for line in lines] == ['npz', 'images']
  assert all(line.endswith(' 0 failed') for line in lines)
