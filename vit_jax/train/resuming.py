"""Checks of a run that goes on with another duration, or on other devices."""

import pathlib
from typing import Any

import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
from vit_jax.config import resuming as config_resuming
from vit_jax.config import tasks as tasks_lib
from vit_jax.models import describing
from vit_jax.runs import safe_io
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import experiment as experiment_lib


def aligned(
  config: ml_collections.ConfigDict, stored: ml_collections.ConfigDict
) -> ml_collections.ConfigDict:
  """Returns a config whose model is written as that of the run it resumes.

  A key of `config.model` that is None stands for the named model's value, and
  several texts name one part. Of keys that mean the same in both configs the
  result has the run's; of others, what they mean. Unset values of tasks are
  filled from the run, as `config` is already.
  """
  if config.tasks.keys() != stored.tasks.keys():
    return config  # which `config.resuming.differences` then lists
  tasks = {}
  for name in config.tasks:
    task, task_stored = (config_lib.for_task(x, name) for x in (config, stored))
    filled = config_resuming.fill(task, task_stored)
    tasks[name] = aligned(filled, task_stored)
  config = config.copy_and_resolve_references()
  blocks = config.model.block, stored.model.block
  if config.init_from.path and all(blocks) and blocks[0] != blocks[1]:
    resumed = config_lib.wing('vit_jax.weights.adapters:resumed')
    config.model.block = resumed(*blocks)
  if config_lib.INIT_FROM not in (config.model.name, stored.model.name):
    values, before = _model_values(config), _model_values(stored)
    equal = {key for key, value in values.items() if value == before.get(key)}
    if equal | {*models.EXECUTION} >= values.keys():
      equal.add('name')
    values |= {key: stored.model[key] for key in equal & {*config.model}}
    with config.model.ignore_type():  # a patch is a number or several
      for key in values.keys() & {*config.model}:
        config.model[key] = values[key]
  return tasks_lib.with_task_values(config, tasks) if tasks else config


def _model_values(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the keys and options that `config.model` stands for, by name."""
  with config_lib.explained('config.model', ValueError):
    model = models.from_config(config.model, 0)
  return describing.full_values(model) | describing.key_values(model)


def check_longer(
  path: pathlib.Path, experiment: experiment_lib.Experiment
) -> None:
  """Lets a finished run go on if its duration was raised.

  It is an error if the new duration is shorter; or if the run is in the
  cooldown of the old one, so that its learning rate has already fallen.
  """
  stored = safe_io.read_json(path / 'config.json')
  before = config_lib.from_dict(stored)
  if before.train.duration == experiment.config.train.duration:
    return
  lengths = experiment_lib.find_lengths(before, experiment.lengths.examples)
  steps = [int(x.name) for x in workdir_lib.newest_first(path / 'checkpoints')]
  cooldown = optim.schedule(before.optim).cooldown_steps(lengths)
  step, start = max(steps, default=0), lengths.total - cooldown
  if experiment.total_steps < lengths.total:
    problem = f'ends at step {lengths.total}, and can be made longer alone'
  elif step > start and cooldown:
    problem = (
      f'is at step {step}, in the cooldown from step {start} on of its duration'
      f' {before.train.duration!r}: train on from its parameters in another'
      f' --workdir, with --config.init_from.path={path}'
    )
  else:
    (path / 'DONE').unlink(missing_ok=True)
    return
  raise config_lib.UserError(f'{path} {problem}')


def check_devices(
  path: pathlib.Path, config: ml_collections.ConfigDict
) -> None:
  """Checks that a resumed run draws the masks of dropout as it did before.

  With train.rng='rbg' they depend on the mesh, which follows the number of
  devices.
  """
  record = safe_io.read_json(path / 'run.json')
  mesh = config.mesh.data, config.mesh.fsdp, config.mesh.tensor
  if record is None or config.train.rng != 'rbg' or -1 not in mesh:
    return
  before, count = record['runs'][-1]['devices']['count'], jax.device_count()
  if before != count:
    raise config_lib.UserError(
      f'{path} was trained on {config_lib.counted(before, "device")}, not on'
      f" {count}: with config.train.rng='rbg' the masks of dropout depend on"
      ' this, so that the run would not go on as it began; resume it on as'
      ' many, or give another --workdir'
    )
