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
import pkgutil
import re
from typing import Any

from vit_jax.config import options
from vit_jax.config import parts
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


# 'module:Class' by name, for `wing`; or what returns the class or function of a
# name, and takes the key of the config that holds it, for errors.
Choices = Mapping[str, str] | Callable[[str, str], Callable[..., Any]]


def build(text: str, key: str, choices: Choices, **filled: Any) -> Any:
  """Builds what a text of the config names with its options.

  Args:
    text: As 'adamw(b2=0.95)'; `vit_jax/config/parts.py` has the language.
    key: Key of the config that holds it, for errors.
    choices: What it may name.
    **filled: Arguments that are no options.
  """
  names = choices if isinstance(choices, Mapping) else None
  return _built(parts.parse(text, key, names), key, choices, filled)


def build_or_find(
  text: str,
  key: str,
  choices: Mapping[str, str],
  find_own: Callable[[], Any],
  example: str,
) -> Any:
  """Builds what a table has; `find_own()` returns what 'my_module:name' is.

  Errors have an example of the user's own. See `build`.
  """
  part = parts.parse(text, key)
  if ':' in part.name:
    return find_own()
  return _built(part, key, choices, {}, example)


def build_sum(text: str, key: str, kind: type) -> list[Any]:
  """Builds the classes of the user's that a sum names, as 'm:A(1) + m:B'.

  They must inherit from `kind`. See `build`.
  """
  find = class_finder(kind, {})
  return [_built(part, key, find, {}) for part in parts.parse_sum(text, key)]


def class_finder(kind: type, choices: Mapping[str, str]) -> Choices:
  """Returns what finds a class of a table, or 'my_module:MyClass' of `kind`."""

  def find(name: str, key: str) -> Any:
    if ':' in name:
      return load_own(name, key, kind)
    return _find(name, key, choices, f'my_module:My{kind.__name__}')

  return find


def _built(
  part: parts.Part,
  key: str,
  choices: Choices,
  filled: Mapping[str, Any],
  example: str = '',
) -> Any:
  make = _find(part.name, key, choices, example)
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


def _find(name: str, key: str, choices: Choices, example: str) -> Any:
  """Returns what a name stands for; `example` is one of the user's, or ''."""
  if not isinstance(choices, Mapping):
    return choices(name, key)
  if name in choices:
    return wing(choices[name])
  hint = f', or one of your own, as {example!r}' if example else ''
  raise UserError(
    f'config.{key} is {name!r}: {parts.nearest(name, choices)}{hint}'
  )


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
  """Imports a class of the user's, 'my_module:MyClass', a subclass of `kind`.

  `key` is the key of the config that holds the name, for errors.
  """
  return wing('vit_jax.config.own:load_class')(name, key, kind)


def load_function(name: str, key: str, argument: str) -> Callable[..., Any]:
  """Imports a function of the user's, or of a library, as `load_own`.

  It must take an argument of that name.
  """
  load: Callable[..., Callable[..., Any]]
  load = wing('vit_jax.config.own:load_function')
  return load(name, key, argument)


def extend(instance: object, extension: type) -> None:
  """Lets an extension override methods of one object.

  Args:
    instance: The object; its class becomes one that inherits from both.
    extension: A class with the base of the object's. Its methods call the
      object's by `super()`.
  """
  cls = type(instance)
  names = ('__doc__', '__module__', '__qualname__')
  members = {name: getattr(cls, name) for name in names}
  extended = type(cls.__name__, (extension, cls), members)
  object.__setattr__(instance, '__class__', extended)  # frozen ones, too
