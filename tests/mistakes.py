"""Files of mistakes: what is changed, and what the error says.

A case of `case_files.py` is `key=1; other.key=text`, or - for no change. What
is no literal of Python is a string.
"""

import ast
from collections.abc import Iterator
import contextlib
import pathlib
from typing import Any

import case_files
import pytest

from vit_jax.config import UserError


def cases(path: pathlib.Path) -> list[Any]:
  """Returns section, changes by key, and pattern of each case, for a test."""
  return [
    pytest.param(section, changes(text), pattern, id=f'{section}: {text}')
    for section, text, pattern in case_files.read(path)
  ]


def changes(text: str) -> dict[str, Any]:
  """Returns the values of 'key=1; other.key=text', by their keys."""
  pairs = [x.partition('=') for x in text.split('; ') if x not in ('', '-')]
  return {key: _value(value) for key, _, value in pairs}


def _value(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


@contextlib.contextmanager
def told(pattern: str, error: type[Exception] = UserError) -> Iterator[None]:
  """Expects an error of one line that has a pattern."""
  with pytest.raises(error, match=pattern) as info:
    yield
  assert '\n' not in str(info.value)
