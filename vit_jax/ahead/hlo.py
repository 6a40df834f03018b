"""Reads a compiled program: the text of XLA's HLO, as `compiled.as_text()`.

Instructions count as often as they are executed: the body of a loop times its
number of iterations, which XLA writes beside it if it is known.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import json
import math
import re
from typing import TypeVar

import numpy as np

T = TypeVar('T')

# Where an instruction names the computations that it runs.
_CALLEES = {
  'fusion': ('calls',),
  'call': ('to_apply',),
  'async-start': ('calls',),
  'while': ('condition', 'body'),
  'conditional': (
    'branch_computations',
    'true_computation',
    'false_computation',
  ),
}


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: Name, unique in its computation.
    opcode: Operation, as 'all-gather'.
    shape: Shape of the result, as 'f32[8,16]{1,0}', or a tuple of shapes.
    arguments: Text between the parentheses.
    attributes: Text after the parentheses.
    is_root: Whether it is the result of the computation.
  """

  name: str
  opcode: str
  shape: str
  arguments: str
  attributes: str
  is_root: bool

  @property
  def operands(self) -> list[str]:
    """Names of the instructions whose results it reads."""
    return re.findall(r'%([\w.-]+)', self.arguments)


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Module:
  """A program.

  Attributes:
    computations: Computations by name: instructions in order, by name.
    entry: Name of the computation that it starts with.
    devices: Number of devices that run it.
    lines: Source file and line by stack frame, as the program numbers them.
  """

  computations: dict[str, Computation]
  entry: str
  devices: int
  lines: dict[str, str] = dataclasses.field(default_factory=dict)

  def callees(self, instruction: Instruction) -> list[list[str]]:
    """Returns the computations that an instruction runs.

    It runs one of each list: for a conditional, the branch that is taken.
    """
    names = [
      name
      for key in _CALLEES.get(instruction.opcode, ())
      for found in re.findall(
        rf'\b{key}=(\{{[^}}]*\}}|%?[\w.-]+)', instruction.attributes
      )
      for name in re.findall(r'[\w.-]+', found)
    ]
    if instruction.opcode == 'conditional':
      return [names]
    return [[name] for name in names]


def parse(text: str) -> Module:
  """Parses the text of a program.

  Raises:
    ValueError: It has no entry computation, or a line that cannot be read.
  """
  computations: dict[str, Computation] = {}
  entry = ''
  current: Computation = {}
  header = re.match(r'HloModule [^\n]*', text)
  counts = re.findall(
    r'\b(?:num_partitions|replica_count)=(\d+)', header[0] if header else ''
  )
  for line in text.splitlines():
    start = re.match(r'(ENTRY )?%?([\w.-]+) .*\{$', line)
    if start and not line.startswith('HloModule'):
      current = computations[start[2]] = {}
      entry = start[2] if start[1] else entry
    elif match := re.match(r'\s+(ROOT )?%?([\w.-]+) = (.*)', line):
      current[match[2]] = _instruction(match[2], match[3], bool(match[1]))
  if not entry:
    raise ValueError('this is no HLO: it has no ENTRY computation')
  devices = math.prod(map(int, counts))
  return Module(computations, entry, devices, _source_lines(text))


def _source_lines(text: str) -> dict[str, str]:
  """Returns 'file.py:12' by stack frame, from the tables of a program."""
  files = dict(re.findall(r'^(\d+) "(.*)"$', _table(text, 'FileNames'), re.M))
  places = {
    number: f'{files.get(file, "?")}:{line}'
    for number, file, line in re.findall(
      r'^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)',
      _table(text, 'FileLocations'),
      re.M,
    )
  }
  return {
    frame: places.get(place, '?')
    for frame, place in re.findall(
      r'^(\d+) \{file_location_id=(\d+)', _table(text, 'StackFrames'), re.M
    )
  }


def _table(text: str, name: str) -> str:
  match = re.search(rf'^{name}\n((?:\d+ .*\n)*)', text, re.M)
  return match[1] if match else ''


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
  end = _closing(text) if text.startswith('(') else text.index(' ')
  shape, rest = text[:end], text[end:].lstrip()
  opcode, _, arguments = rest.partition('(')
  if not re.fullmatch(r'[\w-]+', opcode):
    raise ValueError(f'this HLO instruction cannot be read: {name} = {text}')
  end = _closing(arguments, depth=1)
  return Instruction(
    name, opcode, shape, arguments[: end - 1], arguments[end:], is_root
  )


def _closing(text: str, depth: int = 0) -> int:
  """Returns the position after the parenthesis that closes the first."""
  for match in re.finditer(r'[()]', text):
    depth += 1 if match[0] == '(' else -1
    if not depth:
      return match.end()
  raise ValueError(f'a parenthesis is not closed in the HLO: {text[:80]}')


def arrays(shape: str) -> list[tuple[int, tuple[int, ...]]]:
  """Returns (bits of an element, dimensions) of each array in a shape."""
  return [
    (_bits(dtype), tuple(int(x) for x in re.findall(r'\d+', dims)))
    for dtype, dims in re.findall(r'\b([a-z]\w*)\[([\d,<=]*)\]', shape)
  ]


def _bits(dtype: str) -> int:
  if dtype == 'pred':
    return 8
  match = re.match(r'[a-z]+(\d+)', dtype)  # bf16, f8e4m3fn, s4, c64
  return int(match[1]) if match else 0  # tokens hold nothing


def nbytes(shape: str) -> int:
  """Returns the bytes of all arrays in a shape."""
  return sum(
    math.ceil(bits * math.prod(dims) / 8) for bits, dims in arrays(shape)
  )


def trip_count(module: Module, loop: Instruction) -> int | None:
  """Returns the number of iterations of a `while`; None if unknown.

  The compilers of CPUs and GPUs write it beside the loop. That of TPUs does
  not: there, a condition `i < 12` means 12, since JAX counts its loops from 0.
  """
  match = re.search(
    r'"known_trip_count":\{"n":"?(\d+)"?', loop.attributes.replace(' ', '')
  )
  if match:
    return int(match[1])
  condition = module.computations[module.callees(loop)[0][0]]
  root = next(x for x in condition.values() if x.is_root)
  if root.opcode != 'compare' or 'direction=LT' not in root.attributes:
    return None
  counter, limit = (condition[name] for name in root.operands)
  is_counted = counter.opcode == 'get-tuple-element' and (
    limit.opcode == 'constant' and limit.arguments.isdecimal()
  )
  return int(limit.arguments) if is_counted else None


def unknown_loops(module: Module) -> list[str]:
  """Returns the names of loops with an unknown number of iterations."""
  return [
    instruction.name
    for computation in module.computations.values()
    for instruction in computation.values()
    if instruction.opcode == 'while' and trip_count(module, instruction) is None
  ]


def executed(
  module: Module,
  find: Callable[[Instruction, Computation], Sequence[T]],
  weigh: Callable[[T], float],
) -> list[tuple[T, int]]:
  """Finds items in all instructions; returns them with their executions.

  Args:
    module: The program.
    find: Returns the items of an instruction in a computation.
    weigh: Weight of an item; only the heaviest branch of a conditional counts.

  Returns:
    Items with their number of executions; a loop with an unknown number of
    iterations counts once.
  """
  memory: dict[str, list[tuple[T, int]]] = {}

  def heaviness(found: list[tuple[T, int]]) -> float:
    return sum(times * weigh(item) for item, times in found)

  def of_computation(name: str) -> list[tuple[T, int]]:
    if name not in memory:
      memory[name] = result = []
      computation = module.computations[name]
      for instruction in computation.values():
        result += [(item, 1) for item in find(instruction, computation)]
        rounds = 1
        if instruction.opcode == 'while':
          rounds = trip_count(module, instruction) or 1
        for branches in module.callees(instruction):
          inner = max(map(of_computation, branches), key=heaviness)
          result += [(item, rounds * times) for item, times in inner]
    return memory[name]

  return of_computation(module.entry)


def flops(module: Module) -> int:
  """Returns the FLOPs of the products and convolutions of one device.

  A multiply-add counts 2. Recomputation to save memory counts, and so does work
  that several devices repeat.
  """
  found = executed(module, own_flops, float)
  return sum(count * times for count, times in found)


def product_flops(module: Module, instruction: Instruction) -> int:
  """Returns the FLOPs of an instruction and of what it calls, run once."""
  found = 0
  for names in module.callees(instruction):
    for name in names:
      inside = module.computations[name]
      found += sum(product_flops(module, x) for x in inside.values())
      found += sum(sum(own_flops(x, inside)) for x in inside.values())
  return found


def own_flops(instruction: Instruction, computation: Computation) -> list[int]:
  """Returns the FLOPs of a product or a kernel; [] for other instructions."""
  if instruction.opcode == 'custom-call':
    return _call_flops(instruction, computation)
  if instruction.opcode not in ('dot', 'convolution'):
    return []
  ((_, out),) = arrays(instruction.shape)
  lhs, kernel = (
    arrays(computation[name].shape)[0][1] for name in instruction.operands[:2]
  )
  if instruction.opcode == 'dot':
    contracted = re.search(
      r'lhs_contracting_dims=\{([\d,]*)\}', instruction.attributes
    )
    axes = contracted[1].split(',') if contracted and contracted[1] else []
    return [2 * math.prod(out) * math.prod(lhs[int(axis)] for axis in axes)]
  return [_convolution_flops(instruction.attributes, lhs, kernel, out)]


def kernel_cost(instruction: Instruction) -> tuple[int, int] | None:
  """Returns FLOPs and bytes of a Pallas kernel, as its author states them."""
  if instruction.opcode != 'custom-call':
    return None
  stated = re.search(r'"cost_estimate":(\{[^}]*\})', instruction.attributes)
  if stated is None:
    return None
  cost = json.loads(stated[1])
  return int(cost['flops']), int(cost['bytes_accessed'])


def _call_flops(
  instruction: Instruction, computation: Computation
) -> list[int]:
  """Returns the FLOPs of a kernel, or of a call of cuBLAS or cuDNN."""
  if (found := kernel_cost(instruction)) is not None:
    return [found[0]]
  target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
  name = target[1] if target else ''
  out = [shape for _, shape in arrays(instruction.shape)]
  if name.startswith('__cublas$'):
    axes = re.search(
      r'"lhs_contracting_dimensions":\[([^]]*)\]', instruction.attributes
    )
    assert axes is not None  # every such call has them
    lhs = arrays(computation[instruction.operands[0]].shape)[0][1]
    contracted = [lhs[int(axis)] for axis in re.findall(r'\d+', axes[1])]
    return [2 * math.prod(out[0]) * math.prod(contracted)]
  if name.startswith(
    '__cudnn$fmha'
  ):  # results [B, H, T, K], scores [B, H, T, T]
    scores = re.search(
      r'"intermediate_tensor_shape": \{.*?"dimensions": \[([^]]*)\]',
      instruction.attributes,
    )
    assert scores is not None
    size = math.prod(map(int, re.findall(r'\d+', scores[1])))
    products = 5 if name.endswith('Backward') else 2
    return [2 * products * size * out[0][-1]]
  return []


def _convolution_flops(
  attributes: str,
  lhs: tuple[int, ...],
  kernel: tuple[int, ...],
  out: tuple[int, ...],
) -> int:
  """Returns the FLOPs of a convolution, without products with padding.

  TPUs write every matrix product as a convolution. Its dimensions of batch are
  then spatial ones, with padding or dilation, so that most of the window is
  outside the input.
  """
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', attributes)
  assert labels is not None  # every convolution has labels
  window = re.search(r'window=\{([^}]*)\}', attributes)
  fields = dict(re.findall(r'(\w+)=([\d_x-]+)', window[1] if window else ''))
  pairs = 1
  for i in range(len(labels[1]) - 2):

    def along(name: str, default: str, i: int = i) -> str:
      return fields[name].split('x')[i] if name in fields else default

    pairs *= _pairs_within(
      size=lhs[labels[1].index(str(i))],
      window=kernel[labels[2].index(str(i))],
      outputs=out[labels[3].index(str(i))],
      stride=int(along('stride', '1')),
      padding=int(along('pad', '0_0').partition('_')[0]),
      lhs_dilation=int(along('lhs_dilate', '1')),
      rhs_dilation=int(along('rhs_dilate', '1')),
    )
  examples = out[labels[3].index('b')]
  channels = kernel[labels[2].index('i')] * kernel[labels[2].index('o')]
  return 2 * pairs * examples * channels // _group_count(attributes)


def _group_count(attributes: str) -> int:
  match = re.search(r'\bbatch_group_count=(\d+)', attributes)
  return int(match[1]) if match else 1


def _pairs_within(
  *,
  size: int,
  window: int,
  outputs: int,
  stride: int,
  padding: int,
  lhs_dilation: int,
  rhs_dilation: int,
) -> int:
  """Counts pairs of output and window position that meet an input element."""
  output = np.arange(outputs)[:, None]
  offset = np.arange(window)[None]
  place = output * stride + offset * rhs_dilation - padding
  inside = (place >= 0) & (place < (size - 1) * lhs_dilation + 1)
  return int((inside & (place % lhs_dilation == 0)).sum())
