"""Reads JSON files of other programs and checks the type of each field."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
import reprlib
from typing import Any

from absl import logging

from vit_jax.config import UserError


@dataclasses.dataclass(frozen=True)
class Kind:
  """A type of a field in a JSON file.

  Attributes:
    text: Description of the type.
    fits: Whether a value has the type.
  """

  text: str
  fits: Callable[[Any], bool]


def is_number(value: Any) -> bool:
  """Whether it is a finite number of a sensible size, and not a bool."""
  is_any = isinstance(value, int | float) and not isinstance(value, bool)
  return is_any and abs(value) < 1e30


def is_positive(value: Any) -> bool:
  """Whether it is a finite number above 0."""
  return is_number(value) and value > 1e-30


def is_count(value: Any) -> bool:
  """Whether it is a whole number above 0."""
  return isinstance(value, int) and is_positive(value) and value < 2**31


def are_counts(value: Any, number: int) -> bool:
  """Whether it is a list of `number` whole numbers above 0."""
  is_list = isinstance(value, list) and len(value) == number
  return is_list and all(map(is_count, value))


def _are_labels(value: Any) -> bool:
  if isinstance(value, Mapping):
    if not all(re.fullmatch('[0-9]{1,9}', key) for key in value):
      return False
    value = [*value.values()]
  return isinstance(value, list) and all(
    isinstance(x, str) or (isinstance(x, int) and not isinstance(x, bool))
    for x in value
  )


TEXT = Kind('text', lambda x: isinstance(x, str))
TRUTH = Kind('true or false', lambda x: isinstance(x, bool))
OBJECT = Kind('an object', lambda x: isinstance(x, Mapping))
COUNT = Kind('a whole number above 0', is_count)
POSITIVE = Kind('a finite number above 0', is_positive)
PAIR = Kind('two whole numbers above 0', lambda x: are_counts(x, 2))
SIZE = Kind(
  'one or two whole numbers above 0',
  lambda x: is_count(x) or are_counts(x, 2),
)
BITS = Kind('8 or 16', lambda x: is_count(x) and x in (8, 16))
WINDOW = Kind(
  'two numbers from 0 on, the first the less',
  lambda x: (
    isinstance(x, list)
    and len(x) == 2
    and all(map(is_number, x))
    and 0 <= x[0] < x[1]
  ),
)
_LABELS = Kind('names in a list, or by the numbers of classes', _are_labels)


def one_of(*values: Any) -> Kind:
  """Returns the kind of a field that has one of a few values."""
  text = f'one of {", ".join(repr(x) for x in values)}'
  # Compare types as well, since 1 == True.
  return Kind(
    text, lambda x: any(type(x) is type(y) and x == y for y in values)
  )


@dataclasses.dataclass(frozen=True)
class Json:
  """A JSON object of another program, whose content is not trusted.

  Attributes:
    file: Name of the file.
    content: The object in the file.
  """

  file: str
  content: Mapping[str, Any]

  def get(self, key: str, kind: Kind, default: Any = None) -> Any:
    """Returns a field ('a.b' for one of a nested object), or the default.

    A field that is null counts as absent.

    Raises:
      UserError: The field is not of the kind.
    """
    value: Any = self.content
    *parents, _ = names = key.split('.')
    for i, name in enumerate(names):
      value = value.get(name)
      if value is None:
        return default
      wanted = kind if i == len(parents) else OBJECT
      if not wanted.fits(value):
        where = '.'.join(names[: i + 1])
        raise self.error(where, value, f'it must be {wanted.text}')
    return value

  def check_known(
    self, known: Mapping[str, Kind | None], key: str = ''
  ) -> None:
    """Checks that no field is set that this package would ignore.

    Args:
      known: Field -> its kind; None: any value. All other fields must be off:
        null, false, 0 or empty.
      key: Key of the object with the fields; '': the whole file.

    Raises:
      UserError: A field is unknown, or its value is not supported.
    """
    fields = self.get(key, OBJECT, {}) if key else self.content
    for name, value in fields.items():
      path = f'{key}.{name}' if key else name
      if name not in known:
        if value:
          raise self.error(
            path,
            value,
            'it is not known here what that changes; remove it if'
            ' it is nothing',
          )
      elif kind := known[name]:
        self.get(path, kind)

  def error(self, key: str, value: Any, wanted: str) -> UserError:
    """Returns the error for a field with a wrong value."""
    shown = reprlib.repr(value)
    return UserError(f'its {self.file} says {key} {shown}: {wanted}')

  def channel_values(
    self,
    key: str,
    channels: int,
    default: Sequence[float],
    is_wanted: Callable[[Any], bool] = is_number,
  ) -> tuple[float, ...]:
    """Returns one number for all channels, or one for each.

    Raises:
      UserError: It is something else.
    """

    def fits(value: Any) -> bool:
      values = value if isinstance(value, list) else [value]
      return len(values) in (1, channels) and all(map(is_wanted, values))

    above = ' above 0' if is_wanted is is_positive else ''
    text = f'one finite number{above}, or one for each of {channels} channels'
    value = self.get(key, Kind(text, fits), default)
    return tuple(value) if isinstance(value, list | tuple) else (value,)

  def labels(self, key: str, classes: int) -> tuple[str, ...]:
    """Returns the names of classes; () if their number is not the head's.

    Args:
      key: Key of a list, or of an object: number of the class -> name.
      classes: Number of classes of the head.

    Raises:
      UserError: The value is neither.
    """
    names = self.get(key, _LABELS, [])
    if not isinstance(names, Mapping):
      names = dict(enumerate(names))
    numbered = sorted((int(number), str(names[number])) for number in names)
    if [number for number, _ in numbered] == [*range(classes)]:
      return tuple(name for _, name in numbered)
    if numbered and classes:
      logging.warning(
        '%s of %s names %d classes, the head has %d: the names are left out',
        key,
        self.file,
        len(numbered),
        classes,
      )
    return ()
