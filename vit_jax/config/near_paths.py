"""Suggests a path that exists for a similar one that does not."""

from collections.abc import Callable
import difflib
import itertools
import os
import re

from vit_jax.config import files

# Least similarity by difflib: 'imagess' has 0.92 with 'images', 'trian' 0.8
# with 'train', and 'best' 0.75 with 'test'.
_LEAST_SIMILARITY = 0.8
_MOST = 1_000  # names in a folder that are compared: more take long


def find(path: str, exists: Callable[[str], bool] = os.path.exists) -> str:
  """Returns a path that differs in the name of one folder or file.

  It is '' if there is none: a wrong suggestion is worse than none. `exists`
  says whether a path is one that would do, as `os.path.isdir`.
  """
  parent, tail_parts = path.rstrip('/'), list[str]()
  try:
    while parent and not os.path.isdir(parent):
      parent, name = os.path.split(parent)
      if os.path.isdir(parent or '.'):
        with os.scandir(parent or '.') as entries:
          names = [x.name for x in itertools.islice(entries, _MOST + 1)]
        similar_names = _similar(name, names) if len(names) <= _MOST else []
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

  def signs(name: str) -> list[str]:
    parts = re.findall(r'\d+|[^\W\d_]+', name)
    return [x for x in parts if x.isdigit() or len(x) == 1]

  by_lower = {x.lower(): x for x in sorted(entry_names) if x[:1] != '.'}
  matches = difflib.get_close_matches(
    name.lower(), list(by_lower), n=5, cutoff=_LEAST_SIMILARITY
  )
  return [by_lower[x] for x in matches if signs(x) == signs(name.lower())]


def config_file(path: str, folder: str) -> str:
  """Returns the name of a similar file, as `files.find` takes it, or ''."""
  is_name = re.fullmatch(r'\w+', path)
  name = f'{folder}{path}.py' if is_name else path
  roots = [] if os.path.isabs(name) else [f'{root}/' for root in files.ROOTS]
  for root in ('', *roots):
    # `files.find` takes names, and paths of vit_jax, of the folder's files
    # alone.
    within = root + folder if root or is_name else ''

    def is_file(path: str, within: str = within) -> bool:
      return os.path.normpath(path).startswith(within) and os.path.isfile(path)

    if similar_path := find(root + name, is_file):
      if is_name:
        return files.file_name(similar_path)
      return similar_path.removeprefix(root)
  return ''


def nearby(
  path: str,
  exists: Callable[[str], bool] = os.path.exists,
  otherwise: str = '',
) -> str:
  """Ends a message about a path that does not exist: ": did you mean 'a'?".

  Args:
    path: The path.
    exists: Whether a path is one that would do, as `os.path.isdir`.
    otherwise: The end if no path is similar; '': where a relative path was
      looked for.
  """
  if similar_path := find(path, exists):
    return f': did you mean {similar_path!r}?'
  is_relative = path and not os.path.isabs(path)
  return otherwise or (f' in {os.getcwd()}' if is_relative else '')
