"""The image files that a command line names."""

from collections.abc import Sequence
import glob
import os
import sys

from vit_jax.config import UserError


def find(arguments: Sequence[str]) -> list[str]:
  """Returns the paths of images named on the command line.

  Args:
    arguments: Files, folders and patterns; '-' reads more of them from stdin.

  Raises:
    UserError: There are no images.
  """
  paths: list[str] = []
  empty: list[str] = []
  for argument in arguments:
    listed = _listed_on_stdin() if argument == '-' else [argument]
    for name in listed:
      found = _expand(name)
      paths.extend(found)
      if not found:
        empty.append(name)
  problems = [_problem(name) for name in empty]
  if not paths:
    where = f' ({"; ".join(problems)})' if problems else ''
    raise UserError(
      f'there are no images{where}: name files, folders or patterns, or - for'
      ' a list on standard input'
    )
  for problem in problems:
    print(problem, file=sys.stderr)
  return paths


def _problem(name: str) -> str:
  """Returns why there are no images in a folder or for a pattern."""
  if os.path.isdir(name):
    return f'{name} has no images'
  return f'no file matches the pattern {name}'


def _listed_on_stdin() -> list[str]:
  text = os.fsdecode(sys.stdin.buffer.read())
  if '\0' in text:  # from find -print0
    return [name for name in text.split('\0') if name]
  names = [line.removesuffix('\r') for line in text.split('\n')]
  return [name for name in names if name]


def _expand(name: str) -> list[str]:
  """Returns images in a folder, images that match a pattern, or the file."""
  from vit_jax.data import folder  # after the flags: slow to import

  if os.path.isdir(name):
    return folder.images_below(name)
  if os.path.lexists(name) or not glob.has_magic(name):
    return [name]
  found = sorted(glob.glob(name, recursive=True))
  if '**' in name:  # also matches the files in the folders
    return [path for path in found if not os.path.isdir(path)]
  return [image for path in found for image in _matched(path)]


def _matched(path: str) -> list[str]:
  return _expand(path) if os.path.isdir(path) else [path]
