"""Suggests a path that exists for a similar one that does not."""

from collections.abc import Callable
import difflib
import itertools
import os
import re

# Least similarity by difflib: 'imagess' has 0.92 with 'images', 'trian' 0.8
# with 'train', and 'best' 0.75 with 'test'.
_LEAST_SIMILARITY = 0.8
_MOST = 1_000  # names in a folder that are compared: more take long


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
  if similar_path := find(path, exists):
    return f': did you mean {similar_path!r}?'
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
  parent, tail_parts = path.rstrip('/'), list[str]()
  try:
    while parent and not os.path.isdir(parent):
      parent, name = os.path.split(parent)
      if os.path.isdir(parent or '.'):
        with os.scandir(parent or '.') as entries:
          entry_names = [x.name for x in itertools.islice(entries, _MOST + 1)]
        similar_names = (
          _similar(name, entry_names) if len(entry_names) <= _MOST else []
        )
        candidates = [
          os.path.join(parent, x, *tail_parts) for x in similar_names
        ]
        return next(filter(exists, candidates), '')
      tail_parts = [name, *tail_parts]
  except (OSError, ValueError):  # not to be read, or no path at all
    pass
  return ''


def _similar(name: str, entry_names: list[str]) -> list[str]:
  """Returns the names that are like a name, the nearest first.

  Those that have other numbers or initials are left out: 'step_20' for
  'step_10', or 'fold_b' for 'fold_a', is another thing, and no misspelling.
  """
  by_lower = {x.lower(): x for x in sorted(entry_names) if x[:1] != '.'}
  matches = difflib.get_close_matches(
    name.lower(), list(by_lower), n=5, cutoff=_LEAST_SIMILARITY
  )
  return [by_lower[x] for x in matches if _signs(x) == _signs(name.lower())]


def _signs(name: str) -> list[str]:
  """Returns the numbers and the letters that stand alone, in their order."""
  parts = re.findall(r'\d+|[^\W\d_]+', name)
  return [x for x in parts if x.isdigit() or len(x) == 1]
