"""Objects some of whose methods an extension overrides, as one that checks."""

import copy
from typing import TypeVar

_T = TypeVar('_T')


def extended(instance: _T, extension: type) -> _T:
  """Returns a copy of an object, of a class that is extended.

  Args:
    instance: The object; is not changed.
    extension: A class with the base of the object's. Its methods call those of
      the object by `super()`.
  """
  cls, result = type(instance), copy.copy(instance)
  names = ('__doc__', '__module__', '__qualname__')
  members = {name: getattr(cls, name) for name in names}
  result.__class__ = type(cls.__name__, (extension, cls), members)
  return result
