"""Reads a program that a TPU's or GPU's own compiler made.

Instructions are of one device. Traffic is to and from its memory: operands
and results of each instruction that is scheduled on its own, except those that
the compiler keeps on the chip.
"""

import dataclasses
import itertools
import pathlib
import re
from typing import TYPE_CHECKING

from vit_jax.ahead import collectives
from vit_jax.ahead import hlo
from vit_jax.ahead import products
from vit_jax.parallel import hardware as hardware_lib

if TYPE_CHECKING:
  import jax

# A call that only gives a name to memory.
_NAMES_MEMORY = 'custom_call_target="(AllocateBuffer|ConcatBitcast)"'
_SLOWEST = 10  # operations to report
# An array in a shape, with its layout: `bf16[128,768]{1,0:T(8,128)S(1)}`.
_ARRAY = re.compile(r'\w+\[[\d,<=]*\](?:\{[^}]*\})?')

# These move nothing: names of values, or results that were counted before.
_FREE = (
  'bitcast call conditional constant copy-done get-tuple-element iota parameter'
  ' partition-id slice-done tuple while'
).split()

# Parts of an instruction's name that are no Linen modules.
_NO_MODULES = (
  'body checkpoint closed_call cond rematted_computation while'
).split()


@dataclasses.dataclass(frozen=True)
class Operation:
  """An instruction that is scheduled on its own."""

  name: str  # name in the program
  kind: str  # its opcode, as 'fusion' or 'copy'
  executions: int  # number of executions in a step
  flops: int  # FLOPs of its products, of all executions
  # Bytes that it reads and writes in device memory, of all executions.
  bytes: int
  seconds: float  # the longer of the times that these take at the peaks
  # Path of the module that it computes, as 'blocks_0/mlp'; may be ''.
  module: str
  source: str  # source file and line; may be ''


def operations(
  module: hlo.Module, hardware: hardware_lib.Hardware
) -> list[Operation]:
  """Returns the operations, but collectives, by descending time."""
  # Instructions inside a fusion exchange their values on the chip.
  fused = {
    computation.name
    for instruction in module.instructions()
    if instruction.opcode not in ('while', 'call', 'conditional')
    for computation in itertools.chain(*instruction.callees)
  }

  def find(instruction: hlo.Instruction) -> list[Operation]:
    if instruction.computation.name in fused or instruction.opcode in _FREE:
      return []
    names_memory = re.search(_NAMES_MEMORY, instruction.attributes)
    if names_memory or _is_collective(instruction):
      return []
    flops, nbytes = products.product_flops(instruction), _traffic(instruction)
    seconds = max(
      flops / hardware.peak_flops, nbytes / hardware.memory_bandwidth
    )
    path, source = _module_path(instruction), _source(instruction)
    name, kind = instruction.name, instruction.opcode
    return [Operation(name, kind, 1, flops, nbytes, seconds, path, source)]

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


def _is_collective(instruction: hlo.Instruction) -> bool:
  kind = re.sub('-(start|done|update)$', '', instruction.opcode)
  if kind in collectives.KINDS:
    return True
  if kind in ('async', 'call', 'custom-call') and kind != instruction.opcode:
    called = list(instruction.all_callees())
    # Only the start names what is computed.
    return not called or any(
      x.opcode in collectives.KINDS
      for computation in called
      for x in computation.values()
    )
  return collectives.is_reduce_scatter(instruction)


def _traffic(instruction: hlo.Instruction) -> int:
  """Returns the bytes that an instruction moves to and from device memory."""
  if (cost := products.kernel_cost(instruction)) is not None:
    return cost[1]
  started, _, start = instruction.opcode.rpartition('-')
  if instruction.opcode == 'async-start':  # as programs from `dump_flags` have
    started = instruction.fused.root.opcode
  if start == 'start' and started in ('copy', 'slice'):
    # One end is on the chip, or both are in memory.
    shapes = _ARRAY.findall(instruction.shape)
    source, result = shapes[:2] if started == 'slice' else shapes[1::-1]
    ends = sum(bool(_in_memory(x)) for x in (source, result))
    return ends * hlo.nbytes(result)
  body = instruction.fused if instruction.opcode == 'fusion' else None
  moved = _written(instruction, body)
  for i, operand in enumerate(instruction.operands):
    size = _in_memory(operand.shape)
    if size and body is not None:
      read_bytes = _read_inside(body, i)
      size = size if read_bytes is None else read_bytes
    moved += size
  return moved


def _in_memory(shape: str) -> int:
  """Returns the bytes of the arrays of a shape that are in device memory."""
  return sum(
    hlo.nbytes(array)
    for array in _ARRAY.findall(shape)
    if not re.search(r'S\([1-9]', array)  # another space is on the chip
  )


def _written(instruction: hlo.Instruction, body: hlo.Computation | None) -> int:
  if body is None:
    return _in_memory(instruction.shape)
  root = body.root
  parts = root.operands if root.opcode == 'tuple' else [root]
  shapes = _ARRAY.findall(instruction.shape)
  if len(shapes) != len(parts):  # a fusion in the fusion returns several
    return _in_memory(instruction.shape)
  moved = 0
  for part, shape in zip(parts, shapes, strict=True):
    while part.opcode == 'bitcast':
      part = part.operands[0]
    if part.opcode == 'dynamic-update-slice':  # in place: a layer of a stack
      moved += hlo.nbytes(part.operands[1].shape)
    else:
      moved += _in_memory(shape)
  return moved


def _read_inside(body: hlo.Computation, index: int) -> int | None:
  """Returns the bytes that a fusion reads of a parameter; None: all of it."""
  total = 0
  for user, place in body.parameter(index).uses:
    if user.opcode == 'fusion':
      read_bytes = _read_inside(user.fused, place)
      if read_bytes is None:
        return None
      total += read_bytes
    elif place or user.opcode not in ('dynamic-slice', 'dynamic-update-slice'):
      return None
    elif user.opcode == 'dynamic-slice':
      total += hlo.nbytes(user.shape)
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


def _source(instruction: hlo.Instruction) -> str:
  frame = re.search(r'stack_frame_id=(\d+)', instruction.attributes)
  if frame is not None:
    return instruction.computation.program.lines.get(frame[1], '')
  file = re.search(r'source_file="([^"]*)"', instruction.attributes)
  line = re.search(r'source_line=(\d+)', instruction.attributes)
  return f'{file[1]}:{line[1]}' if file and line else ''


@dataclasses.dataclass(frozen=True)
class Cost:
  """What a step needs of each device."""

  temporary_gib: float  # temporary memory, in GiB
  argument_gib: float  # state and batch, in GiB
  # Bytes that the compiler counts as accessed, on the chip too, in GB; loops
  # count with all their iterations.
  accessed_gb: float
  traffic_gb: float  # bytes that move to and from device memory, in GB
  tflop: float  # TFLOP of matrix products
  # Number of copies that are operations of their own; a copy within a fusion
  # only says in which order this reads or writes an array.
  copies: int
  transposes: int  # number of such transposes
  moved_gb: float  # traffic of these two, in GB
  seconds: float  # time of all operations but collectives, at the peaks
  slowest: list[Operation]  # the operations that take longest
  # Loops with an unknown number of iterations, counted as one.
  unknown_loops: list[str]


def dump_flags(folder: str) -> str:
  """Returns the flags with which XLA writes each step that it compiles."""
  return (
    f'--xla_dump_to={folder} --xla_dump_hlo_as_text'
    ' --xla_dump_hlo_module_re=train_step'
  )


def parse(program: 'jax.stages.Compiled', folder: str) -> hlo.Module:
  """Parses a program that was just compiled with `dump_flags(folder)`."""
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
  """Reads the cost of a program for TPUs or GPUs; `module` is it, parsed."""
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
    copies=sum(x.executions for x in moves if x.kind == 'copy'),
    transposes=sum(x.executions for x in moves if x.kind == 'transpose'),
    moved_gb=sum(x.bytes for x in moves) / 1e9,
    seconds=sum(x.seconds for x in executed),
    slowest=executed[:_SLOWEST],
    unknown_loops=hlo.unknown_loops(module),
  )
