"""The communication between devices in one run of a compiled program.

Bytes are of one whole array for each collective, as one device sees it:

    all-gather           the gathered array, its output
    all-reduce           the reduced array
    reduce-scatter       the whole array, its input
    all-to-all           the array that is exchanged
    collective-permute   the array that is passed on

The traffic follows from the bytes, the kind and the size of the group: in an
all-gather among n devices, each receives (n - 1) / n of the bytes.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import re
from typing import Any

import numpy as np

from vit_jax.ahead import device_groups
from vit_jax.ahead import hlo
from vit_jax.ahead import products

KINDS = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)

# A fusion of an all-reduce and a slice, as TPUs' compiler writes what they
# execute as a reduce-scatter: what the computation's name starts with.
_SCATTER = 'all-reduce-scatter'
# One collective is in several computations if TPUs' compiler has it go on while
# others compute: where it starts, in these others, and where it is done.
_ASYNC_FUSION = 'async_collective_fusion'
_START = '"AsyncCollectiveStart"'
_DONE = '"AsyncCollectiveDone"'

# The later parts of an instruction that is run beside others.
_CONTINUES = re.compile('-(update|done)$')

# Instructions that only rearrange their operand.
_MOVES = ('bitcast', 'copy', 'reshape', 'transpose')

# An instruction that reads a value (None: it is returned), and its dimensions.
_Reading = tuple[hlo.Instruction | None, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Collective:
  """Collectives of one kind among devices that differ along the same axes."""

  kind: str  # one of KINDS
  # Axes of the mesh along which the devices of a group differ.
  axes: tuple[str, ...]
  group_size: int  # number of devices in a group
  # Number of parts that the result of an all-reduce is cut into, of which
  # each device keeps one. If it is more than 1, the all-reduce stands for a
  # reduce-scatter.
  parts: int
  # Number of executions in one run. One that combines arrays of different
  # `parts` counts for those with the most bytes.
  executions: int
  bytes: int  # bytes of all executions, as in the program
  # The same, but 32-bit values that were just converted from 16 bits, or are
  # next converted to 16 bits, count 2 bytes: GPUs and TPUs have 16-bit
  # arithmetic, the CPU does not.
  narrow_bytes: int
  # Number of executions that go on while products are computed, as the
  # program is scheduled, or that the compiler cut to run beside others.
  overlapped: int = 0


def count(
  module: hlo.Module, mesh: Mapping[str, int], as_written: bool = False
) -> list[Collective]:
  """Returns the collectives of a program of one device, by descending bytes.

  Devices are numbered in the order of the mesh, whose axes have these sizes.
  `as_written` says that the program is that of an accelerator: its all-reduces
  and types are then those that are executed.
  """
  finder = _Finder(module, mesh, as_written)
  by_key: dict[tuple[object, ...], list[tuple[Collective, int]]] = {}
  for c, times in hlo.executed(module, finder.find, lambda c: c.bytes):
    key = c.kind, c.axes, c.group_size, c.parts
    by_key.setdefault(key, []).append((c, times))
  counts = 'executions', 'bytes', 'narrow_bytes', 'overlapped'
  totals = [
    dataclasses.replace(
      group[0][0],
      **{x: sum(times * getattr(c, x) for c, times in group) for x in counts},
    )
    for group in by_key.values()
  ]
  return sorted(totals, key=lambda c: -c.bytes)


def load(stored: Sequence[Mapping[str, Any]]) -> list[Collective]:
  """Returns collectives from JSON."""
  return [Collective(**{**c, 'axes': tuple(c['axes'])}) for c in stored]


def is_reduce_scatter(instruction: hlo.Instruction) -> bool:
  """Returns whether a fusion is a reduce-scatter of TPUs."""
  return instruction.opcode == 'fusion' and instruction.fused.name.startswith(
    _SCATTER
  )


class _Finder:
  """Finds the collectives among a program's instructions."""

  def __init__(
    self, module: hlo.Module, mesh: Mapping[str, int], as_written: bool
  ):
    self._devices, self._mesh = module.devices, mesh
    self._as_written = as_written

    def with_attribute(text: str) -> set[str]:
      instructions = module.instructions()
      return {x.computation.name for x in instructions if text in x.attributes}

    self._going_on = with_attribute(_DONE)
    # Computations that are run beside others, which compute products.
    self._overlapped = with_attribute(_START) | {
      called.name
      for instruction in module.instructions()
      if _is_overlapped(instruction)
      for called in instruction.all_callees()
    }

  def find(self, instruction: hlo.Instruction) -> list[Collective]:
    kind = instruction.opcode.removesuffix('-start')  # -done belongs to it
    if kind not in KINDS or 'calls=' in instruction.attributes:
      return []
    name = instruction.computation.name
    if name.startswith(_ASYNC_FUSION) or name in self._going_on:
      return []
    groups = device_groups.parse(instruction.attributes, self._devices)
    size = groups.shape[1]
    factor = size if kind == 'all-gather' else 1  # whole array / operand
    sizes: dict[int, list[int]] = {}  # bytes and narrow bytes, by `parts`
    for i, operand in enumerate(instruction.operands):
      nbytes = factor * hlo.nbytes(operand.shape)
      is_narrow, parts = False, 1
      if not self._as_written:
        is_narrow = _is_widened(operand)
      if kind == 'all-reduce' and not self._as_written:
        is_narrow |= _is_narrowed(instruction, i)
        parts = _parts(instruction, i)
      before = sizes.get(parts, [0, 0])
      narrow = nbytes // 2 if is_narrow else nbytes
      sizes[parts] = [before[0] + nbytes, before[1] + narrow]
    most = max(sizes, key=lambda parts: sizes[parts])
    places = np.unravel_index(groups, tuple(self._mesh.values()))
    axes = tuple(
      axis
      for axis, along in zip(self._mesh, places, strict=True)
      if (along != along[:, :1]).any()
    )
    if kind == 'all-reduce' and name.startswith(_SCATTER):
      kind = 'reduce-scatter'
    overlaps = name in self._overlapped or _is_overlapped(instruction)
    return [
      Collective(
        *(kind, axes, size, parts),
        executions=int(parts == most),
        bytes=nbytes,
        narrow_bytes=narrow,
        overlapped=int(overlaps and parts == most),
      )
      for parts, (nbytes, narrow) in sizes.items()
    ]


def _is_overlapped(instruction: hlo.Instruction) -> bool:
  """Whether products are computed between the start and the end of it.

  A SparseCore is made ready by `start`, gets the operands by `update`, and the
  result is there at `done`.
  """
  kind = instruction.opcode.removesuffix('-start')
  if kind == instruction.opcode:
    return False
  if kind not in KINDS and not instruction.callees:
    return False  # a copy
  chain = [instruction]
  while not chain[-1].opcode.endswith('-done'):
    after = [x for x, _ in chain[-1].uses if _CONTINUES.search(x.opcode)]
    if not after:
      return False
    chain += after[:1]
  ordered = list(instruction.computation.values())
  first, last = (ordered.index(x) for x in chain[-2:])
  return any(map(products.product_flops, ordered[first + 1 : last]))


def _is_widened(value: hlo.Instruction) -> bool:
  """Whether 32-bit values were just converted from 16 bits."""
  is_fused = value.opcode == 'fusion'
  while value.opcode == 'fusion':
    value = value.fused.root
  while is_fused and value.opcode in _MOVES:
    value = value.operands[0]
  return (
    is_fused and value.opcode == 'convert' and _is_16_bit(value.operands[0])
  )


def _is_16_bit(value: hlo.Instruction) -> bool:
  return [bits for bits, _ in hlo.arrays(value.shape)] == [16]


def _is_narrowed(reduce: hlo.Instruction, index: int) -> bool:
  """Whether a reduced 32-bit array is converted to 16 bits by all readers."""
  readers = _readers(reduce, index, through=(*_MOVES, 'dynamic-slice'))
  return bool(readers) and all(
    reader is not None and reader.opcode == 'convert' and _is_16_bit(reader)
    for reader, _ in readers
  )


def _parts(reduce: hlo.Instruction, index: int) -> int:
  """Returns the number of parts that a reduced array is cut into, or 1."""
  parts = [
    math.prod(shape) // math.prod(hlo.arrays(reader.shape)[0][1])
    if reader is not None and reader.opcode == 'dynamic-slice'
    else 1
    for reader, shape in _readers(reduce, index, through=(*_MOVES, 'convert'))
  ]
  return min(parts, default=1)


def _readers(
  reduce: hlo.Instruction, index: int, through: tuple[str, ...]
) -> list[_Reading]:
  """Returns the readers of one of the results of an all-reduce."""
  if not reduce.shape.startswith('('):
    return _find_readers(reduce, through)
  return [
    reader
    for user, _ in reduce.uses
    if re.match(rf'[, ]*index={index}\b', user.attributes)
    for reader in _find_readers(user, through)
  ]


def _find_readers(
  value: hlo.Instruction, through: tuple[str, ...]
) -> list[_Reading]:
  """Returns the readers of a value, also in fusions or after operations."""
  ((_, shape),) = hlo.arrays(value.shape)
  result: list[_Reading] = [(None, shape)] if value.is_root else []
  for user, index in value.uses:
    if user.opcode in through and not index:
      result += _find_readers(user, through)
    elif user.opcode == 'fusion':
      readers = _find_readers(user.fused.parameter(index), through)
      result += [reading for reading in readers if reading[0] is not None]
      if any(reader is None for reader, _ in readers):
        result += _find_readers(user, through)
    else:
      result.append((user, shape))
  return result
