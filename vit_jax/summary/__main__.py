r"""Shows a model as a table: its modules, their parameters and their cost.

  python -m vit_jax.summary --config=configs/digits.py
  python -m vit_jax.summary --from=runs/digits --depth=2

The columns are the shape of the output (for B images), the number of
parameters, whether they are trainable (yes, no or part), and the GFLOP of
matrix products and convolutions in a forward pass of one image.

To list the keys of the config instead:

  python -m vit_jax.summary --config=configs/digits.py --keys
  python -m vit_jax.summary --config=configs/digits.py --keys='learning rate'

Each key has its value in force, which includes the defaults and the values of
the named model, and its meaning. With words, only the keys are listed that have
the words in their name or meaning, or in their name in other libraries. None
means that the data or the checkpoint decides, or that the feature is off. No
data and no checkpoint is opened.

To list the parts of which models are made:

  python -m vit_jax.summary --parts
  python -m vit_jax.summary --parts=attention

Each part has the key of the config that names it, its name there, what it is,
its papers and its options. An option that is not set has this default, or the
value of this key of the config. --parts=attention lists the parts of
config.model.attention alone.

For a config or a work directory, the memory for training at its batch size
follows, as planned by the compiler of this machine's backend; --nomemory leaves
it out, and compiles nothing.

To plan for devices that are not here:

  python -m vit_jax.summary --config=configs/folder.py --devices=8 \
      --mesh=fsdp=8 --hardware=H100 --config.model.name=ViT-H/14 \
      --config.model.scan=True --config.model.num_classes=1000

Another process compiles the step for as many virtual CPU devices, without data.
It shows the memory, products and communication of each device, and estimates
the time of a step on GPUs and TPUs, with all assumptions.
--mesh=data=2,fsdp=4,tensor=1 gives the sizes of the mesh axes: missing ones are
1, except for data, which takes the remaining devices; without --mesh the config
gives them. --hardware shows one kind of device instead of all.

To use the real compiler of a TPU or GPU:

  python -m vit_jax.summary --config=configs/digits.py --hardware=v5e:4x4

This compiles the step with the compiler of that TPU or GPU (v5p:2x2x2, h100:8;
also v4, v6e, v7x, a100, h200 and b200), which runs without one: extra
[compile-tpu] or [cuda]. --slices=2 is for two TPU slices or nodes of this
shape. The result is the memory, the operations and the collectives of each
device. If the compiler is missing, the step is planned on virtual CPU devices.

To find the largest batch that fits:

  python -m vit_jax.summary --config=configs/digits.py --hardware=v5e:4x4 --fit

It is searched for layers unrolled and scanned with each way to recompute
activations (model.remat). It compiles three or four batch sizes for each of the
eight rows, and logs each row as soon as it is known.

--format=json is one object: modules (module, output_shape for one image,
parameters, trainable, gflop), the same four of the whole model, checkpoint
(what --from loaded: path, format, step, kind, averaged and newest; null with
--config), memory (device, batch_size, and GiB a device: parameters, gradients,
optimizer, average, activations, total; null where it is not known), and plan
(null without --devices): devices, mesh, batch_size, accumulation, memory,
collectives (bytes a step), flops and model_flops (a step, of a device),
unknown_loops, seconds, estimates (times in seconds) and the assumptions behind
them; ahead, the compiled step (null without a topology): see
`ahead.step.Ahead`; and fit (null without --fit): see `ahead.fit.Fit`. With
--keys it is {key: {"value": ..., "meaning": ...}}, and with --parts an array of
objects: kind, name, class_name, options, summary, sources. --json is short for
--format=json.
"""

import dataclasses
import json
import math
import pathlib
from typing import Any
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.config import UserError

if TYPE_CHECKING:
  import ml_collections

  from vit_jax import models
  from vit_jax.parallel import hardware as hardware_lib
  from vit_jax.parallel import topologies
  from vit_jax.train import experiment as experiment_lib

USAGE = 'summary (--config=FILE.py | --from=PATH | --parts)'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
_CONFIG = cli.define_config(FLAGS)
cli.define_from(FLAGS)
_DEPTH = flags.DEFINE_integer(
  'depth',
  1,
  'Number of levels of nested modules to show.',
  lower_bound=1,
  flag_values=FLAGS,
)
_MEMORY = flags.DEFINE_bool(
  'memory',
  True,
  'Compile a training step to print its memory.',
  flag_values=FLAGS,
)
_DEVICES = flags.DEFINE_integer(
  'devices', None, 'Number of devices to plan for.', flag_values=FLAGS
)
_MESH = flags.DEFINE_string(
  'mesh',
  None,
  'Mesh of the devices: data=1,fsdp=8,tensor=1, or fsdp=8, or 1,8,1. Default:'
  " the config's.",
  flag_values=FLAGS,
)
_HARDWARE = flags.DEFINE_string(
  'hardware',
  None,
  'Kind of device, such as H100 or v5e, or a topology, such as v5e:4x4.'
  ' Default: all kinds.',
  flag_values=FLAGS,
)
_SLICES = flags.DEFINE_integer(
  'slices', 1, 'Number of TPU slices or nodes.', flag_values=FLAGS
)
_FIT = flags.DEFINE_bool(
  'fit',
  False,
  'Find the largest batch that fits on --hardware=v5e:4x4.',
  flag_values=FLAGS,
)


def _define_list(name: str, text: str) -> flags.FlagHolder[str | None]:
  """Defines a flag with or without a value, which is then 'true'."""
  return flags.DEFINE_flag(
    flags.Flag(
      flags.ArgumentParser(),
      flags.ArgumentSerializer(),
      name,
      None,
      text,
      boolean=True,  # so that it may stand without a value
    ),
    FLAGS,
  )


_KEYS = _define_list(
  'keys',
  'List the keys of the config. --keys=WORD lists the keys with the word.',
)
_PARTS = _define_list(
  'parts',
  'List the parts of models. --parts=attention lists the parts for'
  ' config.model.attention.',
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Same as --format=json.', flag_values=FLAGS
)
_FORMAT = cli.define_format(FLAGS)


def main(argv: list[str]) -> int:
  """Shows the summary, and returns the exit status."""
  if _KEYS.value is not None and argv[1:]:
    raise UserError(f"write the words after =, as in --keys='{argv[1]}'")
  cli.refuse_arguments(argv)
  as_json = _JSON.value or _FORMAT.value == 'json'
  if _PARTS.value not in (None, 'false'):
    _print_parts(None if _PARTS.value == 'true' else _PARTS.value, as_json)
    return 0
  if (_CONFIG.value is None) == (FLAGS['from'].value is None):
    raise UserError(
      'name one model: --config=configs/digits.py, or --from=runs/digits'
    )
  if _KEYS.value not in (None, 'false'):
    _print_keys('' if _KEYS.value == 'true' else _KEYS.value, as_json)
    return 0
  devices = _read_devices()
  plans = devices is not None
  subject = _from_config(plans) if FLAGS['from'].value is None else _load(plans)
  from vit_jax.summary import rows as rows_lib

  optim = (subject.config or config_lib.default()).optim
  rows = [
    row
    for row in rows_lib.summarize(subject.model, subject.image_shape, optim)
    if len(row.module.split('/')) <= _DEPTH.value
  ]
  memory: dict[str, Any] | None = None
  experiment = subject.experiment
  if experiment is not None and _MEMORY.value:
    from vit_jax.train import dry_run

    memory = {
      'device': experiment.program.mesh.devices.flat[0].device_kind,
      'batch_size': experiment.config.train.batch_size,
    } | dry_run.plan_memory(experiment.program)
  planned: dict[str, Any] = {}
  plan_text = ''
  if devices is not None:
    planned, plan_text = _plan(subject.config, devices)
  if as_json:
    total, *modules = map(dataclasses.asdict, rows)
    del total['module']
    report = {'modules': modules, **total, 'memory': memory}
    report |= {'plan': None, 'ahead': None, 'fit': None} | planned
    print(json.dumps({**report, 'checkpoint': subject.checkpoint}))
    return 0
  print(rows_lib.table(rows).text(tables.room()))
  if memory is not None:
    device, batch_size = memory.pop('device'), memory.pop('batch_size')
    unit, scale = ('GiB', 1) if memory['total'] >= 1 else ('MiB', 1024)
    sizes = [(name, f'{scale * gib:.3f}') for name, gib in memory.items()]
    print(
      f'{unit} a device for training with'
      f' {config_lib.counted(batch_size, "image")}, as the compiler for'
      f' {device} plans it:'
    )
    print(tables.Table((), sizes).text(indent='  '))
  if plan_text:
    print(plan_text)
  return 0


def _print_keys(word: str, as_json: bool) -> None:
  from vit_jax.summary import keys

  path = FLAGS['from'].value
  config = _CONFIG.value if path is None else _stored_config(path)
  if config is None:
    raise UserError(f'--from={path} is no work directory, which has a config')
  matches = keys.find(config, word)
  if as_json:
    print(json.dumps(keys.as_json(matches)))
  else:
    print(keys.table(matches).text(tables.room()))


def _print_parts(kind: str | None, as_json: bool) -> None:
  from vit_jax.models import listing

  with config_lib.explained('--parts'):
    parts = listing.list_parts(kind)
  if as_json:
    print(json.dumps([dataclasses.asdict(x) for x in parts]))
    return
  rows = []
  for part in parts:
    papers = [f'arXiv:{x}' for x in part.sources if x not in part.summary]
    options = ', '.join(f'{name}={x}' for name, x in part.options.items())
    about = ' '.join([part.summary, *papers, f'Options: {options or "none"}'])
    rows.append((f'model.{part.kind}', part.name, about))
  print(tables.Table(('key', 'part', 'meaning'), rows).text(tables.room()))


@dataclasses.dataclass(frozen=True)
class _Subject:
  """The model that is summarized.

  Attributes:
    model: The module.
    image_shape: (height, width, C); of volumes (depth, height, width, C).
    config: Config of its training; None if there is none.
    experiment: The experiment of the config if it can be trained here.
    checkpoint: Facts on the loaded checkpoint; None for a config.
  """

  model: 'models.Model'
  image_shape: tuple[int, ...]
  config: 'ml_collections.ConfigDict | None'
  experiment: 'experiment_lib.Experiment | None' = None
  checkpoint: dict[str, Any] | None = None


def _from_config(plans: bool) -> _Subject:
  """Returns the model of --config."""
  from vit_jax import models
  from vit_jax.ahead import plan as plan_lib

  experiment, config = None, _CONFIG.value
  if plans:
    config = plan_lib.complete(config)
  else:
    experiment, config = _configured(config)
  with config_lib.explained('config.model', ValueError):
    model = models.from_config(
      config.model, config.model.num_classes, config.train.dtype
    )
  size = config_lib.sides(config.data.image_size)
  return _Subject(model, (*size, config.data.channels), config, experiment)


def _load(plans: bool) -> _Subject:
  """Returns the model of --from."""
  loaded, experiment = cli.load(FLAGS), None
  preprocess = loaded.preprocess
  config = _stored_config(str(FLAGS['from'].value))
  if config is not None:  # --image_size and --model.KEY change it, too
    if FLAGS['image_size'].value:
      config.data.image_size = preprocess.image_size
    for text in FLAGS['model'].value or ():
      key = text.partition('=')[0]
      config_lib.set_value(config, f'model.{key}', getattr(loaded.model, key))
    if _MEMORY.value and not plans:
      experiment, config = _configured(config)
  image_shape = (*preprocess.image_size, preprocess.channels)
  checkpoint = loaded.origin.to_dict()
  return _Subject(loaded.model, image_shape, config, experiment, checkpoint)


def _configured(
  config: 'ml_collections.ConfigDict',
) -> 'tuple[experiment_lib.Experiment | None, ml_collections.ConfigDict]':
  """Returns the experiment of a config, and the completed config.

  The experiment is None if it cannot be trained here, as without its data.
  """
  from vit_jax.train import experiment as experiment_lib

  try:
    experiment_lib.check(config)
    # The initial checkpoint is needed only if it defines the model.
    reads = config.model.name == config_lib.INIT_FROM
    experiment = experiment_lib.build(config, resumes=not reads)
  except UserError as e:
    if config.model.num_classes is None:
      raise
    logging.warning('it cannot be trained here: %s', e)
    return None, config
  return experiment, experiment.config


def _stored_config(path: str) -> 'ml_collections.ConfigDict | None':
  """Returns the config of a work directory; None for any other path."""
  from vit_jax import weights
  from vit_jax.runs import safe_io

  local = pathlib.Path(path)
  if config_lib.is_in_store(path):
    local = weights.local_path(path)
  if not weights.is_workdir(local):
    return None
  stored = safe_io.read_json(local / 'config.json')
  return config_lib.from_dict(stored)


@dataclasses.dataclass(frozen=True)
class _Devices:
  """The devices of --devices, --mesh and --hardware, which are not here.

  Attributes:
    count: Their number.
    mesh: Sizes of the axes of their mesh; {}: as in the config.
    topology: The topology of --hardware; None: it names only a kind.
    kinds: The kinds for which times are estimated.
  """

  count: int
  mesh: dict[str, int]
  topology: 'topologies.Topology | None'
  kinds: 'tuple[hardware_lib.Hardware, ...]'


def _read_devices() -> _Devices | None:
  """Returns the devices of the flags; None: no flag names any."""
  hardware, count = _HARDWARE.value, _DEVICES.value
  if not _FIT.value and all(x is None for x in (count, _MESH.value, hardware)):
    return None
  from vit_jax.ahead import plan as plan_lib
  from vit_jax.parallel import hardware as hardware_lib
  from vit_jax.parallel import topologies

  topology = None
  if hardware is not None and ':' in hardware:
    topology = topologies.parse(hardware, _SLICES.value)
    if count not in (None, topology.size):
      raise UserError(
        f'--devices={count} is not the number of devices of'
        f' --hardware={topology}, {topology.size}: leave it out'
      )
    count = topology.size
  else:
    for flag in ('slices', 'fit'):
      if FLAGS[flag].value != FLAGS[flag].default:
        raise UserError(f'--{flag} needs a topology, as in --hardware=v5e:4x4')
  mesh: dict[str, int] = {}
  if _MESH.value is not None:
    mesh = plan_lib.parse_mesh(_MESH.value, count)
    count = math.prod(mesh.values())
  if count is None:
    raise UserError(
      '--hardware needs --devices, or a topology as in --hardware=v5e:4x4'
    )
  kinds: tuple[hardware_lib.Hardware, ...] = hardware_lib.TABLE
  if hardware is not None:
    kinds = (hardware_lib.named(hardware.partition(':')[0]),)
  return _Devices(count, mesh, topology, kinds)


def _plan(
  config: 'ml_collections.ConfigDict | None', devices: _Devices
) -> tuple[dict[str, Any], str]:
  """Plans the step of a config; returns it for JSON, and for people.

  JSON has it as 'plan', with estimates for the devices; as 'ahead', if the
  compiler of the devices is here; or as 'fit', the largest batches.
  """
  from vit_jax.ahead import plan as plan_lib
  from vit_jax.ahead import roofline
  from vit_jax.ahead import step as ahead_lib

  if config is None:
    raise UserError(
      '--devices and --hardware plan the training of a config or of a work'
      f' directory, and --from={FLAGS["from"].value} is neither'
    )
  config.mesh.update(devices.mesh)
  topology = devices.topology
  if topology is not None and _FIT.value:
    from vit_jax.ahead import fit as fit_lib

    fits = fit_lib.run(config, topology)
    text = fit_lib.table(fits, str(topology))
    return {'fit': [dataclasses.asdict(x) for x in fits]}, text
  if topology is None:
    plan = plan_lib.run(config, devices.count)
  else:
    outcome = ahead_lib.run_or_plan(config, topology)
    if isinstance(outcome, ahead_lib.Ahead):
      return {'ahead': dataclasses.asdict(outcome)}, ahead_lib.table(outcome)
    plan = outcome
  estimates = [
    estimate
    for kind in devices.kinds
    if (estimate := roofline.estimate(plan, kind)) is not None
  ]
  report = dataclasses.asdict(plan)
  report['estimates'] = [dataclasses.asdict(x) for x in estimates]
  report['assumptions'] = roofline.ASSUMPTIONS
  text = f'{plan_lib.table(plan)}\n\n{roofline.table(estimates)}'
  return {'plan': report}, text


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE)
