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

  Values without a name are for the first options.

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
    inits = (vars(x).get('__init__') for x in make.__mro__)
    source = next(filter(None, inits))
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
  bounds: list[Any] = []
  if typing.get_origin(hint) is Annotated:
    hint, *bounds = typing.get_args(hint)
  try:
    value = _cast(value, hint)
  except TypeError:
    advice = f'it must be of the type {hint}'
    if typing.get_origin(hint) is typing.Literal:
      advice = f'choose one of {", ".join(map(str, typing.get_args(hint)))}'
    elif type(hint) is type:
      advice = f'it must be of the type {hint.__name__}'
    raise ValueError(f'{name} is {reprlib.repr(value)}: {advice}') from None
  for interval in bounds:
    if isinstance(interval, Interval) and value is not None:
      check_interval(name, value, interval.text)
  return value


def _cast(value: Any, hint: Any) -> Any:
  """Returns a value as a type has it; a TypeError: it has another one.

  Types of libraries are not checked. A bool is not a number.
  """
  origin, kinds = typing.get_origin(hint), typing.get_args(hint)
  if len(type_alternatives(hint)) > 1:
    # First the type that needs no change.
    for kind in sorted(kinds, key=lambda kind: kind is not type(value)):
      with contextlib.suppress(TypeError):
        return _cast(value, kind)
    raise TypeError
  if isinstance(value, list | tuple):
    if origin is not tuple or kinds[1:] == (...,):
      kinds = (kinds[0] if origin is tuple else Any,) * len(value)
    if len(kinds) != len(value):
      raise TypeError
    value = tuple(map(_cast, value, kinds))
  elif hint is float and type(value) is int:
    with contextlib.suppress(OverflowError):  # it is out of bounds
      return float(value)
    return value
  if origin is typing.Literal:
    has_type = value in kinds
  elif hint in (int, float):
    has_type = isinstance(value, hint) and not isinstance(value, bool)
  elif hint in (bool, str, types.NoneType):
    has_type = isinstance(value, hint)
  else:
    has_type = origin is not tuple or isinstance(value, tuple)
  if not has_type:
    raise TypeError
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


def type_alternatives(hint: Any) -> tuple[Any, ...]:
  """Returns the types of which a value may have one."""
  is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
  return typing.get_args(hint) if is_union else (hint,)
