"""The communication between devices in one run of a compiled program.

Bytes are those of one whole array for each collective, as one device sees it:

    all-gather           the gathered array, its output
    all-reduce           the reduced array
    reduce-scatter       the whole array, its input
    all-to-all           the array that is exchanged
    collective-permute   the array that is passed on

The traffic follows from the bytes, the kind and the size of the group: in an
all-gather among n devices, each receives (n - 1) / n of the bytes.
"""

from collections.abc import Mapping
import dataclasses
import math
import re

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

# An instruction that reads a value, and the index of the operand.
_Use = tuple[hlo.Instruction, int]
# An instruction that reads a value (None: it is returned), and its dimensions.
_Reading = tuple[hlo.Instruction | None, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Collective:
  """Collectives of one kind among devices that differ along the same axes.

  Attributes:
    kind: One of KINDS.
    axes: Axes of the mesh along which the devices of a group differ.
    group_size: Number of devices in a group.
    parts: Number of parts that the result of an all-reduce is cut into, of
      which each device keeps one. If it is more than 1, the all-reduce stands
      for a reduce-scatter.
    executions: Number of executions in one run. One that combines arrays of
      different `parts` counts for those with the most bytes.
    bytes: Bytes of all executions, as in the program.
    narrow_bytes: The same, but 32-bit values that were just converted from 16
      bits, or are next converted to 16 bits, count 2 bytes: GPUs and TPUs have
      16-bit arithmetic, the CPU does not.
    overlapped: Number of executions that go on while products are computed, as
      the program is scheduled, or that the compiler cut to run beside others.
  """

  kind: str
  axes: tuple[str, ...]
  group_size: int
  parts: int
  executions: int
  bytes: int
  narrow_bytes: int
  overlapped: int = 0


def count(
  module: hlo.Module, mesh: Mapping[str, int], as_written: bool = False
) -> list[Collective]:
  """Returns the collectives of a program, by descending bytes.

  Args:
    module: The compiled program of one device.
    mesh: Sizes of the mesh axes; devices are numbered in its order.
    as_written: Whether the program is that of an accelerator: its all-reduces
      and types are then those that are executed.

  Raises:
    ValueError: The program contains something unknown.
  """
  finder = _Finder(module, mesh, as_written)
  by_key: dict[tuple[object, ...], list[tuple[Collective, int]]] = {}
  for collective, times in hlo.executed(module, finder.find, lambda c: c.bytes):
    key = (
      collective.kind,
      collective.axes,
      collective.group_size,
      collective.parts,
    )
    by_key.setdefault(key, []).append((collective, times))
  totals = [
    dataclasses.replace(
      group[0][0],
      executions=sum(times * c.executions for c, times in group),
      bytes=sum(times * c.bytes for c, times in group),
      narrow_bytes=sum(times * c.narrow_bytes for c, times in group),
      overlapped=sum(times * c.overlapped for c, times in group),
    )
    for group in by_key.values()
  ]
  return sorted(totals, key=lambda c: -c.bytes)


def is_reduce_scatter(module: hlo.Module, instruction: hlo.Instruction) -> bool:
  """Returns whether a fusion is a reduce-scatter of TPUs."""
  return instruction.opcode == 'fusion' and any(
    name.startswith(_SCATTER)
    for names in module.callees(instruction)
    for name in names
  )


class _Finder:
  """Finds the collectives among a program's instructions."""

  def __init__(
    self, module: hlo.Module, mesh: Mapping[str, int], as_written: bool
  ):
    self._module = module
    self._as_written = as_written
    self._mesh = mesh
    self._users: dict[int, dict[str, list[_Use]]] = {}
    self._scattering = {
      id(computation)
      for name, computation in module.computations.items()
      if name.startswith(_SCATTER)
    }
    self._going_on = {
      id(computation)
      for name, computation in module.computations.items()
      if name.startswith(_ASYNC_FUSION)
      or any(_DONE in x.attributes for x in computation.values())
    }
    # Computations that are run beside others, which compute products.
    self._overlapped = {
      id(called)
      for computation in module.computations.values()
      for instruction in computation.values()
      if self._is_overlapped(instruction, computation)
      for called in module.all_callees(instruction)
    } | {
      id(computation)
      for computation in module.computations.values()
      if any(_START in x.attributes for x in computation.values())
    }

  def find(
    self, instruction: hlo.Instruction, computation: hlo.Computation
  ) -> list[Collective]:
    """Returns the collectives of an instruction, one for each `parts`."""
    kind = instruction.opcode.removesuffix('-start')  # -done belongs to it
    if kind not in KINDS or 'calls=' in instruction.attributes:
      return []
    if id(computation) in self._going_on:
      return []
    groups = device_groups.parse(instruction.attributes, self._module.devices)
    size = groups.shape[1]
    factor = size if kind == 'all-gather' else 1  # whole array / operand
    sizes: dict[int, list[int]] = {}  # bytes and narrow bytes, by `parts`
    for i, name in enumerate(instruction.operands):
      nbytes = factor * hlo.nbytes(computation[name].shape)
      is_narrow, parts = False, 1
      if not self._as_written:
        is_narrow = self._is_widened(computation[name])
      if kind == 'all-reduce' and not self._as_written:
        is_narrow |= self._is_narrowed(instruction, i, computation)
        parts = self._parts(instruction, i, computation)
      before = sizes.get(parts, [0, 0])
      narrow = nbytes // 2 if is_narrow else nbytes
      sizes[parts] = [before[0] + nbytes, before[1] + narrow]
    most = max(sizes, key=lambda parts: sizes[parts])
    axes = _axes_within(groups, self._mesh)
    if kind == 'all-reduce' and id(computation) in self._scattering:
      kind = 'reduce-scatter'
    overlaps = id(computation) in self._overlapped or self._is_overlapped(
      instruction, computation
    )
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

  def _is_overlapped(
    self, instruction: hlo.Instruction, computation: hlo.Computation
  ) -> bool:
    """Whether products are computed between the start and the end of it.

    A SparseCore is made ready by `start`, gets the operands by `update`, and
    the result is there at `done`.
    """
    kind = instruction.opcode.removesuffix('-start')
    if kind == instruction.opcode:
      return False
    if kind not in KINDS and not self._module.callees(instruction):
      return False  # a copy
    chain = [instruction.name]
    while not computation[chain[-1]].opcode.endswith('-done'):
      uses = self._uses(chain[-1], computation)
      after = [x.name for x, _ in uses if _CONTINUES.search(x.opcode)]
      if not after:
        return False
      chain += after[:1]
    names = list(computation)
    instructions = names[names.index(chain[-2]) + 1 : names.index(chain[-1])]
    return any(
      products.product_flops(self._module, computation[name], computation)
      for name in instructions
    )

  def _is_widened(self, value: hlo.Instruction) -> bool:
    """Whether 32-bit values were just converted from 16 bits."""
    fused: hlo.Computation = {}
    while value.opcode == 'fusion':
      fused = self._module.fused(value)
      value = hlo.root(fused)
    while fused and value.opcode in _MOVES:
      value = fused[value.operands[0]]
    if not fused or value.opcode != 'convert':
      return False
    before = hlo.arrays(fused[value.operands[0]].shape)
    return [bits for bits, _ in before] == [16]

  def _is_narrowed(
    self, reduce: hlo.Instruction, index: int, computation: hlo.Computation
  ) -> bool:
    """Whether a reduced 32-bit array is converted to 16 bits by all readers."""
    readers = self._readers(
      reduce, index, computation, through=(*_MOVES, 'dynamic-slice')
    )
    return bool(readers) and all(
      reader is not None
      and reader.opcode == 'convert'
      and [bits for bits, _ in hlo.arrays(reader.shape)] == [16]
      for reader, _ in readers
    )

  def _parts(
    self, reduce: hlo.Instruction, index: int, computation: hlo.Computation
  ) -> int:
    """Returns the number of parts that a reduced array is cut into, or 1."""
    readers = self._readers(
      reduce, index, computation, through=(*_MOVES, 'convert')
    )
    parts = [
      math.prod(shape) // math.prod(hlo.arrays(reader.shape)[0][1])
      if reader is not None and reader.opcode == 'dynamic-slice'
      else 1
      for reader, shape in readers
    ]
    return min(parts, default=1)

  def _readers(
    self,
    reduce: hlo.Instruction,
    index: int,
    computation: hlo.Computation,
    through: tuple[str, ...],
  ) -> list[_Reading]:
    """Returns the readers of one of the results of an all-reduce."""
    if not reduce.shape.startswith('('):
      return self._find_readers(reduce.name, computation, through)
    return [
      reader
      for user, _ in self._uses(reduce.name, computation)
      if re.match(rf'[, ]*index={index}\b', user.attributes)
      for reader in self._find_readers(user.name, computation, through)
    ]

  def _find_readers(
    self, name: str, computation: hlo.Computation, through: tuple[str, ...]
  ) -> list[_Reading]:
    """Returns the readers of a value, directly or through some operations.

    Readers within fusions are included.
    """
    result: list[_Reading] = []
    ((_, shape),) = hlo.arrays(computation[name].shape)
    if computation[name].is_root:
      result.append((None, shape))
    for user, index in self._uses(name, computation):
      if user.opcode in through and not index:
        result += self._find_readers(user.name, computation, through)
      elif user.opcode == 'fusion':
        fused = self._module.fused(user)
        parameter = hlo.parameter(fused, index)
        readers = self._find_readers(parameter, fused, through)
        result += [reading for reading in readers if reading[0] is not None]
        if any(reader is None for reader, _ in readers):
          result += self._find_readers(user.name, computation, through)
      else:
        result.append((user, shape))
    return result

  def _uses(self, name: str, computation: hlo.Computation) -> list[_Use]:
    users = self._users.get(id(computation))
    if users is None:
      users = self._users[id(computation)] = {}
      for user in computation.values():
        for i, operand in enumerate(user.operands):
          users.setdefault(operand, []).append((user, i))
    return users.get(name, [])


def _axes_within(
  groups: np.ndarray, mesh: Mapping[str, int]
) -> tuple[str, ...]:
  """Returns the axes of the mesh along which the devices of a group differ."""
  coordinates = np.unravel_index(groups, tuple(mesh.values()))
  return tuple(
    axis
    for axis, along in zip(mesh, coordinates, strict=True)
    if (along != along[:, :1]).any()
  )
