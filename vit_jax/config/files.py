"""Config files: `configs/x.py` defines `get_config(arg='')`."""

from collections.abc import Mapping
import copy
import functools
import os
import pathlib
import re
import traceback
from typing import Any

import ml_collections

from vit_jax.config import modules
from vit_jax.config.defaults import default
from vit_jax.config.errors import one_line
from vit_jax.config.errors import UserError
from vit_jax.config.keys import set_value
from vit_jax.config.keys import unknown_key
from vit_jax.config.near_paths import find as find_near

# What holds configs/: the package of an installed wheel, or a checkout.
_ROOTS = pathlib.Path(__file__).parents[1:3]


def load(
  path: str | pathlib.Path, overrides: Mapping[str, Any] | None = None
) -> ml_collections.ConfigDict:
  """Returns the config of a file, as `--config=FILE.py[:ARG]` does.

  Args:
    path: `FILE.py`, or `FILE.py:ARG`, where ARG is passed to its `get_config`.
      A name, as `digits`, is a file that comes with vit_jax.
    overrides: Values by dotted key, as `{'train.duration': '3 epochs'}`, with
      the types of `default()`; a list stands for a tuple.

  Raises:
    UserError: There is no such file or key, a value has another type, or the
      file raises an exception; the error names the line.
  """
  config = call_file(str(path), 'config', 'configs/')
  if not isinstance(config, ml_collections.ConfigDict):
    file = str(path).split(':', 1)[0]
    raise UserError(f'{file}: get_config() must return a ConfigDict')
  config = copy.deepcopy(config)  # the file may keep and return it once more
  for key, value in (overrides or {}).items():
    set_value(config, key, value)
  return config


def file_name(path: str) -> str:
  """Returns the name of a config: 'digits' for 'configs/digits.py:ARG'."""
  return os.path.splitext(os.path.basename(path.split(':', 1)[0]))[0]


def find(path: str, folder: str = 'configs/') -> str:
  """Returns the path of a file, also if it comes with vit_jax.

  Args:
    path: `FILE.py` or `FILE.py:ARG`; below the folder of those that come with
      vit_jax, a name is enough: `digits` is `configs/digits.py`.
    folder: That folder.

  Returns:
    The path with its ARG; as it was given if there is no such file.
  """
  file_path, colon, arg = path.partition(':')
  name = (
    f'{folder}{file_path}.py' if re.fullmatch(r'\w+', file_path) else file_path
  )
  if os.path.isfile(file_path):
    return path
  for candidate in (name, *(str(root / name) for root in _ROOTS)):
    if os.path.isfile(candidate):
      return f'{candidate}{colon}{arg}'
  return path


def call_file(path: str, flag: str, folder: str) -> Any:
  """Calls `get_<flag>()` of a Python file and returns its result.

  Args:
    path: `FILE.py`, or `FILE.py:ARG`, where ARG is passed to the function.
    flag: The rest of the function's name, and the name of the flag that has the
      path.
    folder: Directory of the files that come with vit_jax, for errors.

  Raises:
    UserError: There is no such file, or it raises an exception; the error names
      the line.
  """
  path, *args = find(path, folder).split(':', 1)
  if not os.path.isfile(path):
    suggestion = _similar_file(path, folder)
    hint = f'; those that come with vit_jax are in {folder}'
    if suggestion:
      hint = f': did you mean {suggestion!r}?'
    raise UserError(f'--{flag}={path}: there is no such file{hint}')
  try:
    module = modules.run_file(path)
    if not hasattr(module, f'get_{flag}'):
      raise UserError(f'it has no get_{flag}()')
    return getattr(module, f'get_{flag}')(*args)
  except UserError as e:
    raise UserError(f'{path}: {e}') from None
  except Exception as e:  # the user's file may raise any
    raise UserError(_located_message(path, e)) from None


def _similar_file(path: str, folder: str) -> str:
  """Returns the name of a similar file, as `find` takes it; '' without one."""
  is_name = re.fullmatch(r'\w+', path)
  name = f'{folder}{path}.py' if is_name else path
  roots = [] if os.path.isabs(name) else [f'{root}/' for root in _ROOTS]
  for root in ('', *roots):
    # `find` takes names, and paths of vit_jax, of the folder's files alone.
    within = root + folder if root or is_name else ''
    is_file = functools.partial(_is_file_in, within)
    if similar_path := find_near(root + name, is_file):
      return (
        file_name(similar_path) if is_name else similar_path.removeprefix(root)
      )
  return ''


def _is_file_in(folder: str, path: str) -> bool:
  return os.path.normpath(path).startswith(folder) and os.path.isfile(path)


def _located_message(path: str, error: Exception) -> str:
  """Returns an error's message with the line of the file that raised it."""
  lines = [
    frame.lineno
    for frame in traceback.extract_tb(error.__traceback__)
    if os.path.realpath(frame.filename) == os.path.realpath(path)
  ]
  if isinstance(error, SyntaxError):
    lines = [error.lineno]
  location = f'{path}, line {lines[-1]}' if lines else path
  if match := re.search(r'Key "(\w+)" does not exist', str(error)):
    return f'{location}: {unknown_key(default(), match[1])}'
  return f'{location}: {type(error).__name__}: {one_line(error)}'
