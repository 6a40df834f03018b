"""Classes of a user's own, named as 'my_module:MyClass' in a config."""

import functools
import importlib
import re
from typing import Any

from vit_jax.config.errors import one_line
from vit_jax.config.errors import UserError

# A class follows the colon: no version of a dataset, as in 'mnist:3.0.1'.
_NAME = re.compile(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*')


def is_own(name: str) -> bool:
  """Whether a name is that of a class in a user's module."""
  return _NAME.fullmatch(name) is not None


@functools.cache
def load_own(name: str, key: str, kind: type) -> Any:
  """Imports a class of the user's.

  Args:
    name: 'my_module:MyClass'; the module is one that Python can import, as from
      the directory that the command runs in.
    key: Key of the config that holds the name, for errors.
    kind: Class that it must inherit from.

  Raises:
    UserError: There is no such module or class, its import fails, or it is of
      another kind.
  """
  module_name, _, class_name = name.partition(':')
  where = f'config.{key}={name}'
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as e:
    if e.name is None or not module_name.startswith(e.name):
      raise UserError(f'{where}: {one_line(e)}') from e
    raise UserError(
      f'{where}: Python finds no module {module_name!r}: run the command in the'
      ' directory that it is in, or set PYTHONPATH to that'
    ) from None
  except Exception as e:
    raise UserError(
      f'{where}: importing {module_name} failed:'
      f' {type(e).__name__}: {one_line(e)}'
    ) from e
  found = getattr(module, class_name, None)
  if not isinstance(found, type) or not issubclass(found, kind):
    problem = 'has no' if found is None else 'has another'
    raise UserError(
      f'{where}: {module_name} {problem} class {class_name!r}, which must be a'
      f' {kind.__module__}.{kind.__name__}'
    )
  return found
