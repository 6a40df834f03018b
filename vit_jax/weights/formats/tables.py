"""Foreign checkpoint formats as tables that work in both directions.

A rule maps a parameter's path in our tree to one or more arrays of a foreign
file, with the transforms in both directions. `#` stands for the number of a
layer, a stage or a unit. The first rule that matches a path is used. `arrays`
reads a table of them, a rule or a layer a line:

    patch_embedding         patch_embed.proj    conv*
    class_token             cls_token
    blocks_#/attention/out  blocks.#.attn.proj  dense2*
    norm                    fc_norm             norm*  ?pool.norm_after
    blocks_#/mlp/up         blocks.#.in_proj@0  dense*
    blocks_#/attention/qkv  blocks.#.in_proj@1  dense*

Several of our arrays may be one in the file: `@0` is its first part, along the
first axis, `@1` the next. In `@0:columns` the axis is the second, and in
`@0:sum` the file has the sum, which is read as the first part. `@2/3` is the
last of three equal parts, of which others may be no parameters.

A line without a path, `-`, is an array that is written alone, since a class has
it: of `0[1,hidden_size]` all numbers are 0.

Names and shapes are compared before any array is read, so one error reports all
missing, misshapen and unexpected arrays.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import re
from typing import Any
from typing import TypeVar

import flax
import jax
import numpy as np

from vit_jax.config import UserError
from vit_jax.weights.files import containers

Shape = tuple[int, ...]
_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Layout:
  """Transforms between our array and those in a foreign file."""

  # (foreign arrays, our shape) -> our array.
  to_ours: Callable[[Sequence[np.ndarray], Shape], np.ndarray]
  # our array -> foreign arrays.
  to_theirs: Callable[[np.ndarray], list[np.ndarray]]


def reshaped(to_theirs: Callable[[np.ndarray], np.ndarray]) -> Layout:
  """Returns a layout whose foreign array has another shape, and our order."""
  return Layout(lambda a, shape: a[0].reshape(shape), lambda a: [to_theirs(a)])


def linear(inputs: int = 1) -> Layout:
  """Returns Torch's [out, in]; our first `inputs` axes are input axes."""
  return Layout(
    lambda a, shape: a[0].T.reshape(shape),
    lambda a: [a.reshape(int(np.prod(a.shape[:inputs])), -1).T],
  )


def split(axis: int, inner: Layout) -> Layout:
  """Splits an axis into one array per index, such as query, key and value."""

  def to_ours(arrays: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    part = (*shape[:axis], *shape[axis + 1 :])
    return np.stack([inner.to_ours([a], part) for a in arrays], axis)

  return Layout(
    to_ours,
    lambda a: [inner.to_theirs(x)[0] for x in np.moveaxis(a, axis, 0)],
  )


def joined(count: int, inner: Layout) -> Layout:
  """Cuts the last axis into equal parts, such as gate and value of a MLP."""

  def to_ours(arrays: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    part = (*shape[:-1], shape[-1] // count)
    return np.concatenate([inner.to_ours([a], part) for a in arrays], -1)

  return Layout(
    to_ours,
    lambda a: [inner.to_theirs(x)[0] for x in np.split(a, count, axis=-1)],
  )


# The same array, except for axes of length 1.
IDENTITY = reshaped(lambda a: a)
_FLAT = reshaped(lambda a: a.reshape(-1))
# Kernels of attention with one axis for all outputs.
_FLAT_OUTPUTS = reshaped(lambda a: a.reshape(len(a), -1))
_LAYOUTS = {
  '': IDENTITY,
  'flat': _FLAT,
  'flat_outputs': _FLAT_OUTPUTS,
  'flat_inputs': reshaped(lambda a: a.reshape(-1, a.shape[-1])),
  # Torch's convolutions are [out, in, ...], of any number of axes.
  'conv': Layout(
    lambda a, _: np.moveaxis(a[0], (0, 1), (-1, -2)),
    lambda a: [np.moveaxis(a, (-1, -2), (0, 1))],
  ),
  # A dense layer as a 1x1 convolution, of torch or of Flax.
  'conv1x1': Layout(
    lambda a, _: a[0][:, :, 0, 0].T, lambda a: [a.T[:, :, None, None]]
  ),
  'conv_of_points': reshaped(lambda a: a[None, None]),
  'dense': linear(),
  'dense2': linear(2),
  # Kernels, and biases, of queries and values, or of keys and values.
  'kernels': split(1, linear()),
  'two': split(0, _FLAT),
  # Axes of length 1 that a file lacks, or has beside ours.
  'row': reshaped(lambda a: np.squeeze(a, 0)),
  'number': reshaped(lambda a: a[None]),
  'column': reshaped(lambda a: a[:, None]),
}
# Style of a file -> kinds of norms, and names there of their arrays.
_NORMS: Mapping[str, Mapping[str, Sequence[str]]] = {
  'torch': {
    'norm': ('weight', 'bias'),
    'batch_norm': ('weight', 'bias', 'running_mean', 'running_var'),
  },
  'flax': {
    'norm': ('scale', 'bias'),
    'group_norm': ('scale', 'bias'),
    'gamma_norm': ('gamma', 'beta'),
  },
}


def _leaves(
  kind: str, style: str, parts: int
) -> Sequence[tuple[str, str, Layout]]:
  """Returns the arrays of a layer: names here and there, and the layout.

  Parts of one layer, such as query, key and value, lie on an axis before their
  outputs; halves, on the last axis.
  """
  if kind == 'conv_bn':  # a convolution with its norm in a module
    norms = [
      (f'norm/{leaf}', f'bn.{file_leaf}', layout)
      for leaf, file_leaf, layout in _leaves('batch_norm', style, parts)
    ]
    return [('conv/kernel', 'conv.weight', _LAYOUTS['conv']), *norms]
  if names := _NORMS[style].get(kind):
    layout = IDENTITY
    if kind == 'group_norm':
      layout = reshaped(lambda a: a[None, None, None])
    leaves = ('scale', 'bias', 'mean', 'var')
    return [(*pair, layout) for pair in zip(leaves, names, strict=False)]
  is_torch = style == 'torch'
  inner, flat = (linear(), _FLAT) if is_torch else (IDENTITY, IDENTITY)
  kernel, bias = {
    'conv': (_LAYOUTS['conv'], IDENTITY),
    'conv1x1': (_LAYOUTS['conv1x1'], IDENTITY),
    'dense': (inner, flat),
    'dense2': (linear(2), _FLAT),
    'parts': (split(1, inner), split(0, flat)),
    'flat_parts': (split(1, _FLAT_OUTPUTS), split(0, _FLAT)),
    'halves': (joined(parts, linear()), joined(parts, IDENTITY)),
  }[kind]
  weight = 'weight' if is_torch else 'kernel'
  return [('kernel', weight, kernel), ('bias', 'bias', bias)]


@dataclasses.dataclass(frozen=True)
class Rule:
  """One line of a table."""

  path_pattern: str  # path, with `#` for numbers
  name_patterns: tuple[str, ...]  # names in the file, with `#` for each number
  layout: Layout = IDENTITY  # layout of the arrays in the file
  offset: int = 0  # number to add to ours to get theirs
  # A model's value by which the rule holds (`holds`); '': always.
  condition: str = ''
  factor: int = 1  # number by which ours are multiplied before
  # Whether the arrays are read where a file has them, and never written.
  is_read_only: bool = False
  constant: str = ''  # its number and shape, if it is none of our arrays

  def names(self, path: str) -> list[str] | None:
    """Returns the foreign names of our path; None if it does not match."""
    match = self._pattern.fullmatch(path)
    if match is None:
      return None
    numbers = [self.factor * int(x) + self.offset for x in match.groups()]
    return [numbered(name, numbers) for name in self.name_patterns]

  @functools.cached_property
  def _pattern(self) -> re.Pattern[str]:
    return pattern(self.path_pattern)


def arrays(text: str, style: str = 'torch', **layouts: Layout) -> list[Rule]:
  """Returns the rules of a table.

  Args:
    text: Lines of our path, with `#` for numbers; their name, or several joined
      by `|`; the kind of layer with a star, or of an array's layout; `?` and a
      condition (`holds`); `*3-1`, by what numbers are multiplied, and what is
      added to them; and `<` if the arrays are read alone, in place of those of
      other lines (`Rule.is_read_only`). All but the first two may be left out,
      and the names of parts may have what they share before braces:
      `attn.{q,k,v}`.
    style: 'torch' or 'flax'.
    **layouts: Further layouts by name.
  """
  separator = '.' if style == 'torch' else '/'
  rules = []
  for line in joined_lines(text):
    path, name_pattern, *columns = line.split()
    names = alternatives(name_pattern)
    condition, kind, factor, offset = '', '', 1, 0
    is_read_only = '<' in columns
    for column in columns:
      if column.startswith('?'):
        condition = column[1:]
      elif match := re.fullmatch(r'(?:\*(\d+))?([+-]\d+)?', column):
        factor, offset = int(match[1] or 1), int(match[2] or 0)
      elif column != '<':
        kind = column
    if path == '-':
      rule = Rule('', tuple(names), condition=condition, constant=kind)
      rules.append(rule)
      continue
    if kind.endswith('*'):
      leaves = _leaves(kind[:-1], style, len(names))
    else:
      leaves = [('', '', {**_LAYOUTS, **layouts}[kind])]
    for leaf, their_leaf, layout in leaves:
      full_path = f'{path}/{leaf}' if leaf else path
      after = separator + their_leaf if leaf else ''
      full_names = tuple(re.sub('(?=@|$)', after, x, count=1) for x in names)
      rules.append(
        Rule(
          full_path,
          full_names,
          layout,
          offset,
          condition,
          factor,
          is_read_only,
        )
      )
  return rules


def alternatives(text: str) -> list[str]:
  """Returns the names of `a|b`, or of `a.{b,c}`."""
  names: list[str] = []
  for name in text.split('|'):
    match = re.fullmatch(r'(.*)\{([\w.]+(?:,[\w.]+)+)\}(.*)', name)
    choices = match[2].split(',') if match else []
    names += [match[1] + x + match[3] for x in choices] if match else [name]
  return names


def joined_lines(text: str) -> list[str]:
  """Returns the lines of a table; one that is indented continues another."""
  lines = re.sub(r'\n +', ' ', text).splitlines()
  return [line for line in lines if line]


def pattern(name: str) -> re.Pattern[str]:
  """Returns the expression of a name with `#` for numbers, its groups."""
  return re.compile(re.escape(name).replace(r'\#', r'(\d+)'))


def numbered(name: str, numbers: Iterable[Any]) -> str:
  """Returns a name with numbers in the places of `#`; `##` has two digits."""
  digits = map(str, numbers)
  return re.sub('#+', lambda x: next(digits).zfill(len(x[0])), name)


def below(
  rules: Iterable[Rule], path_prefix: str, name_prefix: str
) -> list[Rule]:
  """Returns rules of a part of our tree, and of a part of the file.

  The prefixes come before its paths, as 'trunk/', and before its names.
  """
  return [
    dataclasses.replace(
      x,
      path_pattern=path_prefix + x.path_pattern,
      name_patterns=tuple(name_prefix + name for name in x.name_patterns),
    )
    for x in rules
  ]


def holds(condition: str, values: Mapping[str, Any]) -> bool:
  """Whether a condition holds for values of `models.values.model_values`.

  It is the name of a value that is on; or `name=text`, without spaces; or `!`
  and one of these, if it must not be so; or several, joined by `&`; or by `|`,
  of several of which one must hold.
  """

  def is_so(text: str) -> bool:
    name, _, word = text.removeprefix('!').partition('=')
    value = values.get(name)
    is_equal = str(value).replace(' ', '') == word if word else bool(value)
    return is_equal != text.startswith('!')

  return any(
    all(is_so(x) for x in filter(None, clause.split('&')))
    for clause in condition.split('|')
  )


def unmet(condition: str, values: Mapping[str, Any]) -> str | None:
  """Returns the first value by which a condition does not hold; None: it does.

  It has no `|`.
  """
  clauses = filter(None, condition.split('&'))
  failed = (x for x in clauses if not holds(x, values))
  first = next(failed, None)
  return first.removeprefix('!').partition('=')[0] if first else None


def chosen(text: str) -> Callable[[Mapping[str, Any]], str | None]:
  """Returns what finds the first line of a text whose condition holds, or None.

  A line has a condition (`holds`; `-`: it always does), and what is returned,
  where `{name}` is a value as Python has it. An indented line continues the one
  before.
  """
  lines = [x.split(maxsplit=1) for x in joined_lines(text)]

  def choose(values: Mapping[str, Any]) -> str | None:
    for condition, words in lines:
      if holds(condition.strip('-'), values):
        return re.sub(r'{(.*?)}', lambda x: repr(values.get(x[1])), words)
    return None

  return choose


@dataclasses.dataclass(frozen=True)
class Entry:
  """One parameter: its path and shape, and its arrays in the file."""

  path: str
  shape: Shape
  names: tuple[str, ...]  # with `@` if they are parts of arrays
  shapes: tuple[Shape, ...]
  layout: Layout


def entries(
  rules: Sequence[Rule], params: Any, file_names: Collection[str] = ()
) -> list[Entry]:
  """Returns what a file must have for our tree of arrays or shapes.

  Layers are unrolled; `file_names` are as of `entry`. A KeyError has the path
  of a parameter without place.
  """
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  return [entry(rules, path, x.shape, file_names) for path, x in flat.items()]


def entry(
  rules: Sequence[Rule],
  path: str,
  shape: Shape,
  file_names: Collection[str] = (),
) -> Entry:
  """Returns the entry of one parameter; a KeyError: it has no place.

  `file_names` are those of the arrays of a file that is read.
  """
  matches = [(x, names) for x in rules if (names := x.names(path))]
  matches = [
    (rule, names)
    for rule, names in matches
    if rule.is_read_only
    and all(x.partition('@')[0] in file_names for x in names)
  ] or [x for x in matches if not x[0].is_read_only]
  if not matches:
    raise KeyError(path)
  rule, names = matches[0]
  # A broadcast scalar: the layout's functions then give the shapes.
  probe = np.broadcast_to(np.float32(0), shape)
  shapes = tuple(a.shape for a in rule.layout.to_theirs(probe))
  return Entry(path, shape, tuple(names), shapes, rule.layout)


def stored_shapes(parameters: Iterable[Entry]) -> dict[str, Shape]:
  """Returns the shapes of the arrays of a file, by name."""
  parts = _part_shapes(parameters)
  return {name: _joined_shape(shapes) for name, shapes in parts.items()}


def _part_shapes(parameters: Iterable[Entry]) -> dict[str, dict[str, Shape]]:
  shapes: dict[str, Shape] = {}
  for parameter in parameters:
    shapes |= zip(parameter.names, parameter.shapes, strict=True)
  return _by_array(shapes)


def _by_array(parts: Mapping[str, _T]) -> dict[str, dict[str, _T]]:
  """Returns what is said of parts, by array of the file, in their order."""
  arrays: dict[str, dict[str, _T]] = {}
  for name in sorted(parts, key=lambda x: x.partition('@')[2]):
    arrays.setdefault(name.partition('@')[0], {})[name] = parts[name]
  return arrays


def _axis(part: str) -> int | None:
  """Returns the axis along which a part is joined; None: they are added."""
  return {'': 0, 'columns': 1, 'sum': None}[part.partition(':')[2]]


def _equal_parts(part: str) -> int:
  """Returns of how many equal parts a part is one; 0: they may differ."""
  return int(part.partition('@')[2].partition('/')[2] or 0)


def _joined_shape(shapes: Mapping[str, Shape]) -> Shape:
  name, shape = next(iter(shapes.items()))
  axis = _axis(name)
  if axis is None or '@' not in name:
    return shape
  length = _equal_parts(name) * shape[axis]
  length = length or sum(x[axis] for x in shapes.values())
  return (*shape[:axis], length, *shape[axis + 1 :])


def _joined(parts: Mapping[str, np.ndarray]) -> np.ndarray:
  arrays, axis = [*parts.values()], _axis(next(iter(parts)))
  if axis is None:
    return sum(arrays[1:], arrays[0])
  return np.concatenate(arrays, axis)


def _cut(
  array: np.ndarray, part: str, shapes: Mapping[str, Shape]
) -> np.ndarray:
  """Returns a part of a file's array, of which all have these shapes."""
  if '@' not in part:
    return array
  array, axis = array.reshape(_joined_shape(shapes)), _axis(part)
  if count := _equal_parts(part):
    number = int(part.partition('@')[2].partition('/')[0])
    return np.split(array, count)[number]
  names = [*shapes]
  if axis is None:
    return array if part == names[0] else np.zeros_like(array)
  ends = np.cumsum([x[axis] for x in shapes.values()])[:-1]
  return np.split(array, ends, axis)[names.index(part)]


def read(
  arrays: containers.Arrays,
  rules: Sequence[Rule],
  abstract: Any,
  ignored: str,
  stored: Callable[[str], str] = str,
) -> dict[str, Any]:
  """Reads our tree out of an open file, one array at a time.

  Args:
    arrays: Arrays of the file.
    rules: The format's table.
    abstract: Our tree of shapes; layers are not stacked.
    ignored: Regular expression that fully matches names outside the model.
    stored: Name in a rule -> name in the file, for messages.

  Returns:
    Nested dict of float32 arrays on the default device.

  Raises:
    UserError: Arrays are missing, misshapen, not finite, or unexpected; the
      message names all of them.
  """
  parameters = entries(rules, abstract, arrays.shapes)
  parts = _part_shapes(parameters)
  needed = {name: _joined_shape(shapes) for name, shapes in parts.items()}
  problems = _differences(needed, arrays.shapes, ignored, stored)
  # After a fault the other arrays are still checked, to report all faults.
  faults = [
    f'{k}: {", ".join(names)}' for k, names in problems.items() if names
  ]
  params = {}
  infinite: dict[str, None] = {}
  for parameter in parameters:
    file_arrays = []
    for part in parameter.names:
      name = part.partition('@')[0]
      if not _fits(arrays.shapes.get(name), needed[name]):
        continue
      array = _cut(arrays.read(name), part, parts[name])
      if not np.isfinite(array).all():
        infinite[stored(name)] = None
      file_arrays.append(array)
    if not faults:
      array = parameter.layout.to_ours(file_arrays, parameter.shape)
      # Wait for the copy: otherwise several arrays are in memory twice.
      params[parameter.path] = jax.device_put(
        np.asarray(array, np.float32, order='C')
      ).block_until_ready()
      del array, file_arrays
  if infinite:
    faults.append(f'not finite: {", ".join(infinite)}')
  if faults:
    raise UserError(f'it does not fit: {"; ".join(faults)}')
  return flax.traverse_util.unflatten_dict(params, sep='/')


def _differences(
  needed: Mapping[str, Shape],
  shapes: Mapping[str, Shape],
  ignored: str,
  stored: Callable[[str], str],
) -> dict[str, list[str]]:
  missing, misshapen = [], []
  for name, shape in needed.items():
    if name not in shapes:
      missing.append(f'{stored(name)} {shape}')
    elif not _fits(shapes[name], shape):
      misshapen.append(f'{stored(name)} {shapes[name]} instead of {shape}')
  extra = [
    stored(name)
    for name, shape in shapes.items()
    if name not in needed and not re.fullmatch(ignored, name) and 0 not in shape
  ]
  return {'missing': missing, 'misshapen': misshapen, 'unknown': extra}


def _fits(stored_shape: Shape | None, needed_shape: Shape) -> bool:
  """Whether shapes agree; GroupNorm's (1, 1, 1, C) counts as (C,)."""
  return stored_shape is not None and (
    [n for n in stored_shape if n != 1] == [n for n in needed_shape if n != 1]
  )


def write(
  rules: Sequence[Rule], params: Any, values: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the arrays of a file, in our tree's order, as views of ours.

  Arrays that are joined come last, and then those that are none of ours, whose
  sides are `values` of the model.
  """
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  parts: dict[str, np.ndarray] = {}
  for parameter in entries(rules, params):
    file_arrays = parameter.layout.to_theirs(np.asarray(flat[parameter.path]))
    for name, array in zip(parameter.names, file_arrays, strict=True):
      if '@' in name:
        parts[name] = array
      else:
        yield name, array
  for name, arrays in _by_array(parts).items():
    yield name, _joined(arrays)
  values = values or {}
  for rule in rules if values else ():
    for name in rule.name_patterns if rule.constant else ():
      number, sides = rule.constant.removesuffix(']').split('[')
      shape = [int(values.get(x, x)) for x in sides.split(',')]
      array = np.full(shape, number, np.float32)
      for i in range(values['depth'] if '#' in name else 1):
        yield numbered(name, [i]), array
