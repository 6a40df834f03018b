"""All training methods in a small size, and what their tests have in common."""

import ast
import collections
from collections.abc import Iterable
from collections.abc import Mapping
import pathlib
import re
import shutil
from typing import Any

import case_files
import jax
import ml_collections
import numpy as np
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data.device.rng import Rng
from vit_jax.runs import restoring
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import loop

_TIMES = re.compile('time|second|data_wait|goodput|mfu|stall')


def _read() -> dict[str, dict[str, Any]]:
  values = collections.defaultdict[str, dict[str, Any]](dict)
  for method, key, text in case_files.read(tiny.TESTS / 'methods.txt'):
    values[method][key] = ast.literal_eval(text)
  return dict(values)


METHODS = _read()
# Their loss or a statistic is of the whole batch.
UNDIVIDED = (
  *('classification, normalised', 'dinov2', 'mocov3'),
  *('segmentation', 'segmentation, volumes'),
)


def trunk(method: str) -> dict[str, Any]:
  """Returns the keys of the model of a method, for another one."""
  keys = METHODS[method].items()
  return {
    key: value
    for key, value in keys
    if key.startswith('model.') and key != 'model.mask_token'
  }


def config(
  method: str,
  options: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
  **overrides: Any,
) -> ml_collections.ConfigDict:
  """Returns the tiny config of a method.

  Args:
    method: A key of METHODS.
    options: Sets further keys of `objective.options`.
    **overrides: Set other keys, as of `tiny.config`, or `options.*` as in
      METHODS.
  """
  result = tiny.config()
  result.objective.name = method.partition(',')[0]
  groups = {'options': result.objective.options, 'evals': result.evals}
  values = {key.replace('__', '.'): x for key, x in overrides.items()}
  for key, value in (METHODS[method] | values).items():
    group, _, name = key.rpartition('.')
    if group in groups:
      is_evaluation = isinstance(value, dict)
      value = config_lib.evaluation(**value) if is_evaluation else value
      groups[group][name] = value
    else:
      config_lib.set_value(result, key, value)
  result.objective.options.update(dict(options))
  tiny.skip_without_devices(result)
  return result


def finished(method: str) -> Any:
  """Returns a fixture: the work directory of a finished run of a method."""

  @pytest.fixture
  def workdir(method_run):
    return method_run(method)

  return workdir


def losses(path: pathlib.Path) -> list[float]:
  """Returns the training losses of a run, step by step."""
  return [x['train/loss'] for x in tiny.metrics(path) if 'train/loss' in x]


def final_state(path: pathlib.Path) -> dict[str, str]:
  """Returns the checksums of all arrays of the last checkpoint."""
  folder = workdir_lib.newest_first(path / 'checkpoints')[0]
  arrays = restoring.read_info(folder)['arrays']
  return {name: x['checksum'] for name, x in arrays.items()}


def assert_resumes_to_the_bit(
  config: ml_collections.ConfigDict, path: pathlib.Path, copy: pathlib.Path
) -> None:
  """Checks that a run without its last checkpoint ends in the same bits.

  Args:
    config: Its config.
    path: Its work directory.
    copy: A new directory.
  """
  shutil.copytree(path, copy)
  (copy / 'DONE').unlink()
  shutil.rmtree(workdir_lib.newest_first(copy / 'checkpoints')[0])
  assert loop.run(config, str(copy)).status == 0
  measured = [
    [
      {k: x for k, x in line.items() if not _TIMES.search(k)}
      for line in tiny.metrics(workdir)
      if 'train/loss' in line or 'val/loss' in line
    ]
    for workdir in (path, copy)
  ]
  assert measured[0] == measured[1]
  assert final_state(copy) == final_state(path)


def assert_learns(
  objective: objectives.Objective, batch: Mapping[str, np.ndarray]
) -> None:
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
