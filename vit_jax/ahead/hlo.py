"""Reads a compiled program: the text of XLA's HLO, as `compiled.as_text()`.

Instructions count as often as they are executed: the body of a loop times its
number of iterations, which XLA writes beside it if it is known.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import math
import re
from typing import TypeVar

T = TypeVar('T')

# Where an instruction names the computations that it runs.
_CALLEES = {
  'fusion': ('calls',),
  'call': ('to_apply',),
  'async-start': ('calls',),
  # What SparseCores of TPUs compute: as older and newer versions write it.
  'call-start': ('to_apply',),
  'custom-call': ('called_computations',),
  'custom-call-start': ('called_computations',),
  'while': ('condition', 'body'),
  'conditional': (
    'branch_computations',
    'true_computation',
    'false_computation',
  ),
}

# `5 > i` is `i < 5`.
_SWAPPED = {'LT': 'GT', 'GT': 'LT', 'LE': 'GE', 'GE': 'LE'}


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
      for callees in re.findall(
        rf'\b{key}=(\{{[^}}]*\}}|%?[\w.-]+)', instruction.attributes
      )
      for name in re.findall(r'[\w.-]+', callees)
    ]
    if instruction.opcode == 'conditional':
      return [names]
    return [[name] for name in names]

  def all_callees(self, instruction: Instruction) -> Iterator[Computation]:
    """Yields the computations that an instruction runs, and theirs."""
    for names in self.callees(instruction):
      for name in names:
        yield self.computations[name]
        for called in self.computations[name].values():
          yield from self.all_callees(called)

  def fused(self, fusion: Instruction) -> Computation:
    """Returns the computation of a fusion."""
    ((name,),) = self.callees(fusion)
    return self.computations[name]


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
  shape, call = text[:end], text[end:].lstrip()
  opcode, _, arguments = call.partition('(')
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
  not: there it follows from where the counter starts, from what each iteration
  adds to it, and from the condition. Loops of JAX count from 0 by 1; those in
  which the compiler exchanges parts of an array while it multiplies others
  count by 2, if an iteration takes two parts.
  """
  match = re.search(
    r'"known_trip_count":\{"n":"?(\d+)"?', loop.attributes.replace(' ', '')
  )
  if match:
    return int(match[1])
  condition, body = (module.computations[x] for (x,) in module.callees(loop))
  compare, sides = _operation(module, condition, root(condition))
  direction = re.search(r'direction=(\w+)', compare.attributes)
  if compare.opcode != 'compare' or direction is None:
    return None
  relation = direction[1]
  if sides[0].opcode == 'constant':
    sides, relation = sides[::-1], _SWAPPED.get(relation, relation)
  limit = _constant(sides[1], condition)
  index = _tuple_index(_through_copies(sides[0], condition))
  if limit is None or index is None:
    return None
  start = _start(module, loop, index)
  step = _step(module, body, index)
  if start is None or not step:
    return None
  return _iterations(relation, start, limit, step)


def _iterations(relation: str, start: int, limit: int, step: int) -> int | None:
  """Returns how often `counter <relation> limit` holds; None: for ever."""
  stop = limit + {'LE': 1, 'GE': -1}.get(relation, 0)
  rises = {'LT': True, 'LE': True, 'GT': False, 'GE': False}
  if relation == 'NE':
    ends = (stop - start) % step == 0 and (stop - start) * step >= 0
  else:
    ends = rises.get(relation) is (step > 0)
  return len(range(start, stop, step)) if ends else None


def _start(module: Module, loop: Instruction, index: int) -> int | None:
  """Returns the constant that a loop's counter starts with."""
  around = next(
    x for x in module.computations.values() if x.get(loop.name) is loop
  )
  (name,) = loop.operands
  if around[name].opcode != 'tuple':
    return None
  return _constant(around[around[name].operands[index]], around)


def _step(module: Module, body: Computation, index: int) -> int | None:
  """Returns the constant that an iteration adds to a loop's counter."""
  result = root(body)
  if result.opcode != 'tuple':
    return None
  after = _through_copies(body[result.operands[index]], body)
  added, operands = _operation(module, body, after)
  terms = [_through_copies(x, body) for x in operands]
  before = [x for x in terms if _tuple_index(x) == index]
  steps = [_constant(x, body) for x in terms if x not in before]
  if added.opcode not in ('add', 'subtract') or len(before) * len(steps) != 1:
    return None
  if steps[0] is None or added.opcode == 'add':
    return steps[0]
  return -steps[0] if terms[0] in before else None


def _operation(
  module: Module, computation: Computation, instruction: Instruction
) -> tuple[Instruction, list[Instruction]]:
  """Returns an operation and its operands, also if it is alone in a fusion."""
  if instruction.opcode != 'fusion':
    return instruction, [computation[x] for x in instruction.operands]
  fused = module.fused(instruction)
  arguments = [computation[x] for x in instruction.operands]
  operands = [fused[x] for x in root(fused).operands]
  return root(fused), [
    arguments[int(x.arguments)] if x.opcode == 'parameter' else x
    for x in operands
  ]


def root(computation: Computation) -> Instruction:
  """Returns the instruction whose result is that of a computation."""
  return next(x for x in computation.values() if x.is_root)


def parameter(computation: Computation, index: int | str) -> str:
  """Returns the name of a computation's parameter."""
  return next(
    x.name
    for x in computation.values()
    if x.opcode == 'parameter' and x.arguments == str(index)
  )


def _through_copies(
  value: Instruction, computation: Computation
) -> Instruction:
  while (
    value.opcode in ('bitcast', 'copy') and value.operands[0] in computation
  ):
    value = computation[value.operands[0]]
  return value


def _constant(value: Instruction, computation: Computation) -> int | None:
  value = _through_copies(value, computation)
  is_number = re.fullmatch(r'-?\d+', value.arguments)
  if value.opcode != 'constant' or not is_number:
    return None
  return int(value.arguments)


def _tuple_index(value: Instruction) -> int | None:
  if value.opcode != 'get-tuple-element':
    return None
  match = re.search(r'\bindex=(\d+)', value.attributes)
  return int(match[1]) if match else None


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

  def heaviness(items: list[tuple[T, int]]) -> float:
    return sum(times * weigh(item) for item, times in items)

  def count_items(name: str) -> list[tuple[T, int]]:
    if name not in memory:
      memory[name] = result = []
      computation = module.computations[name]
      for instruction in computation.values():
        result += [(item, 1) for item in find(instruction, computation)]
        rounds = 1
        if instruction.opcode == 'while':
          rounds = trip_count(module, instruction) or 1
        for branches in module.callees(instruction):
          inner = max(map(count_items, branches), key=heaviness)
          result += [(item, rounds * times) for item, times in inner]
    return memory[name]

  return count_items(module.entry)
