"""Python files of the user: configs, and modules with classes that they name.

`configs/x.py` defines `get_config(arg='')`. It may also hold the class that it
names: `load` and `registry.load_own` then give the same module, whichever comes
first, since each file runs once.
"""

from collections.abc import Mapping
import copy
import dataclasses
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import sys
import traceback
import types
from typing import Any

import ml_collections

from vit_jax.config.defaults import default
from vit_jax.config.errors import one_line
from vit_jax.config.errors import UserError
from vit_jax.config.keys import set_value
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
    module = run_file(path)
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
    explain = wing('vit_jax.config.synonyms:explain')
    problem = explain(default(), e) or f'{type(e).__name__}: {one_line(e)}'
    raise UserError(f'{location}: {problem}') from None


@dataclasses.dataclass(frozen=True)
class _Run:
  """A file that was run."""

  module: types.ModuleType
  texts: dict[str, bytes]  # of it and of the files that it ran, by path


_RUNS: dict[str, _Run] = {}  # by path, without symbolic links
_RUNNING: list[dict[str, bytes]] = []  # texts of the files that run now


def run_file(path: str, name: str = '') -> types.ModuleType:
  """Returns the module of a Python file, which runs once while it is the same.

  It is in `sys.modules` under each name that Python would import it by. The
  text is read, never the bytecode: that may be of what the file was before, if
  it had the same size and was written in the same second. `name` is one more
  name for it. What the file raises comes out as it is.
  """
  file = os.path.realpath(path)
  run = _RUNS.get(file)
  if run is None or any(_text(x) != text for x, text in run.texts.items()):
    run = _RUNS[file] = _run(os.path.abspath(path), file, name)
  else:
    _register(run.module, [run.module.__name__, name])
  for texts in _RUNNING:
    texts.update(run.texts)
  return run.module


def import_module(name: str) -> types.ModuleType:
  """Imports a module by its name; a file that was run is not run again."""
  if name in sys.modules:
    return sys.modules[name]
  spec = importlib.util.find_spec(name)
  is_package = spec is None or spec.submodule_search_locations is not None
  loader = type(None if spec is None else spec.loader)
  if is_package or loader is not importlib.machinery.SourceFileLoader:
    return importlib.import_module(name)
  assert spec is not None and spec.origin is not None
  module = run_file(spec.origin, name)
  parent, _, child = name.rpartition('.')
  if parent:
    setattr(sys.modules[parent], child, module)
  return module


def _text(path: str) -> bytes | None:
  try:
    return pathlib.Path(path).read_bytes()
  except OSError:
    return None


def _run(path: str, file: str, name: str) -> _Run:
  """Runs a file; `file` is its absolute path without symbolic links."""
  text = pathlib.Path(path).read_bytes()
  importlib.invalidate_caches()  # the file may be new
  names = [x for x in (name, *_names(path), *_names(file)) if _is_free(x)]
  names = sorted(dict.fromkeys(names), key=len)
  if not names:
    digest = hashlib.sha256(os.fsencode(file)).hexdigest()[:8]
    stem = re.sub(r'\W', '_', pathlib.Path(path).stem)
    names = [f'_{stem}_{digest}']
  spec = importlib.util.spec_from_file_location(names[0], path)
  if spec is None:
    raise UserError('it must be a Python file')
  module = importlib.util.module_from_spec(spec)
  before = {x: sys.modules.get(x) for x in names}
  _register(module, names)
  texts = {file: text}
  _RUNNING.append(texts)
  try:
    exec(compile(text, path, 'exec'), vars(module))
  except BaseException:
    for key, old in before.items():
      if old is None:
        sys.modules.pop(key, None)
      else:
        sys.modules[key] = old
    raise
  finally:
    _RUNNING.pop()
  return _Run(module, texts)


def _register(module: types.ModuleType, names: list[str]) -> None:
  """Lets Python find a module by its names, as far as these are free."""
  sys.modules.update({x: module for x in names if _is_free(x)})


def _is_free(name: str) -> bool:
  """Whether a name is no module's, or that of a file that was run here."""
  module = sys.modules.get(name)
  return bool(name) and (
    module is None or any(module is run.module for run in _RUNS.values())
  )


def _names(path: str) -> list[str]:
  """Returns the names by which Python imports a file, as `configs.digits`."""
  names = []
  for folder in sys.path:
    relative = os.path.relpath(path, os.path.realpath(folder or os.curdir))
    *parents, stem = pathlib.Path(relative).with_suffix('').parts
    if not all(x.isidentifier() for x in (*parents, stem)):
      continue
    spec = importlib.machinery.PathFinder.find_spec((*parents, stem)[0])
    if spec is None:
      continue
    if parents:
      places = list(spec.submodule_search_locations or ())
      top = pathlib.Path(path).parents[len(parents) - 1]
      is_ours = any(os.path.realpath(x) == str(top) for x in places)
    else:
      is_ours = os.path.realpath(spec.origin or '') == path
    if is_ours:
      names.append('.'.join((*parents, stem)))
  return names
