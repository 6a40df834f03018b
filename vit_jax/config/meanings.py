"""The meanings of keys: the comments beside their defaults."""

from collections.abc import Callable
import functools
import inspect
import re
from typing import Any

from vit_jax.config import defaults
from vit_jax.config.tasks import task


def meaning(key: str) -> str:
  """Returns what a key is for, in one line; '' if nothing says it.

  Args:
    key: As 'optim.learning_rate', or of a task or an evaluation of any name.
  """
  if match := re.fullmatch(r'tasks\.\w+\.(\w+)', key):
    if text := _arguments(task).get(match[1]):
      return text
  key = re.sub(r'^tasks\.\w+\.', '', key)
  if match := re.fullmatch(r'evals\.\w+\.(\w+)', key):
    return _arguments(defaults.evaluation).get(match[1], '')
  while key:
    if text := _comments().get(key):
      return text
    key = key.rpartition('.')[0]  # that of its group
  return ''


@functools.cache
def _comments() -> dict[str, str]:
  """Returns the comments of `defaults` by key.

  A comment is above a key, at the end of its line, or above the first of
  several keys.
  """
  comments = {}
  block = ''
  lines = inspect.getsource(defaults).splitlines()
  for i, line in enumerate(lines):
    if match := re.match(r'  (?:config\.)?([a-z]\w*(?:\.\w+)*) = ', line):
      texts = [x for x in (above(lines, i), trailing(line)) if x]
      block = above(lines, i) if texts else block
      comments[match[1]] = ' '.join(texts) or block
    elif not line.strip():
      block = ''
  return comments


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
  text = inspect.getdoc(function) or ''
  arguments = text.partition('Args:\n')[2]
  entries = re.findall(r'^  (\w+): (.*(?:\n    .*)*)', arguments, re.MULTILINE)
  return {name: ' '.join(meaning.split()) for name, meaning in entries}
