"""Imports classes and functions of the user's: 'my_module:MyClass'.

Python must be able to import the module, for example from the directory that
the command runs in.
"""

from collections.abc import Callable
import importlib
import inspect
import os
import traceback
import types
from typing import Any
from typing import cast

from vit_jax.config import files
from vit_jax.config import near_paths
from vit_jax.config import parts
from vit_jax.config.errors import join_first
from vit_jax.config.errors import one_line
from vit_jax.config.errors import UserError


def load_class(name: str, key: str, kind: type) -> Any:
  """Imports a class; `registry.load_own` is the door."""
  module, candidate = _imported(name, key)
  if not isinstance(candidate, type) or not issubclass(candidate, kind):
    problem = 'has no' if candidate is None else 'has another'
    class_names = [
      name
      for name, x in vars(module).items()
      if isinstance(x, type) and issubclass(x, kind) and x is not kind
    ]
    has = f'; it has {join_first(class_names)}' if class_names else ''
    module_name, _, class_name = name.partition(':')
    raise UserError(
      f'config.{key}={name}: {module_name} {problem} class {class_name!r},'
      f' which must be a {kind.__module__}.{kind.__name__}{has}'
    )
  missing = sorted(getattr(candidate, '__abstractmethods__', ()))
  if missing and not _opens_others(candidate, kind):
    raise UserError(
      f'config.{key}={name}: the class has no {" and no ".join(missing)}, which'
      f' a {kind.__module__}.{kind.__name__} must define'
    )
  return candidate


def _opens_others(candidate: type, kind: type) -> bool:
  """Whether a source's own `from_config` may return another class."""
  makers = (
    inspect.getattr_static(x, 'from_config', 0) for x in (candidate, kind)
  )
  return len(set(makers)) > 1


def load_function(name: str, key: str, argument: str) -> Callable[..., Any]:
  """Imports a function; `registry.load_function` is the door."""

  def takes(function: Any) -> bool:
    try:
      return callable(function) and argument in (
        inspect.signature(function).parameters
      )
    except ValueError:  # a builtin one, without a signature
      return False

  module, candidate = _imported(name, key)
  if not takes(candidate):
    problem = 'has no' if candidate is None else 'has another'
    module_name, _, function = name.partition(':')
    function_names = [x for x, value in vars(module).items() if takes(value)]
    raise UserError(
      f'config.{key}={name}: {module_name} {problem} function {function!r},'
      f' which must take {argument}: {parts.nearest(function, function_names)}'
    )
  return cast(Callable[..., Any], candidate)


def _imported(name: str, key: str) -> tuple[types.ModuleType, Any]:
  """Returns the module of 'my_module:name', and its object, None if none."""
  module_name, _, attribute = name.partition(':')
  setting = f'config.{key}={name}'
  try:
    module = files.import_module(module_name)
  except ModuleNotFoundError as e:
    if e.name is None or not module_name.startswith(e.name):
      raise UserError(f'{setting}: {one_line(e)}') from e
    raise UserError(
      f'{setting}: Python finds no module {module_name!r}{_advice(module_name)}'
    ) from None
  except Exception as e:
    frames = [
      frame
      for frame in traceback.extract_tb(e.__traceback__)
      if frame.filename not in (__file__, files.__file__, importlib.__file__)
      and not frame.filename.startswith('<')  # the importing itself
    ]
    lines = [x.lineno for x in frames if x.filename == frames[0].filename]
    place = f' ({frames[0].filename}, line {lines[-1]})' if lines else ''
    raise UserError(
      f'{setting}: importing {module_name} failed:'
      f' {type(e).__name__}: {one_line(e)}{place}'
    ) from e
  named_object: Any = module
  for part in attribute.split('.'):
    named_object = getattr(named_object, part, None)
  return module, named_object


def _advice(module: str) -> str:
  path = f'{module.replace(".", "/")}.py'
  if os.path.isfile(path):  # other programs do not look where they run
    return f': {path} is here: set PYTHONPATH to this directory, {os.getcwd()}'
  if similar_path := near_paths.find(path, os.path.isfile):
    return (
      f': did you mean {similar_path.removesuffix(".py").replace("/", ".")!r}?'
    )
  return (
    ': run the command in the directory that it is in, or set PYTHONPATH to'
    ' that'
  )
