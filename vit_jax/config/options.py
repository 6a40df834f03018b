"""The types and bounds of the options of what a config names.

An option is an argument of a class or a function, with its type, and where it
needs one an interval:

    b1: Annotated[float, Interval('[0, 1)')] = 0.9
"""

from collections.abc import Callable
from collections.abc import Collection
import contextlib
import dataclasses
import inspect
import reprlib
import types
import typing
from typing import Annotated
from typing import Any

from vit_jax.config import parts
from vit_jax.config.errors import UserError

_KEYWORDS = inspect.Parameter.VAR_KEYWORD


@dataclasses.dataclass(frozen=True)
class Interval:
  """The interval that a number is in; of a tuple, each number.

  Attributes:
    text: As '[0, 1)', '(0, inf)' or '[1, 8]'.
  """

  text: str


Share = Annotated[float, Interval('[0, 1]')]
Decay = Annotated[float, Interval('[0, 1)')]  # of a moving average
Amount = Annotated[float, Interval('[0, inf)')]


def option_values(
  make: Callable[..., Any],
  part: parts.Part,
  key: str,
  filled: Collection[str] = (),
) -> dict[str, Any]:
  """Returns the options that a text gives a class or a function, by name.

  Values without a name are those of the first options.

  Args:
    make: The class or the function.
    part: Its name with options.
    key: Key of the config that holds the text, for errors.
    filled: Names of arguments that the caller gives.
  """
  parameters = dict(inspect.signature(make).parameters)
  kinds = {x.kind for x in parameters.values()}
  accepted_parameters = {
    name: x
    for name, x in parameters.items()
    if name not in filled and x.kind not in (_KEYWORDS, x.VAR_POSITIONAL)
  }
  if _KEYWORDS not in kinds or set(part.options) & set(filled):
    parts.check_options(part, key, accepted_parameters)
  if len(part.args) > len(accepted_parameters):
    raise UserError(
      f'config.{key}={part}: it has {len(part.args)} values without a name, and'
      f' the options are {", ".join(accepted_parameters) or "none"}'
    )
  values = dict(zip(accepted_parameters, part.args, strict=False))
  for name in values.keys() & part.options.keys():
    raise UserError(
      f'config.{key}={part}: {name} is there twice, once without its name'
    )
  values |= part.options
  for name, parameter in accepted_parameters.items():
    if parameter.default is parameter.empty and name not in values:
      raise UserError(
        f'config.{key}={part}: {part.name} needs the option {name!r}'
      )
  hints: dict[str, Any] = {}
  source: Any = make
  if isinstance(make, type) and not dataclasses.is_dataclass(make):
    source = next(x for x in make.__mro__ if '__init__' in vars(x)).__init__
  # A user's class may have types that Python does not know.
  with contextlib.suppress(Exception):
    hints = typing.get_type_hints(source, include_extras=True)
  for name, value in values.items():
    if isinstance(value, parts.Part):
      raise UserError(f'config.{key}={part}: {name}={value} {parts.NO_LITERAL}')
    try:
      values[name] = converted(name, value, hints.get(name, Any))
    except ValueError as e:
      raise UserError(f'config.{key}={part}: {e}') from None
  return values


def converted(name: str, value: Any, hint: Any) -> Any:
  """Returns the value of an option, converted to its type.

  A list (from JSON) becomes a tuple, and an integer a float where only that is
  allowed. The type may have an `Interval`. A ValueError says what is wrong.
  """
  bounds = [
    x for x in getattr(hint, '__metadata__', ()) if isinstance(x, Interval)
  ]
  if typing.get_origin(hint) is Annotated:
    hint = typing.get_args(hint)[0]
  value = _cast_numbers(value, hint)
  if not _is_of_type(value, hint):
    advice = f'it must be of the type {hint}'
    if typing.get_origin(hint) is typing.Literal:
      advice = f'choose one of {", ".join(map(str, typing.get_args(hint)))}'
    elif type(hint) is type:
      advice = f'it must be of the type {hint.__name__}'
    raise ValueError(f'{name} is {reprlib.repr(value)}: {advice}')
  for interval in bounds:
    if value is not None:
      check_interval(name, value, interval.text)
  return value


def check_interval(name: str, value: Any, interval: str) -> None:
  """Raises a ValueError unless a number, or each of a tuple, is in an interval.

  `name` is that of the option; `Interval.text` has the form of the interval.
  """
  low, high = (float(x) for x in interval[1:-1].split(','))
  for x in value if isinstance(value, tuple) else (value,):
    is_inside = isinstance(x, int | float) and (
      low < x < high
      or (x == low and interval.startswith('['))
      or (x == high and interval.endswith(']'))
    )
    if not is_inside:
      subject = 'each' if isinstance(value, tuple) else 'it'
      lower, upper = interval[1:-1].split(', ')
      bounds = f'in {interval}'
      if upper == 'inf':
        bounds = f'{"at least" if interval[0] == "[" else "more than"} {lower}'
      if (lower, upper) == ('-inf', 'inf'):
        bounds = 'a finite number'
      raise ValueError(f'{name} is {value}: {subject} must be {bounds}')


def check_growing(choice: Any) -> None:
  """Raises a UserError if a tuple of a dataclass does not grow."""
  for field in dataclasses.fields(choice):
    value = getattr(choice, field.name)
    if isinstance(value, tuple) and list(value) != sorted(value):
      raise UserError(f'{field.name} is {value}: write the least number first')


def _cast_numbers(value: Any, hint: Any) -> Any:
  """Returns a tuple of a list, and a float of an integer, by the type."""
  if isinstance(value, list | tuple):
    numbers = _elements(hint, len(value))
    return tuple(map(_cast_numbers, value, numbers))
  alternatives = type_alternatives(hint)
  if type(value) is int and float in alternatives and int not in alternatives:
    with contextlib.suppress(OverflowError):  # it is out of bounds
      return float(value)
  return value


def type_alternatives(hint: Any) -> tuple[Any, ...]:
  """Returns the types of which a value may have one."""
  is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
  return typing.get_args(hint) if is_union else (hint,)


def _elements(hint: Any, count: int) -> list[Any]:
  """Returns the types of the elements of a tuple; Any where none is said."""
  for option in type_alternatives(hint):
    kinds = typing.get_args(option)
    if typing.get_origin(option) is tuple and kinds[1:] == (...,):
      return [kinds[0]] * count
    if typing.get_origin(option) is tuple and len(kinds) == count:
      return [*kinds]
  return [Any] * count


def _is_of_type(value: Any, hint: Any) -> bool:
  """Whether a value has an option's type; types of libraries are not checked.

  An int is also accepted as a float; a bool is not a number.
  """
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (types.UnionType, typing.Union):
    return any(_is_of_type(value, alternative) for alternative in arguments)
  if origin is tuple:
    if not isinstance(value, tuple):
      return False
    is_any_length = arguments[1:] == (...,)
    return (is_any_length or len(arguments) == len(value)) and all(
      map(_is_of_type, value, _elements(hint, len(value)))
    )
  if origin is typing.Literal:
    return value in arguments
  if hint in (int, float):
    allowed = (int, float) if hint is float else int
    return isinstance(value, allowed) and not isinstance(value, bool)
  if hint in (bool, str, types.NoneType):
    return isinstance(value, hint)
  return True
