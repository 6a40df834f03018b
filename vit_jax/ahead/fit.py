"""Finds the largest batch whose training step fits into a device.

The compiler of the device answers for each batch size that is tried.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING

from absl import logging

from vit_jax import tables
from vit_jax.ahead import step
from vit_jax.parallel import topologies

if TYPE_CHECKING:
  import ml_collections

# Images of a device that are tried: the answer is one of these.
SIZES = (
  *(1, 2, 4, *range(8, 256, 8)),
  *(*range(256, 512, 16), *range(512, 4097, 64)),
)
_FIRST = 64
_MOST_GUESSES = 4  # then halves: a line that is wrong would lead on slowly
# Values of `model.remat`, by rising recomputation.
REMATS = ('none', 'activations', 'products', 'full')


@dataclasses.dataclass(frozen=True)
class Fit:
  """The largest batch for one way to execute the layers."""

  scan: bool  # value of `model.scan`
  remat: str  # value of `model.remat`
  # Images of each device that splits the batch; 0: not even one fits.
  images: int
  batch_size: int  # global batch size
  ahead: step.Ahead | None  # the compiled step of that batch; None if none fits
  compiled: int  # number of batch sizes that were compiled


def run(
  config: 'ml_collections.ConfigDict', topology: topologies.Topology
) -> list[Fit]:
  """Finds the largest batch, for layers unrolled and scanned, by remat."""
  from vit_jax import models

  largest = []
  model = models.from_config(config.model, 0)
  for scan in (False, True) if models.has_equal_layers(model) else (False,):
    for remat in REMATS:
      largest.append(_largest(config, topology, scan, remat))
      logging.info('%s', ', '.join(_cells(largest[-1])))
  return largest


def _largest(
  config: 'ml_collections.ConfigDict',
  topology: topologies.Topology,
  scan: bool,
  remat: str,
) -> Fit:
  from vit_jax.parallel import mesh as mesh_lib

  config = config.copy_and_resolve_references()
  config.model.scan, config.model.remat = scan, remat
  config.train.accumulation = 1
  shape = mesh_lib.mesh_shape(config.mesh, topology.size)
  ways = shape['data'] * shape['fsdp']
  fitting: dict[int, step.Ahead] = {}

  def compile_for(images: int) -> tuple[bool, float | None]:
    config.train.batch_size = images * ways
    ahead = step.run(config, topology)
    if not ahead.problem:
      fitting[images] = ahead
    # What a compiler that ran out of memory says may lack the number.
    return not ahead.problem, ahead.total_gib or None

  limit = topology.hardware.memory / 2**30
  images, compiled = search(SIZES, compile_for, limit)
  return Fit(scan, remat, images, images * ways, fitting.get(images), compiled)


def search(
  sizes: Sequence[int],
  probe: Callable[[int], tuple[bool, float | None]],
  limit: float,
) -> tuple[int, int]:
  """Returns the largest size that fits, or 0; and the number of sizes tried.

  Bisection, but not at the middle: memory grows nearly linearly with the size,
  so that three or four sizes are enough. Sizes ascend. `probe` says of one
  whether it fits, and the memory that it needs; None: not known.
  """
  low, high = -1, len(sizes)  # fits, does not fit
  index = min(range(len(sizes)), key=lambda i: abs(sizes[i] - _FIRST))
  points: list[tuple[int, float]] = []
  count = 0
  while high - low > 1:
    fits, memory = probe(sizes[index])
    count += 1
    low, high = (index, high) if fits else (low, index)
    if memory is not None:
      points.append((sizes[index], memory))
    index = (low + high) // 2
    # On the line through two points, the size that needs `limit`.
    (x0, y0), (x1, y1) = [(0, 0.0), (0, 0.0), *points][-2:]
    if count < _MOST_GUESSES and x1 != x0 and (y1 - y0) / (x1 - x0) > 0:
      guess = x1 + (limit - y1) * (x1 - x0) / (y1 - y0)
      index = sum(size <= guess for size in sizes) - 1
    index = min(max(index, low + 1), high - 1)
  return (sizes[low] if low >= 0 else 0), count


def table(fits: Sequence[Fit], topology: str) -> str:
  """Returns the largest batches as readable text."""
  names = 'layers,remat,images each,batch,GiB,step ms,images/s,MFU'.split(',')
  text = tables.Table(names, map(_cells, fits)).text(tables.room())
  return (
    f'the largest batch on {topology} (compiled; times: all operations at the'
    f' peaks, computed)\n{text}'
  )


def _cells(fit: Fit) -> tuple[str, ...]:
  layers = 'scanned' if fit.scan else 'unrolled'
  if fit.ahead is None:
    return layers, fit.remat, '0', '0', '', '', '', ''
  ahead, times = fit.ahead, ('', '', '')
  if ahead.step_seconds is not None and ahead.mfu is not None:
    rate = fit.batch_size / ahead.step_seconds
    times = (
      f'{1e3 * ahead.step_seconds:.1f}',
      f'{rate:,.0f}',
      f'{ahead.mfu:.0%}',
    )
  batch, total = f'{fit.batch_size:,}', f'{ahead.total_gib:.2f}'
  return (layers, fit.remat, str(fit.images), batch, total, *times)
