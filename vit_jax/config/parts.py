"""The language in which a key names a thing with options of its own.

    name
    name(1, option=value, ...)
    my_module:Name(option=value, ...)

Values are Python literals, quotients of numbers, as 4/3, or again things:
`swiglu`, `swiglu(hidden_dim=512)`.
Where several go together, a key has their sum, as `learned + rope(base=100.0)`.
The text is read, never run.
"""

import ast
from collections.abc import Collection
import dataclasses
import difflib
import re
from typing import Any
import warnings

from vit_jax.config.errors import UserError

# So that no number is too long to be printed, and no text to be read.
_MOST_LETTERS = 2_000
_MOST_SHOWN = 100
_DOTTED = r'[^\W\d]\w*(?:\.[^\W\d]\w*)*'
_NAME = re.compile(rf'\w+|{_DOTTED}:{_DOTTED}')
_NUMBERED_NAME = re.compile(r'\d+[^\W\d_]\w+(?=\(|$)')  # as '3augment', not '3'
# Strings, which stay as they are, or a name in a module.
_NAME_IN_MODULE = re.compile(
  r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|"""
  rf'(?<![\w.])(?!(?:True|False|None):)({_DOTTED}:{_DOTTED})',
  re.DOTALL,
)
# Letters of Python's names, which stand for the colon and the dots of a name in
# a module while Python reads the text; and one before a name's first digit.
_TO_PYTHON = str.maketrans(':.', 'ː·')
_BEFORE_DIGIT = 'ˑ'
_FROM_PYTHON = str.maketrans('ː·', ':.', _BEFORE_DIGIT)
_ADVICE = "write a name, or a name with options, as 'name(option=1)'"
NO_LITERAL = (
  "is no literal: write a number, True, False, None, a 'text', or a list or"
  ' tuple of these'
)


@dataclasses.dataclass(frozen=True)
class Part:
  """A name with its options.

  Attributes:
    name: As 'adamw' or 'my_module:Name'.
    args: Values without a name.
    options: Values by the names of the options.
  """

  name: str
  args: tuple[Any, ...] = ()
  options: dict[str, Any] = dataclasses.field(default_factory=dict)

  def __str__(self) -> str:
    """Returns a text of this part, which `parse` reads."""
    values = [*map(_text, self.args)]
    values += [f'{name}={_text(x)}' for name, x in self.options.items()]
    return f'{self.name}({", ".join(values)})' if values else self.name


def _text(value: Any) -> str:
  return str(value) if isinstance(value, Part) else repr(value)


def parse(text: str, key: str, choices: Collection[str] | None = None) -> Part:
  """Parses the value of a key of the config, which errors name.

  `choices`, if any, are all names that it may have, which errors list.
  """
  reader = _Reader(text, key, choices)
  return reader.part(reader.tree)


def parse_sum(text: str, key: str) -> tuple[Part, ...]:
  """Parses a sum, as 'a + b(x=1)'; 'none' and '' are that of no parts."""
  if isinstance(text, str) and text.strip() in ('', 'none'):
    return ()
  reader = _Reader(text, key)
  terms, node = [], reader.tree
  while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
    terms.append(node.right)
    node = node.left
  return tuple(reader.part(term) for term in (node, *reversed(terms)))


class _Reader:
  def __init__(
    self, text: str, key: str, choices: Collection[str] | None = None
  ):
    self._advice = f"{_ADVICE} or 'my_module:Name(option=1)'"
    if choices is not None:
      self._advice = f'{_ADVICE}. There are {", ".join(choices)}'
    if not isinstance(text, str):
      raise UserError(
        f'config.{key} must be a text, not {type(text).__name__}:'
        f' {self._advice}'
      )
    self._prefix = f'config.{key} is {_short(text)!r}'
    if len(text) > _MOST_LETTERS:
      raise UserError(
        f'{self._prefix}: it has {len(text):,} letters, and at most'
        f' {_MOST_LETTERS:,} are read'
      )
    self._source = _NAME_IN_MODULE.sub(
      lambda x: x[1].translate(_TO_PYTHON) if x[1] else x[0], text.strip()
    )
    if _NUMBERED_NAME.match(self._source):
      self._source = _BEFORE_DIGIT + self._source
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # on a backslash that means nothing
        self.tree = ast.parse(self._source, mode='eval').body
    except SyntaxError as e:
      problem = (e.msg or 'it cannot be read').translate(_FROM_PYTHON)
      raise UserError(f'{self._prefix}: {problem}: {self._advice}') from None
    except (ValueError, RecursionError, MemoryError):
      raise UserError(f'{self._prefix}: {self._advice}') from None

  def part(self, node: ast.expr) -> Part:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = getattr(call.func, 'id', '').translate(_FROM_PYTHON)
    if not _NAME.fullmatch(name):
      raise UserError(
        f'{self._prefix}: {self._node_text(node)} is no name: {self._advice}'
      )
    options = {}
    for keyword in call.keywords:
      if keyword.arg is None:
        raise UserError(
          f'{self._prefix}: {self._node_text(keyword)} {NO_LITERAL}'
        )
      if keyword.arg in options:
        raise UserError(f'{self._prefix}: {keyword.arg} is there twice')
      options[keyword.arg] = self._value(keyword.value, keyword)
    args = tuple(self._value(x, x) for x in call.args)
    return Part(name, args, options)

  def _value(self, node: ast.expr, culprit: ast.AST) -> Any:
    """Returns the value of an option, which errors show as `culprit`."""
    if isinstance(node, ast.Name | ast.Call):
      return self.part(node)
    try:
      return ast.literal_eval(_Quotients().visit(node))
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
      raise UserError(
        f'{self._prefix}: {self._node_text(culprit)} {NO_LITERAL}'
      ) from None

  def _node_text(self, node: ast.AST) -> str:
    text = ast.get_source_segment(self._source, node) or ''
    return _short(' '.join(text.translate(_FROM_PYTHON).split()))


class _Quotients(ast.NodeTransformer):
  """Divides numbers, which `ast.literal_eval` does not."""

  def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
    """Returns the quotient of two numbers; any other node as it is."""
    numbers = [
      x.value
      for x in (node.left, node.right)
      if isinstance(x, ast.Constant) and type(x.value) in (int, float)
    ]
    if isinstance(node.op, ast.Div) and len(numbers) == 2 and numbers[1]:
      quotient: Any = numbers[0]
      try:
        quotient = float(quotient / numbers[1])
      except OverflowError:
        raise ValueError('a quotient is too large') from None
      return ast.copy_location(ast.Constant(quotient), node)
    return node


def literal(text: str) -> Any:
  """Returns the value of a Python literal; any other text as it is."""
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


def _short(text: str) -> str:
  return text if len(text) <= _MOST_SHOWN else f'{text[:_MOST_SHOWN]}...'


def check_options(part: Part, key: str, option_names: Collection[str]) -> None:
  """Raises a UserError if a part has an option that is not known."""
  for option in part.options:
    if option not in option_names:
      raise UserError(
        f'config.{key}: {part.name} has no option {option!r}:'
        f' {nearest(option, option_names)}'
      )


def nearest(name: str, choices: Collection[str]) -> str:
  """Returns the end of an error about an unknown name, with all choices."""
  matches = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
  hint = f'did you mean {matches[0]!r}? ' if matches else ''
  return f'{hint}There are {", ".join(choices) or "none"}'
