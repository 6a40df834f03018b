r"""Compiles a training step ahead of time for TPUs or GPUs that are not here.

Their own compilers do it, in another process, which gets a request as JSON on
stdin and writes the answer to stdout:

  echo '{"hardware": "v5e:2x2", "slices": 1, "folder": "/tmp/hlo", \
      "config": {...}}' | python -m vit_jax.ahead.step
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import os
import re
import tempfile
import time
from typing import Any
from typing import TYPE_CHECKING

from absl import logging

from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.ahead import collectives as collectives_lib
from vit_jax.ahead import compiled as compiled_lib
from vit_jax.ahead import plan as plan_lib
from vit_jax.ahead import roofline
from vit_jax.config import UserError
from vit_jax.parallel import topologies

if TYPE_CHECKING:
  import ml_collections


@dataclasses.dataclass(frozen=True)
class Ahead:
  """A step as it was compiled; numbers are of one device."""

  topology: str  # the devices, as `--hardware` names them
  devices: int  # their number
  mesh: dict[str, int]  # sizes of the mesh axes
  batch_size: int  # global batch size
  accumulation: int  # number of microbatches
  limit_gib: float  # memory of the device, as its maker states it
  problem: str  # why the step does not fit, as the compiler says; '' if it fits
  total_gib: float  # memory of the step: state, batch and temporaries
  model_flops: int  # FLOPs of a step if nothing is computed twice
  compile_seconds: float  # time to compile the step
  # What the compiled program costs; None if it does not fit.
  cost: compiled_lib.Cost | None = None
  # Its collectives.
  collectives: list[collectives_lib.Collective] = dataclasses.field(
    default_factory=list
  )
  exchange_seconds: float | None = None  # assumed time of the collectives
  # Time of a step: all operations and collectives, one by one.
  step_seconds: float | None = None
  # Fraction of the peak that the model's own FLOPs are in that time.
  mfu: float | None = None


def run_or_plan(
  config: 'ml_collections.ConfigDict', topology: topologies.Topology
) -> Ahead | plan_lib.Plan:
  """Compiles a step for a topology, or plans it where there is no compiler."""
  extra = topologies.missing_extra(topology)
  if extra is None:
    return run(config, topology)
  logging.warning(
    "the compiler for %s is missing: pip install -e '.[%s]'; planned on virtual"
    ' CPU devices instead',
    topology,
    extra,
  )
  return plan_lib.run(config, topology.size)


def run(
  config: 'ml_collections.ConfigDict', topology: topologies.Topology
) -> Ahead:
  """Compiles the training step of a config in another process."""
  answer = ask('vit_jax.ahead.step', config, topology)
  exchanges = collectives_lib.load(answer.pop('collectives'))
  cost = answer.pop('cost')
  if cost is not None:
    slowest = [compiled_lib.Operation(**x) for x in cost.pop('slowest')]
    cost = compiled_lib.Cost(**cost, slowest=slowest)
  return Ahead(**answer, cost=cost, collectives=exchanges)


def ask(
  module: str,
  config: 'ml_collections.ConfigDict',
  topology: topologies.Topology,
) -> dict[str, Any]:
  """Runs a module, whose `main` is `answer`, in another process."""
  extra = topologies.missing_extra(topology)
  if extra is not None:
    raise UserError(
      f'--hardware={topology}: its compiler is missing: pip install -e'
      f" '.[{extra}]'"
    )
  with tempfile.TemporaryDirectory() as folder:
    variables = plan_lib.virtual_devices(topology.size)  # for checks of meshes
    flags = f'{variables["XLA_FLAGS"]} {compiled_lib.dump_flags(folder)}'
    variables |= topologies.environment(topology, flags)
    request = {
      'hardware': f'{topology.name}:{"x".join(map(str, topology.shape))}',
      'slices': topology.slices,
      'folder': folder,
      'config': config_lib.to_dict(config),
    }
    return plan_lib.ask(module, request, variables)


def answer(
  compute: Callable[
    ['ml_collections.ConfigDict', topologies.Topology, str], dict[str, Any]
  ],
) -> None:
  """Answers one request of `ask`, and ends the process.

  `compute` gets the config, the topology and the folder of the programs.
  """

  def compute_for(request: Mapping[str, Any]) -> dict[str, Any]:
    config = config_lib.from_dict(request['config'])
    topology = topologies.parse(request['hardware'], request['slices'])
    return compute(config, topology, request['folder'])

  plan_lib.reply(compute_for)
  os._exit(0)  # the threads of a compiler without a device may never end


def make(
  config: 'ml_collections.ConfigDict',
  topology: topologies.Topology,
  folder: str,
) -> Ahead:
  """Compiles the step of a config in this process; XLA writes to `folder`."""
  import jax

  program = plan_lib.make_program(config, topologies.devices(topology))
  lowered = plan_lib.lower(program)
  start = time.perf_counter()
  compiled, problem, needed = None, '', 0.0
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    if 'RESOURCE_EXHAUSTED' not in str(e):
      raise
    problem, needed = _exhausted(e)
  result = Ahead(
    topology=str(topology),
    devices=program.mesh.size,
    mesh=dict(program.mesh.shape),
    batch_size=config.train.batch_size,
    accumulation=config_lib.num_microbatches(config),
    limit_gib=topology.hardware.memory / 2**30,
    problem=problem,
    total_gib=needed,
    compile_seconds=time.perf_counter() - start,
    model_flops=program.flops.step // program.mesh.size,
  )
  return _read(result, compiled, topology, folder) if compiled else result


def _exhausted(error: Exception) -> tuple[str, float]:
  """Returns what a compiler says of too little memory, and the GiB needed."""
  number = r'([\d.]+)([KMGT])'
  message = str(error)
  match = re.search(rf'Used {number} of {number} \w+', message) or re.search(
    rf'\({number}\) exceeds available HBM \({number}\)', message
  )
  if match is None:
    return config_lib.one_line(error)[:200], 0.0
  scale = {'K': 2**-20, 'M': 2**-10, 'G': 1.0, 'T': 2.0**10}
  needed = float(match[1]) * scale[match[2]]
  limit = float(match[3]) * scale[match[4]]
  return f'{needed:,.2f} GiB of {limit:.2f}', needed


def _read(
  result: Ahead, compiled: Any, topology: topologies.Topology, folder: str
) -> Ahead:
  hardware = topology.hardware
  module = compiled_lib.parse(compiled, folder)
  cost = compiled_lib.cost(compiled, module, hardware)
  total = cost.temporary_gib + cost.argument_gib
  problem = ''
  if total > result.limit_gib and not topology.is_tpu:
    problem = f'{total:.2f} GiB of {result.limit_gib:.2f}'
  exchanges = collectives_lib.count(module, result.mesh, as_written=True)
  times = [
    roofline.transfer_seconds(c, result.mesh, hardware) for c in exchanges
  ]
  exchange = None if None in times else sum(x or 0.0 for x in times)
  step = None if exchange is None else cost.seconds + exchange
  return dataclasses.replace(
    result,
    problem=problem,
    total_gib=total,
    cost=cost,
    collectives=exchanges,
    exchange_seconds=exchange,
    step_seconds=step,
    mfu=step and result.model_flops / (hardware.peak_flops * step),
  )


def table(ahead: Ahead) -> str:
  """Returns a compiled step as readable text."""
  mesh = ', '.join(f'{axis}={size}' for axis, size in ahead.mesh.items())
  lines = [
    f'a step of {ahead.batch_size:,} images on {ahead.topology}, {mesh};'
    ' each device:',
    '',
  ]
  if ahead.cost is None:
    return '\n'.join([*lines, f'does not fit: {ahead.problem} (compiled)'])
  free = ahead.limit_gib - ahead.total_gib
  fits = 'does not fit' if ahead.problem else 'fits'
  if free > 0:  # else it fits only by what the compiler knows of the device
    fits = f'fits, {free:.2f} free'
  cost, needed = ahead.cost, ahead.model_flops / 1e12
  rows = [
    ('state and batch', f'{cost.argument_gib:.3f} GiB', 'compiled'),
    ('temporaries', f'{cost.temporary_gib:.3f} GiB', 'compiled'),
    ('total', f'{ahead.total_gib:.3f} GiB', 'computed'),
    ('memory of the device', f'{ahead.limit_gib:.2f} GiB', 'assumed'),
    ('', fits, 'computed'),
    ('matrix products', f'{cost.tflop:.3f} TFLOP', 'computed'),
    ('needed by the model', f'{needed:.3f} TFLOP', 'computed'),
    ('accessed, on the chip too', f'{cost.accessed_gb:.1f} GB', 'compiled'),
    ('traffic of device memory', f'{cost.traffic_gb:.1f} GB', 'computed'),
    ('copies', f'{cost.copies}', 'compiled'),
    ('transposes', f'{cost.transposes}', 'compiled'),
    ('traffic of these', f'{cost.moved_gb:.2f} GB', 'computed'),
    ('operations, at the peaks', f'{1e3 * cost.seconds:.2f} ms', 'computed'),
  ]
  if ahead.step_seconds is not None:
    assert ahead.exchange_seconds is not None and ahead.mfu is not None
    rows += [
      ('collectives', f'{1e3 * ahead.exchange_seconds:.2f} ms', 'assumed'),
      ('step, one by one', f'{1e3 * ahead.step_seconds:.2f} ms', 'assumed'),
      ('MFU', f'{ahead.mfu:.1%}', 'assumed'),
    ]
  lines += [
    tables.Table((), rows).text(indent='  '),
    '',
    'collectives (compiled)',
    plan_lib.collective_text(ahead.collectives),
    '',
    f'the {len(cost.slowest)} longest operations (computed)',
    _operations(cost.slowest).text(tables.room(), '  '),
  ]
  if cost.unknown_loops:
    lines.append(
      f'at least: {len(cost.unknown_loops)} loops have an unknown number of'
      ' iterations'
    )
  return '\n'.join(lines)


def _operations(slowest: list[compiled_lib.Operation]) -> tables.Table:
  names = 'operation', 'times', 'ms', 'GFLOP', 'MB', 'module', 'source'
  rows = [
    (
      x.name,
      x.executions,
      f'{1e3 * x.seconds:.3f}',
      f'{x.flops / 1e9:.1f}',
      f'{x.bytes / 1e6:.1f}',
      x.module,
      '/'.join(x.source.split('/')[-2:]),
    )
    for x in slowest
  ]
  return tables.Table(names, rows)


def main() -> None:
  """Answers one request, and ends the process."""
  answer(lambda *of: dataclasses.asdict(make(*of)))


if __name__ == '__main__':
  main()
