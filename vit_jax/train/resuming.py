"""Checks of a run that goes on with another duration, or on other devices."""

import pathlib

import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax.runs import checkpoint_format
from vit_jax.runs import safe_io
from vit_jax.train import experiment as experiment_lib


def check_longer(
  path: pathlib.Path, experiment: experiment_lib.Experiment
) -> None:
  """Lets a finished run go on if its duration was raised.

  Args:
    path: The work directory, with the config of the run so far.
    experiment: The experiment, with the new duration.

  Raises:
    UserError: The new duration is shorter; or the run is in the cooldown of the
      old one, so its learning rate has already fallen.
  """
  stored = safe_io.read_json(path / 'config.json')
  if stored is None:
    return
  before = config_lib.from_dict(stored)
  if before.train.duration == experiment.config.train.duration:
    return
  lengths = experiment_lib.find_lengths(before, experiment.lengths.examples)
  steps = [
    int(x.name) for x in checkpoint_format.newest_first(path / 'checkpoints')
  ]
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

  Args:
    path: The work directory.
    config: The full config.

  Raises:
    UserError: With train.rng='rbg' the masks depend on the mesh, which follows
      the number of devices, and that is another one.
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
