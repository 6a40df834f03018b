"""A model as a table: its modules, their parameters and their cost."""

import dataclasses
import re

from flax import traverse_util
import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import models
from vit_jax import tables
from vit_jax.optim import rules as rules_lib
from vit_jax.train import flops


@dataclasses.dataclass(frozen=True)
class Row:
  """A module, or a parameter of the outermost module itself.

  Attributes:
    module: Its path, as `blocks_0/mlp`; '' is the whole model.
    output_shape: Shape for one image; None for a parameter.
    parameters: Number of elements, submodules included.
    trainable: 'yes', 'no' or 'part'; '-' without parameters.
    gflop: GFLOP of a forward pass of one image, including submodules.
  """

  module: str
  output_shape: tuple[int, ...] | None
  parameters: int
  trainable: str
  gflop: float


def summarize(
  model: models.Model,
  image_shape: tuple[int, ...],
  optim: ml_collections.ConfigDict,
) -> list[Row]:
  """Returns a row for each module, in the order of their calls.

  Only shapes are computed. The outermost module comes first, then its own
  parameters; scanned layers are shown one by one. `optim` is `config.optim`,
  which says what trains.
  """
  model = models.with_kernel(model, 'plain')
  if hasattr(model, 'scan'):
    model = model.clone(scan=False, remat='none')
  params = models.abstract_params(model, image_shape)
  images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
  names = traverse_util.flatten_dict(params, sep='/')
  optim = optim.copy_and_resolve_references()
  optim.rules = tuple(  # without those for what a method has beside its model
    rule for rule in optim.rules if any(re.search(rule[0], x) for x in names)
  )
  parameters = rules_lib.make(optim, params).parameters
  modules = flops.by_module(
    lambda params, x: model.apply({'params': params}, x), params, images
  )
  shapes = {'/'.join(path): shape for path, (_, shape) in modules.items()}
  counts = {'/'.join(path): count for path, (count, _) in modules.items()}
  top_parameters = {name: None for name in parameters if '/' not in name}
  shapes = {'': shapes.pop('')} | top_parameters | shapes
  return [_row(name, x, parameters, counts) for name, x in shapes.items()]


def _row(
  name: str,
  shape: tuple[int, ...] | None,
  parameters: dict[str, rules_lib.Parameter],
  counts: dict[str, int],
) -> Row:
  def within(path: str) -> bool:
    return not name or path == name or path.startswith(f'{name}/')

  contained = [p for path, p in parameters.items() if within(path)]
  trains = {p.trains for p in contained}
  flop = sum(count for path, count in counts.items() if within(path))
  trainable = 'part' if len(trains) == 2 else 'yes' if True in trains else 'no'
  size = sum(p.size for p in contained)
  return Row(name, shape, size, trainable if contained else '-', flop / 1e9)


def table(rows: list[Row]) -> tables.Table:
  """Returns the modules of a model, the whole model last."""
  total, *modules = rows

  def shape_text(shape: tuple[int, ...] | None) -> str:
    return ', '.join(['B', *map(str, shape[1:])]) if shape else ''

  lines = [
    (
      *(row.module or 'total', shape_text(row.output_shape)),
      *(row.parameters, row.trainable, row.gflop),
    )
    for row in (*modules, total)
  ]
  names = 'module', 'output', 'parameters', 'trainable', 'GFLOP'
  return tables.Table(names, lines)
