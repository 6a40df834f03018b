"""Reads a program that a TPU's or GPU's own compiler made.

Instructions are those of one device. Traffic is that of its memory: operands
and results of each instruction that is scheduled on its own, except those that
the compiler keeps on the chip.
"""

import dataclasses
import pathlib
import re
from typing import TYPE_CHECKING

from vit_jax.ahead import collectives
from vit_jax.ahead import hlo
from vit_jax.ahead import products
from vit_jax.parallel import hardware as hardware_lib

if TYPE_CHECKING:
  import jax

_SLOWEST = 10  # operations to report
# An array in a shape, with its layout: `bf16[128,768]{1,0:T(8,128)S(1)}`.
_ARRAY = re.compile(r'\w+\[[\d,<=]*\](?:\{[^}]*\})?')

# These move nothing: names of values, or results that were counted before.
_FREE = (
  'bitcast',
  'call',
  'conditional',
  'constant',
  'copy-done',
  'get-tuple-element',
  'iota',
  'parameter',
  'partition-id',
  'slice-done',
  'tuple',
  'while',
)


# Parts of an instruction's name that are no Linen modules.
_NO_MODULES = (
  'body',
  'checkpoint',
  'closed_call',
  'cond',
  'rematted_computation',
  'while',
)


@dataclasses.dataclass(frozen=True)
class Operation:
  """An instruction that is scheduled on its own.

  Attributes:
    name: Name in the program.
    kind: Its opcode, as 'fusion' or 'copy'.
    executions: Number of executions in a step.
    flops: FLOPs of its products, of all executions.
    bytes: Bytes that it reads and writes in device memory, of all executions.
    seconds: The longer of the times that these take at the peaks.
    module: Path of the module that it computes, as 'blocks_0/mlp'; may be ''.
    source: Source file and line; may be ''.
  """

  name: str
  kind: str
  executions: int
  flops: int
  bytes: int
  seconds: float
  module: str
  source: str


def operations(
  module: hlo.Module, hardware: hardware_lib.Hardware
) -> list[Operation]:
  """Returns the operations of a program, by descending time.

  Collectives are not among them; see `collectives`.
  """
  # Instructions inside a fusion exchange their values on the chip.
  fused = {
    id(module.computations[name])
    for computation in module.computations.values()
    for instruction in computation.values()
    if instruction.opcode not in ('while', 'call', 'conditional')
    for names in module.callees(instruction)
    for name in names
  }

  def find(
    instruction: hlo.Instruction, computation: hlo.Computation
  ) -> list[Operation]:
    if id(computation) in fused or instruction.opcode in _FREE:
      return []
    if _is_collective(module, instruction) or _is_free_call(instruction):
      return []
    return [_operation(module, instruction, computation, hardware)]

  executed = hlo.executed(module, find, lambda operation: operation.seconds)
  all_ = [
    dataclasses.replace(
      operation,
      executions=times,
      flops=times * operation.flops,
      bytes=times * operation.bytes,
      seconds=times * operation.seconds,
    )
    for operation, times in executed
  ]
  return sorted(all_, key=lambda operation: -operation.seconds)


def _is_collective(module: hlo.Module, instruction: hlo.Instruction) -> bool:
  kind = re.sub('-(start|done|update)$', '', instruction.opcode)
  if kind in collectives.KINDS:
    return True
  if kind in ('async', 'call', 'custom-call') and kind != instruction.opcode:
    called = list(module.all_callees(instruction))
    # Only the start names what is computed.
    return not called or any(
      x.opcode in collectives.KINDS
      for computation in called
      for x in computation.values()
    )
  return collectives.is_reduce_scatter(module, instruction)


def _is_free_call(instruction: hlo.Instruction) -> bool:
  """Returns whether it is a call that only gives a name to memory."""
  names = 'AllocateBuffer|ConcatBitcast'
  call = f'custom_call_target="({names})"'
  return re.search(call, instruction.attributes) is not None


def _operation(
  module: hlo.Module,
  instruction: hlo.Instruction,
  computation: hlo.Computation,
  hardware: hardware_lib.Hardware,
) -> Operation:
  flops = products.product_flops(module, instruction, computation)
  nbytes = _traffic(module, instruction, computation)
  return Operation(
    name=instruction.name,
    kind=instruction.opcode,
    executions=1,
    flops=flops,
    bytes=nbytes,
    seconds=max(
      flops / hardware.peak_flops, nbytes / hardware.memory_bandwidth
    ),
    module=_module_path(instruction),
    source=_source(module, instruction),
  )


def _traffic(
  module: hlo.Module,
  instruction: hlo.Instruction,
  computation: hlo.Computation,
) -> int:
  """Returns the bytes that an instruction moves to and from device memory."""
  if (cost := products.kernel_cost(instruction)) is not None:
    return cost[1]
  started = _started(module, instruction)
  if started in ('copy', 'slice'):
    # One end is on the chip, or both are in memory.
    shapes = _ARRAY.findall(instruction.shape)
    source, result = shapes[:2] if started == 'slice' else shapes[1::-1]
    ends = sum(bool(_in_memory(x)) for x in (source, result))
    return ends * hlo.nbytes(result)
  body = None
  if instruction.opcode == 'fusion':
    body = module.fused(instruction)
  moved = _written(instruction, body)
  for i, name in enumerate(instruction.operands):
    if name in computation:
      moved += _read(module, computation[name], i, body)
  return moved


def _started(module: hlo.Module, instruction: hlo.Instruction) -> str:
  """Returns the opcode of what an instruction starts; '' if it does not."""
  if instruction.opcode == 'async-start':  # as programs from `dump_flags` have
    return hlo.root(module.fused(instruction)).opcode
  kind, _, start = instruction.opcode.rpartition('-')
  return kind if start == 'start' else ''


def _in_memory(shape: str) -> int:
  """Returns the bytes of the arrays of a shape that are in device memory."""
  return sum(
    hlo.nbytes(array)
    for array in _ARRAY.findall(shape)
    if not re.search(r'S\([1-9]', array)  # another space is on the chip
  )


def _written(instruction: hlo.Instruction, body: hlo.Computation | None) -> int:
  """Returns the bytes that an instruction writes."""
  if body is None:
    return _in_memory(instruction.shape)
  root = hlo.root(body)
  parts = [root]
  if root.opcode == 'tuple':
    parts = [body[name] for name in root.operands]
  shapes = _ARRAY.findall(instruction.shape)
  if len(shapes) != len(parts):  # a fusion in the fusion returns several
    return _in_memory(instruction.shape)
  return sum(
    _written_part(part, shape, body)
    for part, shape in zip(parts, shapes, strict=True)
  )


def _written_part(
  part: hlo.Instruction, shape: str, body: hlo.Computation
) -> int:
  """Returns the bytes of one result of a fusion; `shape` is that outside."""
  while part.opcode == 'bitcast':
    part = body[part.operands[0]]
  if part.opcode == 'dynamic-update-slice':  # in place: a layer of a stack
    return hlo.nbytes(body[part.operands[1]].shape)
  return _in_memory(shape)


def _read(
  module: hlo.Module,
  value: hlo.Instruction,
  index: int,
  body: hlo.Computation | None,
) -> int:
  """Returns the bytes that a fusion or instruction reads of an operand."""
  size = _in_memory(value.shape)
  if body is None or not size:
    return size
  read_bytes = _read_inside(module, index, body)
  return size if read_bytes is None else read_bytes


def _read_inside(
  module: hlo.Module, index: int, body: hlo.Computation
) -> int | None:
  """Returns the bytes that a fusion reads of a parameter; None: all of it."""
  parameter = hlo.parameter(body, index)
  total = 0
  for user in body.values():
    if parameter not in user.operands:
      continue
    places = [i for i, name in enumerate(user.operands) if name == parameter]
    if user.opcode == 'dynamic-slice' and places == [0]:
      total += hlo.nbytes(user.shape)
    elif user.opcode == 'fusion':
      fused = module.fused(user)
      for read_bytes in (_read_inside(module, i, fused) for i in places):
        if read_bytes is None:
          return None
        total += read_bytes
    elif user.opcode != 'dynamic-update-slice' or places != [0]:
      return None
  return total


def _module_path(instruction: hlo.Instruction) -> str:
  """Returns the Linen module in an instruction's name, as 'blocks_0/mlp'."""
  match = re.search(r'op_name="([^"]*)"', instruction.attributes)
  if match is None:
    return ''
  # jit(train_step)/transpose(jvp(ViT))/ViT.trunk/blocks_0/mlp/up/dot_general
  names = re.sub(r'\w+\([^/]*\)+/', '', match[1]).split('/')[:-1]
  modules = [x for x in names if '(' not in x and '.' not in x]
  return '/'.join(x for x in modules if x not in _NO_MODULES)


def _source(module: hlo.Module, instruction: hlo.Instruction) -> str:
  frame = re.search(r'stack_frame_id=(\d+)', instruction.attributes)
  if frame is not None:
    return module.lines.get(frame[1], '')
  file = re.search(r'source_file="([^"]*)"', instruction.attributes)
  line = re.search(r'source_line=(\d+)', instruction.attributes)
  return f'{file[1]}:{line[1]}' if file and line else ''


@dataclasses.dataclass(frozen=True)
class Cost:
  """What a step needs of each device.

  Attributes:
    temporary_gib: Temporary memory, in GiB.
    argument_gib: State and batch, in GiB.
    accessed_gb: Bytes that the compiler counts as accessed, on the chip too, in
      GB; loops count with all their iterations.
    traffic_gb: Bytes that move to and from device memory, in GB.
    tflop: TFLOP of matrix products.
    copies: Number of copies that are operations of their own; a copy within a
      fusion only says in which order this reads or writes an array.
    transposes: Number of such transposes.
    moved_gb: Traffic of these two, in GB.
    seconds: Time of all operations but collectives, at the peaks.
    slowest: The operations that take longest.
    unknown_loops: Loops with an unknown number of iterations, counted as one.
  """

  temporary_gib: float
  argument_gib: float
  accessed_gb: float
  traffic_gb: float
  tflop: float
  copies: int
  transposes: int
  moved_gb: float
  seconds: float
  slowest: list[Operation]
  unknown_loops: list[str]


def dump_flags(folder: str) -> str:
  """Returns the flags with which XLA writes each step that it compiles."""
  return (
    f'--xla_dump_to={folder} --xla_dump_hlo_as_text'
    ' --xla_dump_hlo_module_re=train_step'
  )


def parse(program: 'jax.stages.Compiled', folder: str) -> hlo.Module:
  """Parses a compiled program.

  Args:
    program: Program that was compiled for TPUs or GPUs, the latest one.
    folder: Where XLA wrote it; see `dump_flags`.

  Raises:
    JaxRuntimeError: It cannot be read.
  """
  import jax

  try:
    return hlo.parse(program.as_text() or '')
  except jax.errors.JaxRuntimeError:
    # Compilers that are newer than jaxlib use instructions that it refuses.
    files = pathlib.Path(folder).glob('*.after_codegen.txt')
    dumps = sorted(files, key=lambda path: path.stat().st_mtime)
    if not dumps:
      raise
    return hlo.parse(dumps[-1].read_text())


def cost(
  program: 'jax.stages.Compiled',
  module: hlo.Module,
  hardware: hardware_lib.Hardware,
) -> Cost:
  """Reads the cost of a compiled program.

  Args:
    program: Program that was compiled for TPUs or GPUs.
    module: The same, from `parse`.
    hardware: The device, for its peaks.
  """
  executed = operations(module, hardware)
  memory = program.memory_analysis()
  assert memory is not None  # TPUs and GPUs have it
  traffic = sum(x.bytes for x in executed)
  moves = [x for x in executed if x.kind in ('copy', 'transpose')]
  # The compiler counts the body of a loop once.
  once = sum(x.bytes / x.executions for x in executed)
  analysis = program.cost_analysis() or {}
  accessed = analysis.get('bytes accessed', once) * traffic / max(once, 1)
  return Cost(
    temporary_gib=memory.temp_size_in_bytes / 2**30,
    argument_gib=memory.argument_size_in_bytes / 2**30,
    accessed_gb=accessed / 1e9,
    traffic_gb=traffic / 1e9,
    tflop=products.flops(module) / 1e12,
    copies=_number(executed, 'copy'),
    transposes=_number(executed, 'transpose'),
    moved_gb=sum(x.bytes for x in moves) / 1e9,
    seconds=sum(x.seconds for x in executed),
    slowest=executed[:_SLOWEST],
    unknown_loops=hlo.unknown_loops(module),
  )


def _number(executed: list[Operation], kind: str) -> int:
  """Returns how often operations of a kind are executed."""
  return sum(
    operation.executions for operation in executed if operation.kind == kind
  )
