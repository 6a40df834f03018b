r"""Shows a model as a table: its modules, their parameters and their cost.

  python -m vit_jax.summary --config=configs/digits.py
  python -m vit_jax.summary --from=runs/digits --depth=2

The columns are the shape of the output (for B images), the number of
parameters, whether they are trainable (yes, no or part), and the GFLOP of
matrix products and convolutions in a forward pass of one image.

For a config or a work directory, the memory for training at its batch size
follows, as planned by the compiler of this machine's backend; --nomemory leaves
it out, and compiles nothing.

  python -m vit_jax.summary --config=configs/folder.py --devices=8 \
      --mesh=fsdp=8 --hardware=H100 --config.model.name=ViT-H/14 \
      --config.model.scan=True --config.model.num_classes=1000

plans for devices that are not here instead: another process compiles the step
for as many virtual CPU devices, without data. It shows the memory, products and
communication of each device, and estimates the time of a step on GPUs and TPUs,
with all assumptions. --mesh=data=2,fsdp=4,tensor=1 gives the sizes of the mesh
axes: missing ones are 1, except for data, which takes the remaining devices;
without --mesh they are those of the config. --hardware shows one kind of device
instead of all.

--format=json is one object: modules (module, output_shape for one image,
parameters, trainable, gflop), the same four of the whole model, checkpoint
(what --from loaded: path, format, step, kind, averaged and newest; null with
--config), memory (device, batch_size, and GiB a device: parameters, gradients,
optimizer, average, activations, total; null where it is not known), and plan
(null without --devices): devices, mesh, batch_size, accumulation, memory,
collectives (bytes a step), flops and model_flops (a step, of a device),
unknown_loops, seconds, estimates (times in seconds) and the assumptions behind
them.
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
from vit_jax.config import tables
from vit_jax.config import UserError

if TYPE_CHECKING:
  import ml_collections

  from vit_jax import models
  from vit_jax.optim import rules as rules_lib
  from vit_jax.parallel import hardware as hardware_lib
  from vit_jax.summary import plan as plan_lib
  from vit_jax.summary import roofline
  from vit_jax.train import experiment as experiment_lib

FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
_CONFIG = cli.define_config(FLAGS)
cli.define_from(FLAGS)
_DEPTH = flags.DEFINE_integer(
  'depth',
  1,
  'Levels of modules within modules to show.',
  lower_bound=1,
  flag_values=FLAGS,
)
_MEMORY = flags.DEFINE_bool(
  'memory', True, 'Compile a training step, for its memory.', flag_values=FLAGS
)
_DEVICES = flags.DEFINE_integer(
  'devices', None, 'Number of devices to plan for.', flag_values=FLAGS
)
_MESH = flags.DEFINE_string(
  'mesh',
  None,
  "Their mesh, as data=1,fsdp=8,tensor=1, fsdp=8 or 1,8,1; else the config's.",
  flag_values=FLAGS,
)
_HARDWARE = flags.DEFINE_string(
  'hardware',
  None,
  'Kind of device: A100, H100, H200, v4, v5e, v5p or v6e. Default: all.',
  flag_values=FLAGS,
)
_FORMAT = flags.DEFINE_enum(
  'format', 'table', ['table', 'json'], 'Of stdout.', flag_values=FLAGS
)

# Fields that say how a model is executed, not what it computes.
_PLAIN: dict[str, Any] = {
  'scan': False,
  'remat': 'none',
  'attention_implementation': 'plain',
}


@dataclasses.dataclass(frozen=True)
class Row:
  """A module, or a parameter of the outermost module itself.

  Attributes:
    module: Its path, as `blocks_0/mlp`; '' is the whole model.
    output_shape: Shape for one image; None for a parameter.
    parameters: Number of elements, including those of submodules.
    trainable: 'yes', 'no' or 'part'; '-' without parameters.
    gflop: GFLOP of a forward pass of one image, including submodules.
  """

  module: str
  output_shape: tuple[int, ...] | None
  parameters: int
  trainable: str
  gflop: float


def main(argv: list[str]) -> int:
  """Shows the summary, and returns the exit status."""
  if argv[1:]:
    raise UserError(f'unexpected argument {argv[1]!r}')
  if (_CONFIG.value is None) == (FLAGS['from'].value is None):
    raise UserError(
      'name one model: --config=configs/digits.py, or --from=runs/digits'
    )
  plans = any(x.value is not None for x in (_DEVICES, _MESH, _HARDWARE))
  if plans:
    _check_plan_flags()
  subject = _from_config(plans) if FLAGS['from'].value is None else _load(plans)
  from vit_jax import config as config_lib

  optim = (subject.config or config_lib.default()).optim
  rows = [
    row
    for row in summarize(subject.model, subject.image_shape, optim)
    if len(row.module.split('/')) <= _DEPTH.value
  ]
  memory = None
  if subject.experiment is not None and _MEMORY.value:
    memory = _memory(subject.experiment)
  planned = _plan(subject.config) if plans else None
  if _FORMAT.value == 'json':
    found = _as_json(rows, memory, planned)
    print(json.dumps({**found, 'checkpoint': subject.checkpoint}))
  else:
    print('\n'.join(_as_text(rows, memory, planned)))
  return 0


@dataclasses.dataclass(frozen=True)
class _Subject:
  """The model that is summarized.

  Attributes:
    model: The module.
    image_shape: (height, width, C).
    config: Config of its training; None if there is none.
    experiment: The experiment of the config if it can be trained here.
    checkpoint: Facts on the loaded checkpoint; None for a config.
  """

  model: 'models.Model'
  image_shape: tuple[int, int, int]
  config: 'ml_collections.ConfigDict | None'
  experiment: 'experiment_lib.Experiment | None' = None
  checkpoint: dict[str, Any] | None = None


def _from_config(plans: bool) -> _Subject:
  """Returns the model of --config."""
  if plans:
    from vit_jax.summary import plan as plan_lib

    config = plan_lib.complete(_CONFIG.value)
    return _Subject(*_model(config), config)
  experiment, config = _configured(_CONFIG.value)
  return _Subject(*_model(config), config, experiment)


def _load(plans: bool) -> _Subject:
  """Returns the model of --from."""
  loaded, experiment = cli.load(FLAGS), None
  config = _stored_config(str(FLAGS['from'].value))
  if config is not None and _MEMORY.value and not plans:
    experiment, config = _configured(config)
  preprocess = loaded.preprocess
  image_shape = (*preprocess.image_size, preprocess.channels)
  checkpoint = loaded.origin.to_dict()
  return _Subject(loaded.model, image_shape, config, experiment, checkpoint)


def _check_plan_flags() -> None:
  """Checks the flags of a plan, before anything slow."""
  from vit_jax.summary import plan as plan_lib

  if _MESH.value is not None:
    plan_lib.parse_mesh(_MESH.value, _DEVICES.value)
  elif _DEVICES.value is None:
    raise UserError('--hardware needs --devices: say how many there are')
  _hardware()


def _plan(
  config: 'ml_collections.ConfigDict | None',
) -> 'tuple[plan_lib.Plan, list[roofline.Estimate]]':
  """Returns the plan, and estimates for its hardware."""
  from vit_jax.summary import plan as plan_lib
  from vit_jax.summary import roofline

  if config is None:
    raise UserError(
      '--devices plans the training of a config or of a work directory, and'
      f' --from={FLAGS["from"].value} is neither'
    )
  devices = _DEVICES.value
  if _MESH.value is not None:
    sizes = plan_lib.parse_mesh(_MESH.value, devices)
    config.mesh.update(sizes)
    devices = math.prod(sizes.values())
  assert devices is not None  # see _check_plan_flags
  plan = plan_lib.run(config, devices)
  estimates = [roofline.estimate(plan, of) for of in _hardware()]
  return plan, [estimate for estimate in estimates if estimate is not None]


def _hardware() -> 'tuple[hardware_lib.Hardware, ...]':
  from vit_jax.parallel import hardware as hardware_lib

  if _HARDWARE.value is None:
    return hardware_lib.TABLE
  return (hardware_lib.named(_HARDWARE.value),)


def _configured(
  config: 'ml_collections.ConfigDict',
) -> 'tuple[experiment_lib.Experiment | None, ml_collections.ConfigDict]':
  """Returns the experiment of a config, and the completed config.

  The experiment is None if it cannot be trained here, as without its data.
  """
  from vit_jax import config as config_lib
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


def _model(
  config: 'ml_collections.ConfigDict',
) -> 'tuple[models.Model, tuple[int, int, int]]':
  """Returns the model of a config, and the shape of its images."""
  from vit_jax import config as config_lib
  from vit_jax import models

  try:
    model = models.from_config(
      config.model, config.model.num_classes, config.train.dtype
    )
  except ValueError as e:
    raise UserError(f'config.model: {config_lib.one_line(e)}') from None
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  return model, (*size, config.data.channels)


def _stored_config(path: str) -> 'ml_collections.ConfigDict | None':
  """Returns the config of a work directory; None for any other path."""
  from vit_jax import config as config_lib
  from vit_jax import weights
  from vit_jax.runs import safe_io

  if not weights.is_workdir(pathlib.Path(path)):
    return None
  stored = safe_io.read_json(pathlib.Path(path) / 'config.json')
  return config_lib.from_dict(stored)


def summarize(
  model: 'models.Model',
  image_shape: tuple[int, int, int],
  optim: 'ml_collections.ConfigDict',
) -> list[Row]:
  """Returns a row for each module, in the order of their calls.

  Only shapes are computed. The outermost module comes first, then its own
  parameters.

  Args:
    model: The module; scanned layers are shown one by one.
    image_shape: (height, width, C).
    optim: `config.optim`, which says what trains.

  Raises:
    UserError: A pattern matches nothing, or nothing is left to train.
  """
  import jax
  import jax.numpy as jnp

  from vit_jax import models
  from vit_jax.optim import rules as rules_lib
  from vit_jax.train import flops

  model = model.clone(
    **{key: x for key, x in _PLAIN.items() if key in models.fields_of(model)}
  )
  params = models.abstract_params(model, image_shape)
  images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
  parameters = rules_lib.make(optim, params).parameters
  modules = flops.by_module(
    lambda params, x: model.apply({'params': params}, x), params, images
  )
  shapes = {'/'.join(path): shape for path, (_, shape) in modules.items()}
  counts = {'/'.join(path): count for path, (count, _) in modules.items()}
  own = {name: None for name in parameters if '/' not in name}
  shapes = {'': shapes.pop('')} | own | shapes
  return [_row(name, x, parameters, counts) for name, x in shapes.items()]


def _row(
  name: str,
  shape: tuple[int, ...] | None,
  parameters: 'dict[str, rules_lib.Parameter]',
  counts: dict[str, int],
) -> Row:
  def within(path: str) -> bool:
    return not name or path == name or path.startswith(f'{name}/')

  inside = [p for path, p in parameters.items() if within(path)]
  trains = {p.trains for p in inside}
  flop = sum(count for path, count in counts.items() if within(path))
  trainable = 'part' if len(trains) == 2 else 'yes' if True in trains else 'no'
  size = sum(p.size for p in inside)
  return Row(name, shape, size, trainable if inside else '-', flop / 1e9)


def _memory(experiment: 'experiment_lib.Experiment') -> dict[str, Any]:
  from vit_jax.train import describe

  return {
    'device': experiment.program.mesh.devices.flat[0].device_kind,
    'batch_size': experiment.config.train.batch_size,
  } | describe.plan_memory(experiment)


def _as_json(
  rows: list[Row],
  memory: dict[str, Any] | None,
  planned: 'tuple[plan_lib.Plan, list[roofline.Estimate]] | None',
) -> dict[str, Any]:
  whole, *modules = map(dataclasses.asdict, rows)
  del whole['module']
  plan = None
  if planned is not None:
    from vit_jax.summary import roofline

    plan = dataclasses.asdict(planned[0])
    plan['estimates'] = [dataclasses.asdict(e) for e in planned[1]]
    plan['assumptions'] = roofline.ASSUMPTIONS
  return {'modules': modules, **whole, 'memory': memory, 'plan': plan}


def _as_text(
  rows: list[Row],
  memory: dict[str, Any] | None,
  planned: 'tuple[plan_lib.Plan, list[roofline.Estimate]] | None',
) -> list[str]:
  lines = [_as_table(rows)]
  if memory is not None:
    lines += _memory_lines(memory)
  if planned is not None:
    from vit_jax.summary import plan as plan_lib
    from vit_jax.summary import roofline

    plan, estimates = planned
    lines += [plan_lib.table(plan), '', roofline.table(estimates)]
  return lines


def _as_table(rows: list[Row]) -> str:
  whole, *modules = rows
  lines = [
    (
      row.module or 'total',
      ', '.join(['B', *map(str, row.output_shape[1:])])
      if row.output_shape
      else '',
      f'{row.parameters:,}',
      row.trainable,
      f'{row.gflop:.4g}',
    )
    for row in (*modules, whole)
  ]
  header = 'module', 'output', 'parameters', 'trainable', 'gflop'
  return '\n'.join(tables.aligned([header, *lines], right=(2, 4)))


def _memory_lines(memory: dict[str, Any]) -> list[str]:
  sizes = dict(memory)
  device, batch_size = sizes.pop('device'), sizes.pop('batch_size')
  unit, scale = ('GiB', 1) if sizes['total'] >= 1 else ('MiB', 1024)
  title = (
    f'{unit} a device for training with {batch_size} images, as the compiler'
    f' for {device} plans it:'
  )
  lines = [(name, f'{scale * gib:.3f}') for name, gib in sizes.items()]
  return [
    title,
    *(f'  {line}' for line in tables.aligned(lines, right=(1,))),
  ]


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
