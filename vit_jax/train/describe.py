"""Describes an experiment for the log and for a dry run."""

from absl import logging
import jax

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import balance
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.train import cost
from vit_jax.train import program as program_lib
from vit_jax.train.experiment import Experiment


def log(experiment: Experiment) -> None:
  """Logs the model as a table, the data and the devices."""
  e = experiment
  program, state = e.program, e.program.abstract_state()
  logging.info('%s', sharding.table(program.param_shardings))
  logging.info('%s', rules_lib.table(program.rules))
  logging.info('%s', cost.show(program.flops, e.config.train.batch_size))
  logging.info(
    'training on %s: %d examples, %s',
    *(e.config.data.split, len(e.source), _show_features(e.source)),
  )
  for line in program.objective.describe(e.source):
    logging.info('%s', line)
  sampling = balance.make(e.source, e.config.data.balance)
  if sampling is not None:
    shares = balance.show('shares of draws', e.source.classes, sampling.shares)
    logging.info('%s', shares)
  _log_evaluations(e)
  logging.info(
    'devices: %d x %s in %d process(es), mesh %s; %.1f MiB of state on each',
    program.mesh.size,
    program.mesh.devices.flat[0].device_kind,
    jax.process_count(),
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
    '%d steps of %d images%s: %.1f epochs',
    e.total_steps,
    e.config.train.batch_size,
    f' in {parts} microbatches' if parts > 1 else '',
    e.epoch(e.total_steps),
  )


def _log_evaluations(e: Experiment) -> None:
  for name, source in e.eval_sources.items():
    spec = e.config.evals[name]
    logging.info(
      'evaluating %s on %s: %d examples', name, spec.split, len(source)
    )
    if name in e.probe_sources:
      logging.info(
        '  %s, which learns from %s: %d examples',
        *(spec.kind, spec.train_split, len(e.probe_sources[name])),
      )


def _show_features(source: data.Source) -> str:
  """Returns the features of a source's examples as text for people."""
  shown = []
  for name, feature in source.features.items():
    if names := feature.names:
      what = 'classes' if name == 'label' else name
      shown.append(f'{len(names)} {what} ({config_lib.some(names, 10)})')
  return ', '.join(shown) or 'images alone'


def dry_run(experiment: Experiment) -> dict[str, float]:
  """Compiles a step without running it, and returns its sizes.

  Returns:
    parameters (a count), GFLOP a step, and GiB a device: the state, the
    temporary values of the step, and their sum.
  """
  e = experiment
  program, state = e.program, e.program.abstract_state()
  temporary = program_lib.temporary_bytes(program.compile())
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
    GiB per device, as this backend's compiler plans it: parameters, gradients
    (of trainable parameters), optimizer, average (of the parameters),
    activations (and other temporary values), and their sum, total.
  """
  temporary = dry_run(experiment)['temporary_gib']
  return experiment.program.memory(round(temporary * 2**30))
