r"""Shows a model as a table: its modules, their parameters and their cost.

  python -m vit_jax.summary --config=configs/digits.py
  python -m vit_jax.summary --from=runs/digits --depth=2

Of each module: the shape of its output (B images), its parameters, whether they
train (yes, no or part of them), and the GFLOP of its matrix products and
convolutions in a forward pass of one image.

With a config, or a work directory, the memory for training at its batch size
follows, as the compiler of this machine's backend plans it; --nomemory leaves
it out, and compiles nothing.

  python -m vit_jax.summary --config=configs/folder.py --devices=8 \
      --mesh=fsdp=8 --hardware=H100 --config.model.name=ViT-H/14 \
      --config.model.scan=True --config.model.num_classes=1000

plans for devices that are not here instead: a process of its own compiles the
step for so many virtual CPU devices, without data, and shows what each of them
holds, computes and tells the others, and an estimate of the step's time on GPUs
and TPUs with all that it assumes. --mesh=data=2,fsdp=4,tensor=1 gives the sizes
of the mesh's axes: those not named are 1, but data takes what is left; without
it they are the config's. --hardware shows one kind of device; by default all.

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
  'devices', None, 'Plan for so many devices.', flag_values=FLAGS
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
  'What they are: A100, H100, H200, v4, v5e, v5p or v6e; else all of these.',
  flag_values=FLAGS,
)
_FORMAT = flags.DEFINE_enum(
  'format', 'table', ['table', 'json'], 'Of stdout.', flag_values=FLAGS
)


@dataclasses.dataclass(frozen=True)
class Row:
  """A module, or a parameter of the outermost module itself.

  Attributes:
    module: Its path, as `blocks_0/mlp`; '' is the whole model.
    output_shape: For one image; None of a parameter.
    parameters: Number of elements, those of modules within it included.
    trainable: 'yes', 'no' or 'part'; '-' where there are none.
    gflop: Work of a forward pass of one image, with its submodules.
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
  config, path = _CONFIG.value, FLAGS['from'].value
  if (config is None) == (path is None):
    raise UserError(
      'name one model: --config=configs/digits.py, or --from=runs/digits'
    )
  plans = any(x.value is not None for x in (_DEVICES, _MESH, _HARDWARE))
  if plans:
    _check_plan_flags()
  experiment, checkpoint = None, None
  if path is None and plans:
    from vit_jax.summary import plan as plan_lib

    config = plan_lib.complete(config)
    model, image_shape = _model(config)
  elif path is None:
    experiment, config = _configured(config)
    model, image_shape = _model(config)
  else:
    loaded = cli.load(FLAGS)
    checkpoint = loaded.origin.to_dict()
    config = _stored_config(path)
    model, preprocess = loaded.model, loaded.preprocess
    image_shape = (*preprocess.image_size, preprocess.channels)
    if config is not None and _MEMORY.value and not plans:
      experiment, config = _configured(config)
  from vit_jax import config as config_lib

  optim = (config or config_lib.default()).optim
  rows = [
    row
    for row in summarize(model, image_shape, optim)
    if len(row.module.split('/')) <= _DEPTH.value
  ]
  memory = None
  if experiment is not None and _MEMORY.value:
    memory = _memory(experiment)
  planned = _plan(config) if plans else None
  if _FORMAT.value == 'json':
    found = {**_as_json(rows, memory, planned), 'checkpoint': checkpoint}
    print(json.dumps(found))
  else:
    print('\n'.join(_as_text(rows, memory, planned)))
  return 0


def _check_plan_flags() -> None:
  """Finds mistakes in the flags of a plan, before anything slow."""
  from vit_jax.summary import plan as plan_lib

  if _MESH.value is not None:
    plan_lib.parse_mesh(_MESH.value, _DEVICES.value)
  elif _DEVICES.value is None:
    raise UserError('--hardware needs --devices: say how many there are')
  _hardware()


def _plan(
  config: 'ml_collections.ConfigDict | None',
) -> 'tuple[plan_lib.Plan, list[roofline.Estimate]]':
  """Returns the plan that the flags ask for, and how long its step takes."""
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
  """Returns a config's experiment, and the config filled in.

  If it cannot be trained here, as without its data, there is no experiment.
  """
  from vit_jax import config as config_lib
  from vit_jax.train import experiment as experiment_lib

  try:
    experiment_lib.check(config)
    # The checkpoint that it starts from is read only where that is the model.
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
  """Returns a config's model, and the shape of its images."""
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
  """Returns the config of a work directory; None of anything else."""
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

  Computes shapes alone. The outermost module comes first, then its own
  parameters.

  Args:
    model: Shown with its layers one by one, scanned or not.
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

  known = models.fields_of(model)
  unrolled: dict[str, Any] = {
    'scan': False,
    'remat': 'none',
    'attention_implementation': 'plain',
  }
  model = model.clone(**{k: v for k, v in unrolled.items() if k in known})
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
  return [
    _row(name, shape, parameters, counts) for name, shape in shapes.items()
  ]


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
