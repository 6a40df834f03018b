"""Shows a model as a table: its modules, their parameters and their cost.

  python -m vit_jax.summary --config=configs/digits.py
  python -m vit_jax.summary --from=runs/digits --depth=2

Of each module: the shape of its output (B images), its parameters, whether they
train (yes, no or part of them), and the GFLOP of its matrix products and
convolutions in a forward pass of one image.

With a config, or a work directory, the memory for training at its batch size
follows, as the compiler of this machine's backend plans it; --nomemory leaves
it out, and compiles nothing.

--format=json is one object: modules (module, output_shape for one image,
parameters, trainable, gflop), the same four of the whole model, and memory
(device, batch_size, and GiB a device: parameters, gradients, optimizer,
average, activations, total; null where it is not known).
"""

import dataclasses
import json
import pathlib
from typing import Any
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.config import UserError

if TYPE_CHECKING:
  import ml_collections

  from vit_jax import experiment as experiment_lib
  from vit_jax import models
  from vit_jax.optim import rules as rules_lib

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
    gflop: Of a forward pass of one image, modules within it included.
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
  experiment = None
  if path is None:
    model, image_shape, experiment, config = _configured(config)
  else:
    loaded = cli.load(FLAGS)
    config = _stored_config(path)
    model, preprocess = loaded.model, loaded.preprocess
    image_shape = (*preprocess.image_size, preprocess.channels)
    if config is not None and _MEMORY.value:
      *_, experiment, config = _configured(config)
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
  if _FORMAT.value == 'json':
    print(json.dumps(_as_json(rows, memory)))
  else:
    print(_as_table(rows, memory))
  return 0


def _configured(
  config: 'ml_collections.ConfigDict',
) -> tuple[
  'models.Model',
  tuple[int, int, int],
  'experiment_lib.Experiment | None',
  'ml_collections.ConfigDict',
]:
  """Returns a config's model, image shape, experiment, and it filled in.

  Where it cannot be trained here, as without its data, there is no experiment.
  """
  from vit_jax import config as config_lib
  from vit_jax import experiment as experiment_lib
  from vit_jax import models

  experiment = None
  try:
    experiment_lib.check(config)
    # The checkpoint that it starts from is read only where that is the model.
    reads = config.model.name == config_lib.INIT_FROM
    experiment = experiment_lib.build(config, resumes=not reads)
    config = experiment.config
  except UserError as e:
    if config.model.num_classes is None:
      raise
    logging.warning('it cannot be trained here: %s', e)
  try:
    model = models.from_config(
      config.model, config.model.num_classes, config.train.dtype
    )
  except ValueError as e:
    raise UserError(f'config.model: {config_lib.one_line(e)}') from None
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  return model, (*size, config.data.channels), experiment, config


def _stored_config(path: str) -> 'ml_collections.ConfigDict | None':
  """Returns the config of a work directory; None of anything else."""
  from vit_jax import config as config_lib
  from vit_jax import weights
  from vit_jax import workdir

  if not weights.is_workdir(pathlib.Path(path)):
    return None
  stored = workdir.read_json(pathlib.Path(path) / 'config.json')
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

  from vit_jax import flops
  from vit_jax import models
  from vit_jax.optim import rules as rules_lib

  known = models.fields_of(model)
  unrolled: dict[str, Any] = {'scan': False, 'remat': 'none'}
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
  from vit_jax import experiment as experiment_lib

  return {
    'device': experiment.mesh.devices.flat[0].device_kind,
    'batch_size': experiment.config.train.batch_size,
  } | experiment_lib.plan_memory(experiment)


def _as_json(rows: list[Row], memory: dict[str, Any] | None) -> dict[str, Any]:
  whole, *modules = map(dataclasses.asdict, rows)
  del whole['module']
  return {'modules': modules, **whole, 'memory': memory}


@dataclasses.dataclass(frozen=True)
class _Line:
  module: str
  output: str
  parameters: int
  trainable: str
  gflop: str


def _as_table(rows: list[Row], memory: dict[str, Any] | None) -> str:
  from clu import parameter_overview

  whole, *modules = rows
  lines = [
    _Line(
      row.module or 'total',
      ', '.join(['B', *map(str, row.output_shape[1:])])
      if row.output_shape
      else '',
      row.parameters,
      row.trainable,
      f'{row.gflop:.4g}',
    )
    for row in (*modules, whole)
  ]
  text = parameter_overview.make_table(lines)
  if memory is None:
    return text
  sizes = dict(memory)
  device, batch_size = sizes.pop('device'), sizes.pop('batch_size')
  unit, scale = ('GiB', 1) if sizes['total'] >= 1 else ('MiB', 1024)
  text += (
    f'\n{unit} a device for training with {batch_size} images, as the compiler'
    f' for {device} plans it:'
  )
  for name, gib in sizes.items():
    text += f'\n  {name:<12}{scale * gib:>10.3f}'
  return text


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
