"""The language in which a key names a thing with options of its own.

    name
    name(option=value, ...)
    my_module:Name(option=value, ...)

Values are Python literals. The text is read, never run.
"""

import ast
from collections.abc import Collection
import dataclasses
import difflib
import re
from typing import Any

from vit_jax.config.errors import UserError

_PART = re.compile(
  r'\s*([A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?)\s*(\(.*\))?\s*', re.DOTALL
)


@dataclasses.dataclass(frozen=True)
class Part:
  """A name with its options.

  Attributes:
    name: As 'adamw' or 'my_module:Name'.
    options: Values by the names of the options.
  """

  name: str
  options: dict[str, Any]


def parse(text: str, key: str) -> Part:
  """Parses a value of a config.

  Args:
    text: As in the docstring of this module.
    key: Key of the config that holds it, for errors.

  Raises:
    UserError: It is not written so.
  """
  where = f'config.{key} is {text!r}'
  match = _PART.fullmatch(text)
  try:
    call = (
      ast.parse(f'f{match[2] or "()"}', mode='eval').body if match else None
    )
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    call = None
  if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
    raise UserError(
      f'{where}: write a name, or a name with options, as'
      " 'optax:adan(b1=0.98, b2=0.92)'"
    )
  assert match is not None
  options = {}
  for keyword in call.keywords:
    try:
      options[str(keyword.arg)] = ast.literal_eval(keyword.value)
    except (ValueError, TypeError, RecursionError, MemoryError):
      raise UserError(
        f'{where}: {ast.unparse(keyword)} is no literal: write a number, True,'
        " False, None, a 'text', or a list or tuple of these"
      ) from None
  if call.args or any(keyword.arg is None for keyword in call.keywords):
    raise UserError(f'{where}: write each option with its name, as b1=0.98')
  return Part(match[1], options)


def check_options(part: Part, key: str, known: Collection[str]) -> None:
  """Raises a UserError if a part has an option that is not known."""
  for option in part.options:
    if option not in known:
      raise UserError(
        f'config.{key}: {part.name} has no option {option!r}:'
        f' {nearest(option, known)}'
      )


def nearest(name: str, known: Collection[str]) -> str:
  """Returns the end of an error about an unknown name.

  Args:
    name: The unknown name.
    known: Those that there are.
  """
  near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
  hint = f'did you mean {near[0]!r}? ' if near else ''
  return f'{hint}There are {", ".join(known) or "none"}'
