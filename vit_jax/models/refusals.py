"""Errors of fields that a model has not, and of parts that do not fit."""

from collections.abc import Mapping
from collections.abc import Sequence
import difflib
from typing import Any


class UnknownFieldError(ValueError):
  """A model has no field of a name.

  Attributes:
    problem: The error without advice.
    name: The name.
    field_names: The fields that there are.
  """

  def __init__(
    self,
    module: type[Any],
    name: str,
    field_names: Sequence[str],
    hint: str = '',
  ):
    matches = difflib.get_close_matches(name, field_names, n=1, cutoff=0.7)
    hint = hint or (
      f'did you mean {matches[0]!r}?'
      if matches
      else f'it has {", ".join(field_names)}'
    )
    self.problem = f'a {module.__name__} has no field {name!r}'
    self.name, self.field_names = name, tuple(field_names)
    super().__init__(f'{self.problem}: {hint}')


def first_reason(reasons: Mapping[str, object]) -> str:
  """Returns the first reason that holds; '' if none does."""
  return next((reason for reason, holds in reasons.items() if holds), '')


def refuse(reasons: Mapping[str, object], message: str) -> None:
  """Raises a ValueError with the first reason that holds, in place of `{}`."""
  if reason := first_reason(reasons):
    raise ValueError(message.format(reason))
