"""Suggests a path that exists for a similar one that does not."""

from collections.abc import Callable
import difflib
import os
import re

# Least similarity by difflib: 'imagess' has 0.92 with 'images', and
# 'val' 0.25 with 'train'.
_NEAR = 0.75
_MOST = 10_000  # names in a folder that are compared: more take seconds


def nearby(
  path: str,
  exists: Callable[[str], bool] = os.path.exists,
  otherwise: str = '',
) -> str:
  """Returns the end of a message about a path that does not exist.

  Args:
    path: The path.
    exists: Whether a path is one that would do, as `os.path.isdir`.
    otherwise: What to return if no path is similar; '': where a relative path
      was looked for.

  Returns:
    As ": did you mean 'images'?".
  """
  if near := find(path, exists):
    return f': did you mean {near!r}?'
  is_relative = path and not os.path.isabs(path)
  return otherwise or (f' in {os.getcwd()}' if is_relative else '')


def find(path: str, exists: Callable[[str], bool] = os.path.exists) -> str:
  """Returns a path that differs in the name of one folder or file.

  Args:
    path: A path that does not exist.
    exists: As for `nearby`.

  Returns:
    The path, '' if there is none: a wrong suggestion is worse than none.
  """
  parent, rest = path.rstrip('/'), list[str]()
  try:
    while parent and not os.path.isdir(parent):
      parent, name = os.path.split(parent)
      if os.path.isdir(parent or '.'):
        others = [x for x in os.listdir(parent or '.') if x[:1] != '.']
        near = _similar(name, others) if len(others) <= _MOST else []
        found = [os.path.join(parent, x, *rest) for x in near]
        return next(filter(exists, found), '')
      rest = [name, *rest]
  except (OSError, ValueError):  # not to be read, or no path at all
    pass
  return ''


def _similar(name: str, others: list[str]) -> list[str]:
  """Returns the names that are like a name, the nearest first.

  Those that have only other numbers are left out: 'step_20' for 'step_10' is
  another thing, and no misspelling.
  """
  by_lower = {x.lower(): x for x in sorted(others)}
  near = difflib.get_close_matches(
    name.lower(), list(by_lower), n=5, cutoff=_NEAR
  )
  found = [by_lower[x] for x in near]
  return [x for x in found if _letters(x) != _letters(name)]


def _letters(name: str) -> str:
  return re.sub(r'\d+', '0', name)
