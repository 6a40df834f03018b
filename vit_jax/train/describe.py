"""Describes an experiment for the log."""

from collections.abc import Iterator
import pathlib

from absl import logging
import jax

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import counted
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.runs import logs
from vit_jax.train.experiment import Experiment

# What the names of a feature are of, by the name of the feature.
_WITH_NAMES = {'label': 'classes', 'map': 'classes in maps'}


def log(
  experiment: Experiment,
  workdir: pathlib.Path | None = None,
  verbose: bool = False,
) -> None:
  """Shows what is trained, on what and how long.

  Args:
    experiment: The experiment.
    workdir: The work directory; None: nothing is written.
    verbose: Whether tables of all parameters are shown, too. The log file has
      that of their shardings wherever there are several devices.
  """
  e = experiment
  program = e.program
  if verbose or program.mesh.size > 1:
    table = config_lib.wing('vit_jax.parallel.sharding_table:table')
    logs.show_details(table(program.param_shardings).text(), verbose)
  if verbose:
    table = config_lib.wing('vit_jax.optim.rules_table:table')
    logs.show_details(table(program.rules).text(), verbose)
  facts = [('model', _model(e))]
  for name, part in e.parts.items():
    facts += _part_facts(name, part, e.total_steps, is_dry=workdir is None)
  facts += [('devices', _devices(e)), ('duration', _duration(e))]
  if workdir is not None and logs.can_draw():  # else it was named before
    facts.append(('work directory', str(workdir)))
  logs.show_facts('vit_jax', facts)
  if program.mesh.size > 1:
    unsplit = config_lib.wing('vit_jax.parallel.sharding_table:unsplit')
    if line := unsplit(program.param_shardings, program.mesh.shape):
      logging.warning('warning: %s', line)
  for part in e.parts.values():
    _log_part(part)
  if program.mesh.size < jax.device_count():
    logging.warning(
      'warning: %d of %d devices are idle: config.mesh.data=-1 uses all',
      *(jax.device_count() - program.mesh.size, jax.device_count()),
    )


def _model(e: Experiment) -> str:
  parameters = e.program.rules.parameters.values()
  total = sum(x.size for x in parameters)
  trained = sum(x.size for x in parameters if x.trains)
  names = dict.fromkeys(x.config.model.name for x in e.parts.values())
  text = f'{", ".join(map(str, names))}, {total:,} parameters'
  return text if trained == total else f'{text}, {trained:,} of which train'


def _devices(e: Experiment) -> str:
  mesh = e.program.mesh
  state = sharding.bytes_per_device(e.program.abstract_state())
  return (
    f'{mesh.size} x {mesh.devices.flat[0].device_kind} in'
    f' {counted(jax.process_count(), "process")}, mesh'
    f' {mesh_lib.show_shape(mesh.shape)}; {state / 2**20:.1f} MiB of state on'
    ' each'
  )


def _duration(e: Experiment) -> str:
  parts = config_lib.accumulation(e.config)
  microbatches = f' in {parts} microbatches' if parts > 1 else ''
  return (
    f'{e.total_steps:,} steps of {e.config.train.batch_size:,}'
    f' images{microbatches}:'
    f' {e.epoch(e.total_steps):.1f} epochs'
  )


def _part_facts(
  name: str, e: Experiment, total_steps: int, is_dry: bool
) -> Iterator[tuple[str, str]]:
  """Yields the data of a task, and how it is evaluated."""
  if name:
    yield f'task {name}', f'{e.total_steps:,} of {total_steps:,} steps'
  # Counting takes a trace of the step, which a run reads only for train/mfu.
  if is_dry or mesh_lib.peak_flops(e.program.mesh):
    show = config_lib.wing('vit_jax.train.cost:show')
    yield 'GFLOP per image', show(e.program.flops, e.config.train.batch_size)
  examples = f'{len(e.source):,} examples'
  yield (
    'training data',
    f'{e.config.data.name} {e.config.data.split}: {examples},'
    f' {_show_features(e.source)}',
  )
  for key, source in e.eval_sources.items():
    evaluator = e.evaluators[key]
    text = f'{evaluator.spec.split}: {len(source):,} examples'
    if key in e.probe_sources:
      examples = f'{len(e.probe_sources[key]):,} examples'
      text += (
        f'; {evaluator.kind} learns from {evaluator.train_split}: {examples}'
      )
    yield f'evaluation {key}', text


def _log_part(e: Experiment) -> None:
  """Logs what a task learns, and what is wrong with its data."""
  program = e.program
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
      texts.append(f'{len(names)} {kind} ({config_lib.some(names, 10)})')
  return ', '.join(texts) or 'images alone'
