"""Estimates the time of a planned training step on given hardware.

Devices compute at an assumed fraction of their peak, and links and networks
carry an assumed fraction of their bandwidth. The estimate is a range: with full
overlap of communication and compute, and with none. All `ASSUMPTIONS` are
printed with each table.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import math
import textwrap
from typing import TYPE_CHECKING

import numpy as np

from vit_jax import tables
from vit_jax.parallel import hardware as hardware_lib

if TYPE_CHECKING:
  from vit_jax.ahead import collectives
  from vit_jax.ahead import plan as plan_lib

COMPUTE = 0.5  # of the peak, in a step without communication
LINKS = 0.8  # of the bandwidth of links and networks
LATENCY = 10e-6  # seconds for each collective

ASSUMPTIONS = (
  f'compute: the products of the compiled program, at {COMPUTE:.0%} of the peak'
  ' for bfloat16 (float32 is slower)',
  'memory: what the CPU compiler keeps of activations is written and read once'
  ' for each part of the batch',
  'update: after the backward pass, state and gradients are read and written'
  ' once',
  f'exchange: rings at {LINKS:.0%} of the published one-way bandwidth, of all'
  f' links of a TPU together, and {LATENCY * 1e6:.0f} us for each collective;'
  ' among several nodes, first within each node, then each its share over'
  ' its own network port',
  'values that were just widened from bfloat16 travel as such (a CPU has no'
  ' bfloat16 arithmetic; GPUs and TPUs have)',
  'an all-reduce of which each device keeps a part is a reduce-scatter, as GPU'
  ' and TPU compilers make it: half the traffic',
  'overlap: at best, all communication along data and fsdp is hidden behind'
  ' compute; along tensor none is, as each product waits for it. At worst,'
  ' nothing is hidden',
  "efficiency: time for the model's own products, nothing computed twice, at"
  " compute's rate, over the step's time",
  'reading images is not counted; devices of a node are neighbours in the mesh,'
  ' whose last axes stay within a node where they fit',
)


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A training step on one kind of hardware; times in seconds."""

  hardware: str  # name of the hardware
  fits: bool  # whether the planned memory fits
  compute: float  # time of the products
  # Time of reading and writing activations, concurrent with compute.
  memory: float
  update: float  # time of the optimizer
  # Times by the axes of the mesh, as 'data+fsdp'.
  communication: dict[str, float]
  best: float  # time of the step with all possible overlap
  worst: float  # time of the step without overlap
  efficiency: tuple[float, float]  # (worst, best), from 0 to 1
  images_per_second: tuple[float, float]  # (worst, best), over all devices
  # The longest part: compute, memory, update, or the axes of the mesh.
  bound: str


def estimate(
  plan: 'plan_lib.Plan', hardware: hardware_lib.Hardware
) -> Estimate | None:
  """Estimates a planned step; see `ASSUMPTIONS`.

  None if the devices need a network of unknown speed.
  """
  communication: dict[str, float] = {}
  for transfer in transfers(plan.collectives, plan.mesh):
    seconds = transfer_seconds(transfer, plan.mesh, hardware)
    if seconds is None:
      return None
    axes = '+'.join(transfer.axes)
    communication[axes] = communication.get(axes, 0.0) + seconds
  memory = {name: gib * 2**30 for name, gib in plan.memory.items()}
  state = memory['parameters'] + memory['optimizer'] + memory['average']
  moved = 2 * plan.accumulation * memory['activations']
  updated = 2 * (state + memory['gradients'])
  local = {
    'compute': plan.flops / (COMPUTE * hardware.peak_flops),
    'memory': moved / hardware.memory_bandwidth,
    'update': updated / hardware.memory_bandwidth,
  }
  exposed = sum(s for axes, s in communication.items() if 'tensor' in axes)
  hidden = sum(communication.values()) - exposed
  concurrent = max(local['compute'], local['memory'])
  best = max(concurrent, hidden) + local['update'] + exposed
  worst = concurrent + hidden + local['update'] + exposed
  terms = local | communication
  needed = plan.model_flops / (COMPUTE * hardware.peak_flops)
  return Estimate(
    hardware=hardware.name,
    fits=memory['total'] <= hardware.memory,
    **local,
    communication=communication,
    best=best,
    worst=worst,
    efficiency=(needed / worst, needed / best),
    images_per_second=(plan.batch_size / worst, plan.batch_size / best),
    bound=max(terms, key=lambda name: terms[name]),
  )


def transfers(
  exchanges: 'Sequence[collectives.Collective]', mesh: dict[str, int]
) -> 'Iterator[collectives.Collective]':
  """Yields the collectives that an accelerator executes in place of a CPU's.

  Their `bytes` are the narrow ones. `mesh` has the sizes of its axes.
  """
  for c in exchanges:
    narrow = dataclasses.replace(c, bytes=c.narrow_bytes)
    # The last axes whose sizes multiply to `parts`.
    ends = [c.axes[start:] for start in range(len(c.axes))]
    fitting = [x for x in ends if math.prod(mesh[y] for y in x) == c.parts]
    if c.parts == 1 or not fitting:
      yield narrow
      continue
    inner = fitting[0]
    yield dataclasses.replace(
      narrow, kind='reduce-scatter', axes=inner, group_size=c.parts
    )
    if outer := tuple(axis for axis in c.axes if axis not in inner):
      yield dataclasses.replace(
        narrow,
        axes=outer,
        group_size=c.group_size // c.parts,
        bytes=c.narrow_bytes // c.parts,
      )


def transfer_seconds(
  transfer: 'collectives.Collective',
  mesh: dict[str, int],
  hardware: hardware_lib.Hardware,
) -> float | None:
  """Returns the seconds of all executions; None if a network is not known."""
  n = transfer.group_size
  ids = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
  group = ids[tuple(slice(None) if x in transfer.axes else 0 for x in mesh)]
  nodes = min(n, len(np.unique(group // hardware.node_size)))
  node_devices = n / nodes  # devices of a group in each node
  link = LINKS * hardware.link_bandwidth
  network = LINKS * (hardware.network_bandwidth or math.nan)
  if transfer.kind == 'collective-permute':
    within, across = (0.0, 1.0) if nodes > 1 else (1.0, 0.0)
  elif transfer.kind == 'all-to-all':
    within, across = (node_devices - 1) / n, (n - node_devices) / n
  else:
    within = (node_devices - 1) / node_devices
    across = (nodes - 1) / nodes / node_devices
  times = 2 if transfer.kind == 'all-reduce' else 1
  seconds = transfer.executions * LATENCY
  seconds += times * within * transfer.bytes / link
  if across:
    seconds += times * across * transfer.bytes / network
  return None if math.isnan(seconds) else seconds


def table(estimates: Sequence[Estimate]) -> str:
  """Returns estimates as a table, with their assumptions."""
  names = (
    'device compute memory update exchange step efficiency images/s longest'
  )
  table = tables.Table(names.split(), map(_cells, estimates))
  lines = [table.text(tables.room())]
  if not all(e.fits for e in estimates):
    lines.append('* the planned memory is more than it has')
  lines.append('times in ms, from the best to the worst case; this assumes:')
  for text in ASSUMPTIONS:
    lines += textwrap.wrap(
      text, 80, initial_indent='- ', subsequent_indent='  '
    )
  return '\n'.join(lines)


def _cells(e: Estimate) -> tuple[str, ...]:
  def span(low: float, high: float, form: str) -> str:
    ends = format(low, form), format(high, form)
    return ends[0] if ends[0] == ends[1] else ' - '.join(ends)

  communication = sum(e.communication.values())
  return (
    e.hardware if e.fits else f'{e.hardware} *',
    *(f'{1e3 * x:.2f}' for x in (e.compute, e.memory, e.update, communication)),
    span(1e3 * e.best, 1e3 * e.worst, '.2f'),
    span(*e.efficiency, '.0%'),
    span(*e.images_per_second, ',.0f'),
    e.bound,
  )
