"""Checks and preparations before the first step of a run."""

from collections.abc import Iterator
from collections.abc import Mapping
import concurrent.futures
import contextlib
import json
import pathlib
from typing import Any

from absl import logging
import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax import optim
from vit_jax.parallel import processes
from vit_jax.plots import paper
from vit_jax.runs import checkpoint_format
from vit_jax.runs import reporting
from vit_jax.runs import safe_io
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import accumulation
from vit_jax.train import describe
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import fed as fed_lib
from vit_jax.train import timetable
from vit_jax.weights import initial

_SHOWN = 16  # images of the first batch in the trackers


def check(config: ml_collections.ConfigDict, same: Mapping[str, Any]) -> None:
  """Raises a UserError if a config is wrong, or differs between processes."""
  if config_lib.to_dict(config) != same:
    raise config_lib.UserError(
      'this process has another config than process 0: give all the same flags'
    )
  experiment_lib.check(config)


def dry_run(
  config: ml_collections.ConfigDict, verbose: bool
) -> dict[str, float]:
  """Compiles a step of a config; prints its sizes as JSON, and returns them."""
  experiment = experiment_lib.create(config)
  for part in experiment.parts.values():
    part.cache.check()
  if config.train.accumulation == config_lib.AUTO:
    experiment = accumulation.choose(experiment)
  describe.log(experiment, verbose=verbose)
  sizes = describe.dry_run(experiment)
  if processes.first():
    print(json.dumps(sizes))
  accumulation.check(experiment, experiment.program.compile(), has_state=False)
  return sizes


@contextlib.contextmanager
def owning(path: pathlib.Path) -> Iterator[None]:
  """Locks the work directory and logs there, only in the first process."""
  with contextlib.ExitStack() as stack:

    def own() -> None:
      stack.enter_context(workdir_lib.lock(path))
      stack.enter_context(reporting.log_to(path / workdir_lib.LOG))

    processes.call_on_first(own)
    yield


def prepare(path: pathlib.Path, experiment: experiment_lib.Experiment) -> None:
  """Writes the files that describe the run, or compares them if they exist."""
  config, preprocess = experiment.config, experiment.preprocess()
  fingerprint, files = experiment.fingerprint(), experiment.files()
  processes.call_on_first(
    lambda: workdir_lib.prepare(
      path,
      config,
      preprocess,
      fingerprint,
      objectives.directions(config),
      files,
    )
  )


def compile_ahead(
  experiment: experiment_lib.Experiment,
) -> concurrent.futures.Future[jax.stages.Compiled] | None:
  """Starts to compile the step while data and state are prepared.

  Returns None, without compiling, if there are several processes, since they
  must compile in the same order; or with several steps per call or a cache on
  the devices, since the program is then not known yet.
  """
  is_usual = experiment.config.train.steps_per_call == 1 and all(
    part.config.data.cache != 'device' for part in experiment.parts.values()
  )
  if not is_usual or jax.process_count() > 1:
    return None
  return experiment.program.compile_ahead()


def check_data(experiment: experiment_lib.Experiment) -> None:
  """Raises a UserError if a process sees other data than process 0."""
  if jax.process_count() == 1:
    return
  splits = experiment.splits
  prints = {name: source.fingerprint() for name, source in splits.items()}
  firsts = processes.call_on_first(lambda: prints)

  def compare() -> None:
    others = [name for name in prints if prints[name] != firsts[name]]
    if others:
      raise config_lib.UserError(
        f'the data for {", ".join(others)} are not those that process 0 sees:'
        ' bring the same files to all hosts'
      )

  processes.call_on_all(compare)


def look(
  path: pathlib.Path, config: ml_collections.ConfigDict
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
  """Returns the config of the run in a work directory, and how it ended.

  They are None where no step of a run was saved: nothing of it is left there.
  """
  workdir_lib.discard_untrained(path)
  done = safe_io.read_json(path / 'DONE')
  resumed = workdir_lib.check_config(path, config, initial.aligned)
  if resumed is None:
    return None, done
  before = config_lib.from_dict(safe_io.read_json(path / 'config.json'))
  changes = config_lib.differences(before, resumed, resumable=True)
  if any(x.startswith('train.duration:') for x in changes):
    done = None
  if changes and done is None:
    logging.info('resuming with another config: %s', '; '.join(changes))
  return config_lib.to_dict(resumed), done


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
  lengths = timetable.find_lengths(before, experiment.lengths.examples)
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


def check_memory(
  experiment: experiment_lib.Experiment,
  step: int,
  compiling: concurrent.futures.Future[jax.stages.Compiled] | None,
) -> None:
  """Waits until the first call is compiled, and checks that it fits in memory.

  Args:
    experiment: The experiment, with its state on the devices.
    step: Number of completed updates.
    compiling: One step that is being compiled; None: it has not begun.
  """
  if compiling is not None:
    compiled = compiling.result()
  else:
    compiled = experiment.program.compile(experiment.first_call(step))
  accumulation.check(experiment, compiled, has_state=True)


def show(
  experiment: experiment_lib.Experiment,
  step: int,
  reporter: reporting.Reporter,
) -> None:
  """Shows the config in the trackers and, at step 0, the model's first input.

  The step may still be compiling in its thread.
  """
  plain = config_lib.default()
  default_name = plain.model.name
  plain.model.name = experiment.config.model.name
  initial.fill_model(plain)
  config, defaults = (
    dict(config_lib.flatten(config_lib.to_dict(x)))
    for x in (experiment.config, plain)
  )
  reporter.describe(config, defaults | {'model.name': default_name})
  if step or not processes.first():
    return
  for name, part in experiment.parts.items():
    try:
      fed = fed_lib.draw(
        part.config, part.source, part.program.objective, step, _SHOWN
      )
    except config_lib.UserError:
      return  # the loop reads the same image first, and reports the error
    pixels = fed_lib.sheet(fed, 'The first images, as the model gets them')
    png = paper.encode(pixels)
    reporter.show(step, f'train/{name}/images' if name else 'train/images', png)
