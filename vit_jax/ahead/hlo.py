"""Reads a compiled program: the text of XLA's HLO, as `compiled.as_text()`.

Instructions count as often as they are executed: the body of a loop times its
number of iterations, which XLA writes beside it if it is known.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import math
import re
from typing import TypeVar

T = TypeVar('T')

# Where an instruction names the computations that it runs.
_CALLEES = {
  'fusion': 'calls',
  'call': 'to_apply',
  'async-start': 'calls',
  # What SparseCores of TPUs compute: as older and newer versions write it.
  'call-start': 'to_apply',
  'custom-call': 'called_computations',
  'custom-call-start': 'called_computations',
  'while': 'condition body',
  'conditional': 'branch_computations true_computation false_computation',
}

# `5 > i` is `i < 5`.
_SWAPPED = {'LT': 'GT', 'GT': 'LT', 'LE': 'GE', 'GE': 'LE'}


@dataclasses.dataclass(eq=False)
class Instruction:
  """One line of a computation."""

  name: str  # unique in its computation
  opcode: str  # as 'all-gather'
  shape: str  # of the result, as 'f32[8,16]{1,0}', or a tuple of shapes
  arguments: str  # text between the parentheses
  attributes: str  # text after the parentheses
  is_root: bool  # whether it is the result of the computation
  computation: 'Computation'

  @functools.cached_property
  def operands(self) -> list['Instruction']:
    """The instructions whose results it reads."""
    names = re.findall(r'%([\w.-]+)', self.arguments)
    return [self.computation[x] for x in names if x in self.computation]

  @functools.cached_property
  def callees(self) -> list[list['Computation']]:
    """The computations that it runs.

    It runs one of each list: for a conditional, the branch that is taken.
    """
    names = []
    for key in _CALLEES.get(self.opcode, '').split():
      pattern = rf'\b{key}=(\{{[^}}]*\}}|%?[\w.-]+)'
      for callees in re.findall(pattern, self.attributes):
        names += re.findall(r'[\w.-]+', callees)
    computations = [self.computation.program.computations[x] for x in names]
    if self.opcode == 'conditional':
      return [computations]
    return [[x] for x in computations]

  def all_callees(self) -> Iterator['Computation']:
    """Yields the computations that it runs, and theirs."""
    for computations in self.callees:
      for computation in computations:
        yield computation
        for called in computation.values():
          yield from called.all_callees()

  @property
  def uses(self) -> list[tuple['Instruction', int]]:
    """The instructions that read its result, each with the operand's index."""
    return self.computation.uses.get(self.name, [])

  @property
  def fused(self) -> 'Computation':
    """The computation of a fusion."""
    ((computation,),) = self.callees
    return computation


class Computation(dict[str, Instruction]):
  """Instructions in order, by name."""

  def __init__(self, name: str, program: 'Module'):
    super().__init__()
    self.name = name
    self.program = program

  @property
  def root(self) -> Instruction:
    """The instruction whose result is that of the computation."""
    return next(x for x in self.values() if x.is_root)

  @functools.cached_property
  def uses(self) -> dict[str, list[tuple[Instruction, int]]]:
    """The instructions that read each value, and the index of the operand."""
    uses: dict[str, list[tuple[Instruction, int]]] = {}
    for user in self.values():
      for i, operand in enumerate(user.operands):
        uses.setdefault(operand.name, []).append((user, i))
    return uses

  def parameter(self, index: int) -> Instruction:
    """Returns a parameter of the computation."""
    parameters = (x for x in self.values() if x.opcode == 'parameter')
    return next(x for x in parameters if x.arguments == str(index))


@dataclasses.dataclass
class Module:
  """A program."""

  computations: dict[str, Computation]  # by name
  entry: str  # name of the computation that it starts with
  devices: int  # number of devices that run it
  lines: dict[str, str]  # source file and line by stack frame

  def instructions(self) -> Iterator[Instruction]:
    """Yields the instructions of all computations."""
    for computation in self.computations.values():
      yield from computation.values()


def parse(text: str) -> Module:
  """Parses the text of a program; raises a ValueError if it is none."""
  header = re.match(r'HloModule [^\n]*', text)
  counts = re.findall(
    r'\b(?:num_partitions|replica_count)=(\d+)', header[0] if header else ''
  )
  devices = math.prod(map(int, counts))
  module = Module({}, '', devices, _source_lines(text))
  current = Computation('', module)
  for line in text.splitlines():
    start = re.match(r'(ENTRY )?%?([\w.-]+) .*\{$', line)
    if start and not line.startswith('HloModule'):
      current = module.computations[start[2]] = Computation(start[2], module)
      module.entry = start[2] if start[1] else module.entry
    elif match := re.match(r'\s+(ROOT )?%?([\w.-]+) = (.*)', line):
      parts = match[2], *_split(match[2], match[3]), bool(match[1])
      current[match[2]] = Instruction(*parts, current)
  if not module.entry:
    raise ValueError('this is no HLO: it has no ENTRY computation')
  return module


def _source_lines(text: str) -> dict[str, str]:
  """Returns 'file.py:12' by stack frame, from the tables of a program."""

  def entries(table: str, pattern: str) -> list[tuple[str, ...]]:
    match = re.search(rf'^{table}\n((?:\d+ .*\n)*)', text, re.M)
    return re.findall(rf'^(\d+) {pattern}', match[1], re.M) if match else []

  files = {number: file for number, file in entries('FileNames', '"(.*)"$')}
  places = {
    number: f'{files.get(file, "?")}:{line}'
    for number, file, line in entries(
      'FileLocations', r'\{file_name_id=(\d+) .*?\bline=(\d+)'
    )
  }
  frames = entries('StackFrames', r'\{file_location_id=(\d+)')
  return {frame: places.get(place, '?') for frame, place in frames}


def _split(name: str, text: str) -> tuple[str, str, str, str]:
  """Returns the opcode, shape, arguments and attributes of an instruction."""
  end = _closing(text) if text.startswith('(') else text.index(' ')
  shape, call = text[:end], text[end:].lstrip()
  opcode, _, arguments = call.partition('(')
  if not re.fullmatch(r'[\w-]+', opcode):
    raise ValueError(f'this HLO instruction cannot be read: {name} = {text}')
  end = _closing(arguments, depth=1)
  return opcode, shape, arguments[: end - 1], arguments[end:]


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


def trip_count(loop: Instruction) -> int | None:
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
  (condition,), (body,) = loop.callees
  compare, sides = _operation(condition.root)
  direction = re.search(r'direction=(\w+)', compare.attributes)
  if compare.opcode != 'compare' or direction is None:
    return None
  relation = direction[1]
  if sides[0].opcode == 'constant':
    sides, relation = sides[::-1], _SWAPPED.get(relation, relation)
  limit = _constant(sides[1])
  index = _tuple_index(_through_copies(sides[0]))
  (state,) = loop.operands
  if limit is None or index is None or state.opcode != 'tuple':
    return None
  start, step = _constant(state.operands[index]), _step(body, index)
  if start is None or not step:
    return None
  # How often `counter <relation> limit` holds, unless it does for ever.
  stop = limit + {'LE': 1, 'GE': -1}.get(relation, 0)
  rises = {'LT': True, 'LE': True, 'GT': False, 'GE': False}
  ends = rises.get(relation) is (step > 0)
  if relation == 'NE':
    ends = (stop - start) % step == 0 and (stop - start) * step >= 0
  return len(range(start, stop, step)) if ends else None


def _step(body: Computation, index: int) -> int | None:
  """Returns the constant that an iteration adds to a loop's counter."""
  if body.root.opcode != 'tuple':
    return None
  added, operands = _operation(_through_copies(body.root.operands[index]))
  terms = [_through_copies(x) for x in operands]
  before = [x for x in terms if _tuple_index(x) == index]
  steps = [_constant(x) for x in terms if x not in before]
  if added.opcode not in ('add', 'subtract') or len(before) * len(steps) != 1:
    return None
  if steps[0] is None or added.opcode == 'add':
    return steps[0]
  return -steps[0] if terms[0] in before else None


def _operation(value: Instruction) -> tuple[Instruction, list[Instruction]]:
  """Returns an operation and its operands, also if it is alone in a fusion."""
  if value.opcode != 'fusion':
    return value, value.operands
  root = value.fused.root
  return root, [
    value.operands[int(x.arguments)] if x.opcode == 'parameter' else x
    for x in root.operands
  ]


def _through_copies(value: Instruction) -> Instruction:
  while value.opcode in ('bitcast', 'copy') and value.operands:
    value = value.operands[0]
  return value


def _constant(value: Instruction) -> int | None:
  value = _through_copies(value)
  is_number = re.fullmatch(r'-?\d+', value.arguments)
  if value.opcode != 'constant' or not is_number:
    return None
  return int(value.arguments)


def _tuple_index(value: Instruction) -> int | None:
  match = re.search(r'\bindex=(\d+)', value.attributes)
  is_element = value.opcode == 'get-tuple-element'
  return int(match[1]) if match and is_element else None


def unknown_loops(module: Module) -> list[str]:
  """Returns the names of loops with an unknown number of iterations."""
  loops = (x for x in module.instructions() if x.opcode == 'while')
  return [loop.name for loop in loops if trip_count(loop) is None]


def executed(
  module: Module,
  find: Callable[[Instruction], Sequence[T]],
  weigh: Callable[[T], float],
) -> list[tuple[T, int]]:
  """Finds items in all instructions; returns them with their executions.

  A loop with an unknown number of iterations counts once. Only the heaviest
  branch of a conditional counts, by the weights of its items.
  """

  def heaviness(items: list[tuple[T, int]]) -> float:
    return sum(times * weigh(item) for item, times in items)

  @functools.cache
  def count_items(name: str) -> list[tuple[T, int]]:
    result: list[tuple[T, int]] = []
    for instruction in module.computations[name].values():
      result += [(item, 1) for item in find(instruction)]
      rounds = 1
      if instruction.opcode == 'while':
        rounds = trip_count(instruction) or 1
      for branches in instruction.callees:
        inner = max([count_items(x.name) for x in branches], key=heaviness)
        result += [(item, rounds * times) for item, times in inner]
    return result

  return count_items(module.entry)
