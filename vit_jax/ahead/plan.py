"""Plans a training step for any number of devices, on a machine without them.

Another process compiles the step ahead of time for as many virtual CPU devices,
without allocating arrays or reading data. It gets the config as JSON on stdin,
and writes the plan to stdout:

  echo '{"devices": 8, "config": {...}}' | python -m vit_jax.ahead.plan
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import Any
from typing import cast
from typing import TYPE_CHECKING

from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.ahead import collectives
from vit_jax.ahead import hlo
from vit_jax.ahead import products
from vit_jax.config import UserError

if TYPE_CHECKING:
  import jax
  import ml_collections

  from vit_jax.train import program as program_lib

MOST_DEVICES = 2048  # with more, XLA takes them for other processes' devices

_AXES = ('data', 'fsdp', 'tensor')

# The program is not run, so quick compilation matters more than fast code.
_QUICK = {
  'xla_backend_optimization_level': 0,
  'xla_llvm_disable_expensive_passes': True,
}


@dataclasses.dataclass(frozen=True)
class Plan:
  """The resources that a training step needs on each device."""

  devices: int  # number of devices
  mesh: dict[str, int]  # sizes of the mesh axes
  batch_size: int  # global batch size
  accumulation: int  # number of microbatches
  # GiB of parameters, gradients (of trainable parameters), optimizer, average
  # (of the parameters), activations (and all other temporary memory, as
  # planned by the CPU compiler), and their total.
  memory: dict[str, float]
  # Whether the activations do not show the savings of `model.remat`, since
  # the CPU compiler recomputes unrolled layers too early.
  hides_remat: bool
  collectives: list[collectives.Collective]  # collectives of a step
  flops: int  # FLOPs of the products that a device computes in a step
  model_flops: int  # FLOPs of a device if nothing is computed twice
  # Loops with an unknown number of iterations, counted as one.
  unknown_loops: list[str]
  # Seconds to trace ('make') and to compile the program.
  seconds: dict[str, float]


def complete(
  config: 'ml_collections.ConfigDict',
) -> 'ml_collections.ConfigDict':
  """Completes a config: its objective's options, classes and model.

  Data and checkpoint are opened only if the config leaves these open.
  """
  from vit_jax import data
  from vit_jax import objectives
  from vit_jax.train import experiment
  from vit_jax.train import variant

  config_lib.check(config)
  variant.check(config)
  experiment.check_start(config)
  config = config.copy_and_resolve_references()
  objectives.fill_options(config)
  if config.model.num_classes is None:
    try:
      data.check(config)
      source = data.open_source(config, config.data.split)
    except (UserError, data.SplitError) as e:
      raise UserError(
        f'{e}; to plan without the data, set --config.model.num_classes'
      ) from None
    objective = objectives.objective_class(config)
    config.model.num_classes = objective.num_outputs(source.features)
    config.data.source_size = source.image_shape
    config.data.bits = config.data.bits or source.bits()
  if config.model.name == config_lib.INIT_FROM:
    experiment.fill_from_checkpoint(config)
    experiment.fill_unset(config)
  return config


def run(config: 'ml_collections.ConfigDict', devices: int) -> Plan:
  """Plans the step of a complete config in a process with virtual devices."""
  if not 1 <= devices <= MOST_DEVICES:
    raise UserError(
      f'--devices={devices}: plan for 1 to {MOST_DEVICES} devices'
    )
  request = {'devices': devices, 'config': config_lib.to_dict(config)}
  answer = ask('vit_jax.ahead.plan', request, virtual_devices(devices))
  exchanges = collectives.load(answer.pop('collectives'))
  return Plan(**answer, collectives=exchanges)


def ask(
  module: str, request: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, Any]:
  """Returns the answer of a module's `main`, by `reply`, in another process."""
  root = str(pathlib.Path(__file__).parents[2])
  path = [root, *filter(None, [os.environ.get('PYTHONPATH')])]
  done = subprocess.run(
    [sys.executable, '-m', module],
    input=json.dumps(request),
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(path), **variables},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode == -signal.SIGKILL:
    raise UserError(
      'planning was killed, as happens where memory is short: plan with'
      ' --config.model.scan=True, or for fewer devices'
    )
  if done.returncode:
    raise RuntimeError(
      f'planning ended with status {done.returncode}:\n{done.stderr}'
    )
  answer = json.loads(done.stdout.splitlines()[-1])
  if 'error' in answer:
    raise UserError(answer['error'])
  return answer


def reply(compute: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
  """Answers one request of `ask`: the last line of stdout, as JSON."""
  request = json.load(sys.stdin)
  try:
    answer = compute(request)
  except UserError as e:
    answer = {'error': str(e)}
  print(json.dumps(answer), flush=True)


def virtual_devices(count: int) -> dict[str, str]:
  """Returns environment variables that make JAX have virtual CPU devices."""
  flags = re.sub(
    r'--xla_force_host_platform_device_count=\S+',
    '',
    os.environ.get('XLA_FLAGS', ''),
  )
  return {
    'JAX_PLATFORMS': 'cpu',
    'JAX_NUM_CPU_DEVICES': str(count),
    'JAX_ENABLE_COMPILATION_CACHE': 'false',  # the program is never run
    'XLA_FLAGS': flags,
  }


def lower(program: 'program_lib.Program') -> Any:
  """Lowers the training step of a program, for the shapes that it takes."""
  import numpy as np

  return program.train_step.lower(
    program.abstract_state(), program.abstract_batch(), np.int32(0)
  )


def make(config: 'ml_collections.ConfigDict') -> Plan:
  """Plans the step of a complete config for the devices of this process."""
  from vit_jax.train import dry_run

  start = time.perf_counter()
  program = make_program(config)
  lowered = lower(program)
  lowering_end = time.perf_counter()
  compiled = lowered.compile(compiler_options=_QUICK)
  done = time.perf_counter()
  module = hlo.parse(compiled.as_text())
  mesh, temporary = dict(program.mesh.shape), compiled.memory_analysis()
  unrolls = not config.model.scan
  return Plan(
    devices=program.mesh.size,
    mesh=mesh,
    batch_size=config.train.batch_size,
    accumulation=config_lib.num_microbatches(config),
    memory=dry_run.memory(program, temporary.temp_size_in_bytes),
    hides_remat=unrolls and config.model.remat not in ('auto', 'none'),
    collectives=collectives.count(module, mesh),
    flops=products.flops(module),
    model_flops=program.flops.step // program.mesh.size,
    unknown_loops=hlo.unknown_loops(module),
    seconds={'make': lowering_end - start, 'compile': done - lowering_end},
  )


def make_program(
  config: 'ml_collections.ConfigDict',
  devices: 'Sequence[jax.Device] | None' = None,
) -> 'program_lib.Program':
  """Returns the program of a complete config, with stand-ins for its data.

  Where steps differ by their number, it is of those with the most memory.
  """
  from vit_jax import optim
  from vit_jax.objectives import stand_in
  from vit_jax.train import experiment
  from vit_jax.train import program as program_lib

  checked = config.copy_and_resolve_references()
  checked.data.name = 'digits'  # the data of the config may be missing
  experiment.check(checked, devices[0].platform if devices else None)
  size = config.data.source_size
  if size is not None:
    size = cast(Any, config_lib.sides(size, 'data.source_size'))
  features = stand_in.features(config, size)
  # The length of the run only changes constants of the program.
  lengths = optim.Lengths(total=1000)
  return program_lib.create(config, features, lengths, devices).variants[0]


def parse_mesh(text: str, devices: int | None) -> dict[str, int]:
  """Parses mesh sizes: `fsdp=8`, `data=2,fsdp=4,tensor=1` or `2,4,1`.

  Missing axes have size 1, except for `data`, which takes the remaining
  devices, like an axis of size -1. `devices` None stands for as many as the
  product of the sizes.
  """
  pairs = [part.partition('=') for part in text.split(',')]
  if len(pairs) == len(_AXES) and not any(sign for _, sign, _ in pairs):
    pairs = [(axis, '=', x[0]) for axis, x in zip(_AXES, pairs, strict=True)]
  named = {axis.strip(): size.strip() for axis, _, size in pairs}
  is_known = set(named) <= set(_AXES) and len(named) == len(pairs)
  is_size = all(re.fullmatch(r'-1|[1-9]\d*', x) for x in named.values())
  if not is_known or not is_size or [*named.values()].count('-1') > 1:
    raise UserError(
      f'--mesh={text}: write the sizes of its axes, as data=1,fsdp=8,tensor=1,'
      ' fsdp=8 (data takes the other devices) or 1,8,1'
    )
  open_axis = next((axis for axis, x in named.items() if x == '-1'), 'data')
  sizes = dict.fromkeys(_AXES, 1) | {axis: int(x) for axis, x in named.items()}
  if named.get(open_axis, '-1') == '-1':
    fixed_size = math.prod(x for axis, x in sizes.items() if axis != open_axis)
    sizes[open_axis] = max((devices or fixed_size) // fixed_size, 1)
  if devices is not None and math.prod(sizes.values()) != devices:
    raise UserError(
      f'--mesh={text} does not fit --devices={devices}: their number must be'
      ' the product of the sizes'
    )
  return sizes


def table(plan: Plan) -> str:
  """Returns a plan as readable text."""
  mesh = ', '.join(f'{axis}={size}' for axis, size in plan.mesh.items())
  unit, scale = ('GiB', 1) if plan.memory['total'] >= 1 else ('MiB', 1024)
  lines = [
    f'a step of {plan.batch_size:,} images on {plan.devices:,} devices,'
    f' {mesh}; each:',
    '',
    f'{unit}, the activations as the CPU compiler plans them',
  ]
  if plan.hides_remat:
    lines.append('  (it shows what remat saves only with model.scan=True)')
  memory = [(name, f'{scale * x:.3f}') for name, x in plan.memory.items()]
  lines += [
    tables.Table((), memory).text(indent='  '),
    '',
    f'GFLOP of products: {plan.flops / 1e9:,.4g} computed,'
    f' {plan.model_flops / 1e9:,.4g} needed by the model',
    '',
    'collectives of the compiled program',
    collective_text(plan.collectives),
  ]
  if plan.unknown_loops:
    lines.append(
      f'  at least: XLA does not say how often {len(plan.unknown_loops)} loops'
      ' go round'
    )
  return '\n'.join(lines)


def collective_text(exchanges: list[collectives.Collective]) -> str:
  """Returns collectives as a table for people."""
  rows = []
  for c in exchanges:
    note = ''
    if c.parts > 1:
      note = f'each keeps 1/{c.parts}'
    elif c.overlapped:
      note = f'{c.overlapped} of them beside products'
    mib = f'{c.bytes / 2**20:.3f}'
    axes = '+'.join(c.axes)
    rows.append((c.kind, axes, c.group_size, c.executions, mib, note))
  names = 'kind', 'along', 'among', 'times', 'MiB', ''
  return tables.Table(names, rows).text(indent='  ') if rows else '  none'


def main() -> None:
  """Answers one request."""
  reply(lambda x: dataclasses.asdict(make(config_lib.from_dict(x['config']))))


if __name__ == '__main__':
  main()
