"""Finds what a config names: modules, classes and functions.

A package has one file for each class; a user's class is named as
'my_module:MyClass'. Classes need no registration.

What trains a plain classifier imports nothing else. It names everything else
in tables of texts, as {'tar': 'vit_jax.data.tar:TarSource'}, which `wing`
imports when a config asks for it.
"""

from collections.abc import Callable
from collections.abc import Mapping
import importlib
import inspect
import os
import pkgutil
import re
import traceback
import types
from typing import Any
from typing import cast

from vit_jax.config import modules
from vit_jax.config import near_paths
from vit_jax.config import options
from vit_jax.config import parts
from vit_jax.config.errors import join_first
from vit_jax.config.errors import one_line
from vit_jax.config.errors import UserError

# The part after the colon must be a class, not the version of a dataset as in
# 'mnist:3.0.1'.
_NAME = re.compile(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*')


def wing(name: str) -> Any:
  """Imports a module of ours, or what it defines, when a config asks for it.

  Args:
    name: 'vit_jax.data.tar', or 'vit_jax.data.tar:TarSource'.
  """
  module, _, attribute = name.partition(':')
  imported = importlib.import_module(module)
  return getattr(imported, attribute) if attribute else imported


# Returns the class or the function of a name; also takes the key of the config
# that holds it, for errors.
Finder = Callable[[str, str], Callable[..., Any]]


def build(text: str, key: str, find: Finder, **filled: Any) -> Any:
  """Builds what a text of the config names with its options.

  Args:
    text: As 'adamw(b2=0.95)'; `vit_jax/config/parts.py` has the language.
    key: Key of the config that holds it, for errors.
    find: As `table_finder` makes one.
    **filled: Arguments that are no options.

  Raises:
    UserError: There is no such thing or option, an option is missing, has
      another type or is out of bounds, or the thing raises an exception.
  """
  return _built(parts.parse(text, key), key, find, filled)


def build_or_find(
  text: str,
  key: str,
  choices: Mapping[str, str],
  find_own: Callable[[], Any],
  example: str,
) -> Any:
  """Builds what a table has; `find_own()` returns what 'my_module:name' is.

  Other arguments and errors are those of `build` and `table_finder`.
  """
  if ':' in parts.parse(text, key).name:
    return find_own()
  return build(text, key, table_finder(choices, example=example))


def build_sum(text: str, key: str, find: Finder) -> list[Any]:
  """Builds what the terms of a sum name, as 'a(1) + b'; see `build`."""
  return [_built(part, key, find, {}) for part in parts.parse_sum(text, key)]


def _built(
  part: parts.Part, key: str, find: Finder, filled: Mapping[str, Any]
) -> Any:
  make = find(part.name, key)
  values = options.option_values(make, part, key, filled)
  try:
    return make(**filled, **values)
  except UserError as e:
    if str(e).startswith(f'config.{key}'):
      raise
    raise UserError(f'config.{key}={part}: {e}') from None
  except ValueError as e:
    raise UserError(f'config.{key}={part}: {one_line(e)}') from None
  except Exception as e:  # a class of the user's may raise any
    raise UserError(
      f'config.{key}={part}: {type(e).__name__}: {one_line(e)}'
    ) from e


def table_finder(
  choices: Mapping[str, str],
  find_own: Finder | None = None,
  example: str = '',
) -> Finder:
  """Returns what finds a thing in a table, or one of the user's.

  Args:
    choices: 'module:Class' by name, for `wing`.
    find_own: Finds 'my_module:MyClass'; None: a caller does.
    example: One of the user's, for errors; '': the user has none.
  """

  def find(name: str, key: str) -> Callable[..., Any]:
    if find_own and ':' in name:
      return find_own(name, key)
    if name not in choices:
      hint = f', or one of your own, as {example!r}' if example else ''
      raise UserError(
        f'config.{key} is {name!r}: {parts.nearest(name, choices)}{hint}'
      )
    make: Callable[..., Any] = wing(choices[name])
    return make

  return find


def own_class(kind: type) -> Finder:
  """Returns what finds classes of the user's, as `load_own`."""
  return lambda name, key: load_own(name, key, kind)


def is_own(name: str) -> bool:
  """Whether a name is a class in a user's module."""
  return _NAME.fullmatch(name) is not None


def find_class(name: str, key: str, kind: type, package: str) -> Any:
  """Imports the class that a key of the config names.

  Args:
    name: A module of the package that defines such a class, or
      'my_module:MyClass'.
    key: Key of the config that holds the name, for errors.
    kind: Class that it must inherit from.
    package: Full name of the package.

  Raises:
    UserError: There is no such class, or its import fails.
  """
  if is_own(name):
    return load_own(name, key, kind)
  path = importlib.import_module(package).__path__
  modules = [module.name for module in pkgutil.iter_modules(path)]
  part_class = _class_in(f'{package}.{name}', kind) if name in modules else None
  if part_class is None:
    class_modules = [x for x in modules if _class_in(f'{package}.{x}', kind)]
    raise UserError(
      f'config.{key} is {name!r}: choose one of {", ".join(class_modules)}, or'
      f" a class of your own, as 'my_module:My{kind.__name__}'"
    )
  return part_class


def _class_in(module: str, kind: type) -> type | None:
  """Returns a module's own subclass of `kind`; None: it defines none."""
  for member in vars(importlib.import_module(module)).values():
    is_kind = isinstance(member, type) and issubclass(member, kind)
    if (
      is_kind and member.__module__ == module and not inspect.isabstract(member)
    ):
      return member
  return None


def load_own(name: str, key: str, kind: type) -> Any:
  """Imports a class of the user's.

  Args:
    name: 'my_module:MyClass'. Python must be able to import the module, for
      example from the directory that the command runs in.
    key: Key of the config that holds the name, for errors.
    kind: Class that it must inherit from.

  Raises:
    UserError: There is no such module or class, its import fails, or it is of
      another kind.
  """
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
  return candidate


def load_function(name: str, key: str, argument: str) -> Callable[..., Any]:
  """Imports a function of the user's, or of a library.

  Args:
    name: 'my_module:my_function', as for `load_own`.
    key: Key of the config that holds the name, for errors.
    argument: Name of an argument that it must take.

  Raises:
    UserError: There is no such module or function, its import fails, or it does
      not take the argument.
  """
  module, candidate = _imported(name, key)
  if not _takes(candidate, argument):
    problem = 'has no' if candidate is None else 'has another'
    module_name, _, function = name.partition(':')
    function_names = [
      x for x, value in vars(module).items() if _takes(value, argument)
    ]
    raise UserError(
      f'config.{key}={name}: {module_name} {problem} function {function!r},'
      f' which must take {argument}: {parts.nearest(function, function_names)}'
    )
  return cast(Callable[..., Any], candidate)


def _takes(function: Any, argument: str) -> bool:
  """Whether something is a function that takes an argument of that name."""
  try:
    return callable(function) and argument in (
      inspect.signature(function).parameters
    )
  except ValueError:  # a builtin one, without a signature
    return False


def _imported(name: str, key: str) -> tuple[types.ModuleType, Any]:
  """Returns the module of 'my_module:name', and its object, None if none.

  Raises:
    UserError: There is no such module, or its import fails.
  """
  module_name, _, attribute = name.partition(':')
  setting = f'config.{key}={name}'
  try:
    module = modules.import_module(module_name)
  except ModuleNotFoundError as e:
    if e.name is None or not module_name.startswith(e.name):
      raise UserError(f'{setting}: {one_line(e)}') from e
    raise UserError(
      f'{setting}: Python finds no module {module_name!r}{_advice(module_name)}'
    ) from None
  except Exception as e:
    raise UserError(
      f'{setting}: importing {module_name} failed:'
      f' {type(e).__name__}: {one_line(e)}{_failed_line(e)}'
    ) from e
  named_object: Any = module
  for part in attribute.split('.'):
    named_object = getattr(named_object, part, None)
  return module, named_object


def _advice(module: str) -> str:
  """Returns what to do about a module that Python does not find."""
  path = f'{module.replace(".", "/")}.py'
  if os.path.isfile(path):  # a console script does not look where it runs
    return f': {path} is here: set PYTHONPATH to this directory, {os.getcwd()}'
  if similar_path := near_paths.find(path, os.path.isfile):
    return (
      f': did you mean {similar_path.removesuffix(".py").replace("/", ".")!r}?'
    )
  return (
    ': run the command in the directory that it is in, or set PYTHONPATH to'
    ' that'
  )


def _failed_line(error: Exception) -> str:
  """Returns the line of the module whose import failed; '' if not known."""
  frames = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if frame.filename not in (__file__, modules.__file__, importlib.__file__)
    and not frame.filename.startswith('<')  # the importing itself
  ]
  lines = [x.lineno for x in frames if x.filename == frames[0].filename]
  return f' ({frames[0].filename}, line {lines[-1]})' if lines else ''
