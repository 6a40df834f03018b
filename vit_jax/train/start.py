"""What happens before the first step of a run.

The config, the data and the memory are checked, the work directory is prepared,
the step is compiled, and the log says what is trained.
"""

import collections
from collections.abc import Iterator
from collections.abc import Mapping
import concurrent.futures
import contextlib
import pathlib
import socket
from typing import Any

from absl import logging
import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import objectives
from vit_jax.config import counted
from vit_jax.models import zoo
from vit_jax.parallel import memory
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import processes
from vit_jax.parallel import sharding
from vit_jax.runs import logs
from vit_jax.runs import reporting
from vit_jax.runs import safe_io
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import program as program_lib

# What the names of a feature are of, by the name of the feature.
_WITH_NAMES = {'label': 'classes', 'map': 'classes in maps'}


def check(
  config: ml_collections.ConfigDict, first_config: Mapping[str, Any]
) -> None:
  """Raises a UserError if a config is wrong, or is not that of process 0."""
  if config_lib.to_dict(config) != first_config:
    raise config_lib.UserError(
      'this process has another config than process 0: give all the same flags'
    )
  experiment_lib.check(config)


@contextlib.contextmanager
def owning(path: pathlib.Path) -> Iterator[None]:
  """Locks the work directory and logs there, only in the first process."""
  with contextlib.ExitStack() as stack:

    def lock_and_log() -> None:
      stack.enter_context(workdir_lib.lock(path))
      stack.enter_context(logs.log_to(path / workdir_lib.LOG))

    processes.call_on_first(lock_and_log)
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
    different = [name for name in prints if prints[name] != firsts[name]]
    if different:
      raise config_lib.UserError(
        f'the data for {", ".join(different)} are not those that process 0'
        ' sees: bring the same files to all hosts'
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
  align = None
  if (path / 'config.json').exists():
    align = config_lib.wing('vit_jax.train.resuming:aligned')
  resumed = workdir_lib.check_config(path, config, align)
  if resumed is None:
    return None, done
  before = config_lib.from_dict(safe_io.read_json(path / 'config.json'))
  differences = config_lib.wing('vit_jax.config.resuming:differences')
  changes: list[str] = differences(before, resumed, resumable=True)
  if any(x.startswith('train.duration:') for x in changes):
    done = None
  if changes and done is None:
    logging.info('resuming with another config: %s', '; '.join(changes))
  return config_lib.to_dict(resumed), done


def log_facts(
  experiment: experiment_lib.Experiment,
  workdir: pathlib.Path | None = None,
  verbose: bool = False,
) -> None:
  """Shows what is trained, on what and how long.

  Without a work directory nothing is written. The log file always has the
  tables of all parameters; `verbose` shows them, too.
  """
  e = experiment
  program = e.program
  parameter_tables = config_lib.wing('vit_jax.optim.parameter_tables')
  for table in (
    parameter_tables.shardings_table(program.param_shardings),
    parameter_tables.rules_table(program.rules),
  ):
    logs.show_details(table.text(), verbose)
  facts = [*_facts(e, is_dry=workdir is None)]
  if workdir is not None and logs.can_draw():  # else it was named before
    facts.append(('work directory', str(workdir)))
  logs.show_facts('vit_jax', facts)
  if program.mesh.size > 1:
    line = parameter_tables.unsplit(program.param_shardings, program.mesh.shape)
    if line:
      logging.warning('warning: %s', line)
  for part in e.parts.values():
    _log_part(part)
  if program.mesh.size < jax.device_count():
    logging.warning(
      'warning: %d of %d devices are idle: config.mesh.data=-1 uses all',
      *(jax.device_count() - program.mesh.size, jax.device_count()),
    )


def _facts(
  e: experiment_lib.Experiment, is_dry: bool
) -> Iterator[tuple[str, str]]:
  """Yields what is trained, on what and how long, and how it is evaluated."""
  mesh, parameters = e.program.mesh, e.program.rules.parameters.values()
  model_keys = [x.config.model for x in e.parts.values()]
  names = dict.fromkeys(map(zoo.sized_name, model_keys))
  total = sum(x.size for x in parameters)
  trained = sum(x.size for x in parameters if x.trains)
  training = f', {trained:,} of which train' if trained < total else ''
  yield 'model', f'{", ".join(names)}, {total:,} parameters{training}'
  for name, part in e.parts.items():
    if name:
      yield f'task {name}', f'{part.total_steps:,} of {e.total_steps:,} steps'
    # Counting takes a trace of the step, which a run reads only for train/mfu.
    batch_size = part.config.train.batch_size
    if is_dry or mesh_lib.peak_flops(mesh):
      show = config_lib.wing('vit_jax.train.cost:show')
      yield 'GFLOP per image', show(part.program.flops, batch_size)
    yield (
      'training data',
      f'{part.config.data.name} {part.config.data.split}:'
      f' {len(part.source):,} examples, {_show_features(part.source)}',
    )
    for key, source in part.eval_sources.items():
      evaluator = part.evaluators[key]
      text = f'{evaluator.spec.split}: {len(source):,} examples'
      if key in part.probe_sources:
        text += (
          f'; {evaluator.kind} learns from {evaluator.train_split}:'
          f' {len(part.probe_sources[key]):,} examples'
        )
      yield f'evaluation {key}', text
  state = sharding.bytes_per_device(e.program.abstract_state())
  yield (
    'devices',
    f'{mesh.size} x {mesh.devices.flat[0].device_kind} in'
    f' {counted(jax.process_count(), "process")}, mesh'
    f' {mesh_lib.show_shape(mesh.shape)}; {state / 2**20:.1f} MiB of state on'
    ' each',
  )
  parts = config_lib.accumulation(e.config)
  microbatches = f' in {parts} microbatches' if parts > 1 else ''
  yield (
    'duration',
    f'{e.total_steps:,} steps of {e.config.train.batch_size:,} images'
    f'{microbatches}: {e.epoch(e.total_steps):.1f} epochs',
  )


def _log_part(e: experiment_lib.Experiment) -> None:
  """Logs what a task learns, and what is wrong with its data."""
  program = e.program
  if e.config.train.batch_size > len(e.source):
    logging.warning(
      'warning: config.train.batch_size=%d is more than the %s: each batch'
      ' has some of them several times',
      *(e.config.train.batch_size, counted(len(e.source), 'example')),
    )
  config_lib.wing('vit_jax.data.shared_images:warn')(e.config)
  target = program.objective.target
  names = e.source.features[target[0]].names if target else ()
  if target and target[0] in _WITH_NAMES and len(names) == 1:
    logging.warning(
      'warning: %s has one class alone, %r: any model is right, and none learns'
      ' anything; a second class needs a folder or rows of its own',
      *(e.config.data.name, names[0]),
    )
  for line in program.objective.describe(e.source):
    logging.info('%s', line)
  if e.config.data.balance:
    describe = config_lib.wing('vit_jax.data.balance:describe')
    logging.info('%s', describe(e.source, e.config.data.balance))


def _show_features(source: data.Source) -> str:
  """Returns the features of a source's examples as text for people."""
  texts = []
  for name, feature in source.features.items():
    if feature.plural:
      texts.append(feature.plural)
    elif names := feature.names:
      kind = _WITH_NAMES.get(name, name)
      texts.append(f'{len(names)} {kind} ({config_lib.join_first(names, 10)})')
  return ', '.join(texts) or 'images alone'


def await_step(
  experiment: experiment_lib.Experiment,
  step: int,
  compiling: concurrent.futures.Future[jax.stages.Compiled] | None,
) -> None:
  """Waits until the first call is compiled, and checks that it fits in memory.

  The state is on the devices. `compiling` is one step that is being compiled;
  None: it has not begun.
  """
  if compiling is not None:
    compiled = compiling.result()
  else:
    compiled = experiment.program.compile(experiment.first_call(step))
  check_memory(experiment, compiled, has_state=True)


def check_state_memory(experiment: experiment_lib.Experiment) -> None:
  """Checks that the train state fits in memory, before anything is compiled."""
  needed = needed_memory(experiment, 0, has_state=False)
  room = free_memory(experiment)
  if needed > room:
    raise config_lib.UserError(
      f'the train state needs {gib(needed)} of memory{per_device(experiment)},'
      f' and {gib(room)} is free: split it with config.mesh.fsdp, or take a'
      ' smaller model'
    )


def check_memory(
  experiment: experiment_lib.Experiment,
  compiled: jax.stages.Compiled,
  has_state: bool,
) -> None:
  """Checks that the first call fits in memory; the error says what would fit.

  `has_state` is whether the train state is already on the devices.
  """
  temporary = program_lib.temporary_bytes(compiled)
  needed = needed_memory(experiment, temporary, has_state)
  room = free_memory(experiment)
  if needed <= room:
    return
  if has_state:
    state = sharding.bytes_per_device(experiment.program.abstract_state())
    needed, room = needed + state, room + state
  too_large = config_lib.wing('vit_jax.train.accumulation:too_large')
  raise too_large(experiment, temporary, needed, room)


def free_memory(experiment: experiment_lib.Experiment) -> int:
  """Returns the free memory of the device with the least, in bytes."""
  free = memory.free_per_device(experiment.program.mesh.local_devices)
  everywhere = processes.gather((socket.gethostname(), free))
  if not is_on_host(experiment):
    return min(free for _, free in everywhere)
  # Processes on one host share its memory.
  sharing = collections.Counter(host for host, _ in everywhere)
  return min(free // sharing[host] for host, free in everywhere)


def is_on_host(experiment: experiment_lib.Experiment) -> bool:
  """Whether the devices share the memory of the host."""
  return experiment.program.mesh.devices.flat[0].platform == 'cpu'


def needed_memory(
  experiment: experiment_lib.Experiment, temporary: int, has_state: bool
) -> int:
  """Returns the least memory that a step needs per device, in bytes."""
  program = experiment.program
  needed = steps_held(experiment) * temporary
  if has_state:
    return needed
  return needed + sharding.bytes_per_device(program.abstract_state())


def steps_held(experiment: experiment_lib.Experiment) -> int:
  """Returns how many steps' temporary memory is held at once.

  The next step is dispatched before the current one has ended. On a CPU its
  memory is allocated at that time, but not used until the step begins.
  """
  return 2 if is_on_host(experiment) and memory.has_address_limit() else 1


def per_device(experiment: experiment_lib.Experiment) -> str:
  """Returns ' for each device' if there are several."""
  return ' for each device' if experiment.program.mesh.size > 1 else ''


def gib(size: float) -> str:
  """Returns bytes as text for people."""
  return f'{size / 2**30:.2f} GiB'


def show_config(
  experiment: experiment_lib.Experiment, reporter: reporting.Reporter
) -> None:
  """Shows the config in the trackers, and what of it is not the default."""
  plain = config_lib.default()
  default_name = plain.model.name
  plain.model.name = experiment.config.model.name
  experiment_lib.fill_model(plain)
  config, defaults = (
    dict(config_lib.flatten(config_lib.to_dict(x)))
    for x in (experiment.config, plain)
  )
  reporter.describe(config, defaults | {'model.name': default_name})
