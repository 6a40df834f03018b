"""The meanings of keys: the comments beside their defaults."""

import ast
from collections.abc import Callable
from collections.abc import Iterator
import functools
import inspect
import re
import types
from typing import Any

from vit_jax.config.defaults import default
from vit_jax.config.defaults import evaluation
from vit_jax.config.tasks import task

_TASK = r'^tasks\.\w+\.'


def meaning(key: str) -> str:
  """Returns what a key is for, in one line; '' if nothing says it.

  Args:
    key: As 'optim.learning_rate', or of a task or an evaluation of any name.
  """
  if match := re.fullmatch(r'tasks\.\w+\.(\w+)', key):
    if text := _arguments(task).get(match[1]):
      return text
  key = re.sub(_TASK, '', key)
  if match := re.fullmatch(r'evals\.\w+\.(\w+)', key):
    return _arguments(evaluation).get(match[1], '')
  while key:
    if text := _comments().get(key):
      return text
    key = key.rpartition('.')[0]  # that of its group
  return ''


@functools.cache
def _comments() -> dict[str, str]:
  return dict(_read(default, 'config', ''))


def _read(
  function: Callable[..., Any], variable: str, prefix: str
) -> Iterator[tuple[str, str]]:
  """Yields (key, comment) of the keys that a function sets.

  Args:
    function: One that makes keys, or that calls functions that do.
    variable: Name of its group of keys, as in `optim.name = 'adamw'`.
    prefix: Of the group's keys, as 'optim.'.
  """
  lines = inspect.getsource(function).splitlines()
  tree = ast.parse('\n'.join(lines)).body[0]
  assert isinstance(tree, ast.FunctionDef)
  block = ''  # the comment above, of all keys that follow without a comment
  for node in tree.body:
    for name, value in _pairs(node):
      if name.split('.')[0] != variable:
        continue
      key = prefix + name.partition('.')[2]
      comment = above(lines, node.lineno - 1)
      trailing_comment = trailing(lines[(node.end_lineno or node.lineno) - 1])
      block = comment if comment or trailing_comment else block
      yield (
        key.rstrip('.'),
        ' '.join(filter(None, (comment, trailing_comment))) or block,
      )
      if callee := _called(function, value):
        inner = inspect.getsource(callee)
        (returned,) = re.findall(r'^  return (\w+)$', inner, re.MULTILINE)
        yield from _read(callee, returned, f'{key}.')


def _pairs(node: ast.stmt) -> list[tuple[str, ast.expr]]:
  """Returns the names and values of an assignment to keys."""
  if not isinstance(node, ast.Assign):
    return []
  (target,) = node.targets
  if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
    pairs = zip(target.elts, node.value.elts, strict=True)
  else:
    pairs = zip([target], [node.value], strict=True)
  return [(ast.unparse(x), y) for x, y in pairs if isinstance(x, ast.Attribute)]


def _called(
  function: Callable[..., Any], value: ast.expr
) -> Callable[..., Any] | None:
  """Returns the function of this package that a value calls, or None."""
  if not isinstance(value, ast.Call):
    return None
  target: Any = types.SimpleNamespace(**function.__globals__)
  for part in ast.unparse(value.func).split('.'):
    target = getattr(target, part, None)
  package = __name__.rpartition('.')[0]
  is_ours = inspect.isfunction(target) and target.__module__.startswith(package)
  return target if is_ours and target is not evaluation else None


def above(lines: list[str], end: int) -> str:
  """Returns the comment that ends above a line, in one line."""
  start = end
  while lines[start - 1].lstrip().startswith('#'):
    start -= 1
  return ' '.join(line.strip().lstrip('# ') for line in lines[start:end])


def trailing(line: str) -> str:
  """Returns the comment at the end of a line."""
  return line.partition('  # ')[2]


@functools.cache
def _arguments(function: Callable[..., Any]) -> dict[str, str]:
  """Returns the meanings of a function's arguments, from its docstring."""
  text = inspect.getdoc(function) or ''
  arguments = text.partition('Args:\n')[2]
  entries = re.findall(r'^  (\w+): (.*(?:\n    .*)*)', arguments, re.MULTILINE)
  return {name: ' '.join(meaning.split()) for name, meaning in entries}
