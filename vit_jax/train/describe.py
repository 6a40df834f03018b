"""Describes an experiment for the log and for a dry run."""

from absl import logging
import jax

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import counted
from vit_jax.data import balance
from vit_jax.data import features as features_lib
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import hardware
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.train import cost
from vit_jax.train import program as program_lib
from vit_jax.train import tasks
from vit_jax.train.experiment import Experiment

# What the names of a feature are of, by the name of the feature.
_WITH_NAMES = {'label': 'classes', 'map': 'classes in maps'}


def log(experiment: tasks.Trainable, is_dry: bool = False) -> None:
  """Logs the model as a table, the data and the devices.

  Args:
    experiment: The experiment to describe.
    is_dry: Whether no step will run.
  """
  e = experiment
  program, state = e.program, e.program.abstract_state()
  logging.info('%s', sharding.table(program.param_shardings))
  if line := sharding.unsplit(program.param_shardings, program.mesh.shape):
    logging.warning('warning: %s', line)
  logging.info('%s', rules_lib.table(program.rules))
  for name, part in e.parts.items():
    if name:
      logging.info(
        'task %s: %d of %d steps', name, part.total_steps, e.total_steps
      )
    _log_part(part, is_dry)
  logging.info(
    'devices: %d x %s in %s, mesh %s; %.1f MiB of state on each',
    program.mesh.size,
    program.mesh.devices.flat[0].device_kind,
    counted(jax.process_count(), 'process'),
    mesh_lib.show_shape(program.mesh.shape),
    sharding.bytes_per_device(state) / 2**20,
  )
  if program.mesh.size < jax.device_count():
    logging.warning(
      'warning: %d of %d devices are idle: config.mesh.data=-1 uses all',
      *(jax.device_count() - program.mesh.size, jax.device_count()),
    )
  parts = config_lib.accumulation(e.config)
  logging.info(
    '%s of %s%s: %.1f epochs',
    counted(e.total_steps, 'step'),
    counted(e.config.train.batch_size, 'image'),
    f' in {parts} microbatches' if parts > 1 else '',
    e.epoch(e.total_steps),
  )


def _log_part(e: Experiment, is_dry: bool) -> None:
  """Logs the data of a task, what it learns, and how it is evaluated."""
  program = e.program
  # Counting takes a trace of the step, which a run reads only for train/mfu.
  if hardware.peak_flops(program.mesh.devices.flat[0]) or is_dry:
    logging.info('%s', cost.show(program.flops, e.config.train.batch_size))
  logging.info(
    'training on %s: %s, %s',
    e.config.data.split,
    counted(len(e.source), 'example'),
    _show_features(e.source),
  )
  if e.config.train.batch_size > len(e.source):
    logging.warning(
      'warning: config.train.batch_size=%d is more than the %s: each batch'
      ' has some of them several times',
      *(e.config.train.batch_size, counted(len(e.source), 'example')),
    )
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
  sampling = balance.make(e.source, e.config.data.balance)
  if sampling is not None:
    shares = balance.show('shares of draws', e.source.classes, sampling.shares)
    logging.info('%s', shares)
  _log_evaluations(e)


def _log_evaluations(e: Experiment) -> None:
  for name, source in e.eval_sources.items():
    spec = e.config.evals[name]
    logging.info(
      'evaluating %s on %s: %s',
      *(name, spec.split, counted(len(source), 'example')),
    )
    if name in e.probe_sources:
      logging.info(
        '  %s, which learns from %s: %s',
        *(spec.kind, spec.train_split),
        counted(len(e.probe_sources[name]), 'example'),
      )


def _show_features(source: data.Source) -> str:
  """Returns the features of a source's examples as text for people."""
  shown = []
  for name, feature in source.features.items():
    if isinstance(feature, features_lib.Text):
      shown.append('captions')
    elif names := feature.names:
      what = _WITH_NAMES.get(name, name)
      shown.append(f'{len(names)} {what} ({config_lib.some(names, 10)})')
  return ', '.join(shown) or 'images alone'


def dry_run(experiment: tasks.Trainable) -> dict[str, float]:
  """Compiles a step without running it, and returns its sizes.

  Returns:
    parameters (a count), GFLOP a step, and GiB a device: the state, the
    temporary values of the step, and their sum.
  """
  e = experiment
  program, state = e.program, e.program.abstract_state()
  temporary = program_lib.temporary_bytes(program.heaviest.compile())
  state_bytes = sharding.bytes_per_device(state)
  return {
    'parameters': sum(x.size for x in jax.tree.leaves(state.params)),
    'gflop_per_step': program.flops.step / 1e9,
    'state_gib': state_bytes / 2**30,
    'temporary_gib': temporary / 2**30,
    'total_gib': (state_bytes + temporary) / 2**30,
  }


def plan_memory(experiment: Experiment) -> dict[str, float]:
  """Compiles a step without running it, and returns what it needs.

  Returns:
    As `memory`.
  """
  temporary = dry_run(experiment)['temporary_gib']
  return memory(experiment.program, round(temporary * 2**30))


def memory(
  program: program_lib.Program, temporary_bytes: int
) -> dict[str, float]:
  """Returns the memory of a step, in GiB per device; evaluates only shapes.

  Args:
    program: The program of the step.
    temporary_bytes: Temporary memory per device, as the compiler plans it.

  Returns:
    parameters, gradients (of trainable parameters), optimizer, average (of the
    parameters), extra (of the objective, if it has any), activations (and other
    temporary values), and their sum, total.
  """
  state = program.abstract_state()
  gib = {
    name: sharding.bytes_per_device(tree) / 2**30
    for name, tree in {
      'parameters': state.params,
      'gradients': program.rules.trained(state.params),
      'optimizer': state.opt_state,
      'average': state.ema_params,
    }.items()
  }
  temporary = temporary_bytes / 2**30
  if jax.tree.leaves(state.extra):
    gib['extra'] = sharding.bytes_per_device(state.extra) / 2**30
  plan = gib | {
    # The compiler may avoid storing all gradients.
    'gradients': min(gib['gradients'], temporary),
    'activations': max(temporary - gib['gradients'], 0.0),
  }
  return plan | {'total': sum(plan.values())}
