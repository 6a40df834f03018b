"""Config files: `configs/x.py` defines `get_config(arg='')`."""

from collections.abc import Mapping
import copy
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
from vit_jax.config.registry import wing

# What holds configs/: the package of an installed wheel, or a checkout.
ROOTS = pathlib.Path(__file__).parents[1:3]


def load(
  path: str | pathlib.Path, overrides: Mapping[str, Any] | None = None
) -> ml_collections.ConfigDict:
  """Returns the config of a file, as `--config=FILE.py[:ARG]` does.

  Args:
    path: `FILE.py`, or `FILE.py:ARG`, where ARG is passed to its `get_config`.
      A name, as `digits`, is a file that comes with vit_jax.
    overrides: Values by dotted key, as `{'train.duration': '3 epochs'}`, with
      the types of `default()`; a list stands for a tuple.
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
  """Returns the path of a file with its ARG, also if it comes with vit_jax.

  Below the folder of those that come with vit_jax, a name is enough: `digits`
  is `configs/digits.py`. The path of no file is returned as it is.
  """
  file_path, colon, arg = path.partition(':')
  if os.path.isfile(file_path):
    return path
  name = file_path
  if re.fullmatch(r'\w+', file_path):
    name = f'{folder}{file_path}.py'
  for candidate in (name, *(str(root / name) for root in ROOTS)):
    if os.path.isfile(candidate):
      return f'{candidate}{colon}{arg}'
  return path


def call_file(path: str, flag: str, folder: str) -> Any:
  """Calls `get_<flag>()` of a Python file and returns its result.

  An error of the file names its line.

  Args:
    path: `FILE.py`, or `FILE.py:ARG`, where ARG is passed to the function.
    flag: The rest of the function's name, and the name of the flag that has the
      path.
    folder: Directory of the files that come with vit_jax, for errors.
  """
  path, *args = find(path, folder).split(':', 1)
  if not os.path.isfile(path):
    hint = f'; those that come with vit_jax are in {folder}'
    if name := wing('vit_jax.config.near_paths:config_file')(path, folder):
      hint = f': did you mean {name!r}?'
    raise UserError(f'--{flag}={path}: there is no such file{hint}')
  try:
    module = modules.run_file(path)
    if not hasattr(module, f'get_{flag}'):
      raise UserError(f'it has no get_{flag}()')
    return getattr(module, f'get_{flag}')(*args)
  except UserError as e:
    raise UserError(f'{path}: {e}') from None
  except Exception as e:  # the user's file may raise any
    lines = [
      frame.lineno
      for frame in traceback.extract_tb(e.__traceback__)
      if os.path.realpath(frame.filename) == os.path.realpath(path)
    ]
    if isinstance(e, SyntaxError):
      lines = [e.lineno]
    location = f'{path}, line {lines[-1]}' if lines else path
    problem: object = f'{type(e).__name__}: {one_line(e)}'
    if match := re.search(r'Key "(\w+)" does not exist', str(e)):
      problem = unknown_key(default(), match[1])
    raise UserError(f'{location}: {problem}') from None
