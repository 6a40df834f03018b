"""JSON of other programs, whose fields are checked when they are read."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
import reprlib
from typing import Any
from typing import NamedTuple

from absl import logging

from vit_jax.config import UserError


class Kind(NamedTuple):
  """A type of a field in a JSON file.

  Attributes:
    text: Description of the type.
    fits: Whether a value has the type.
  """

  text: str
  fits: Callable[[Any], bool]


def is_number(x: Any) -> bool:
  """Whether it is a number of a sensible config; not true, infinity or NaN."""
  return type(x) in (int, float) and -1e30 < x < 1e30


def is_positive(x: Any) -> bool:
  """Whether it is such a number above 0."""
  return is_number(x) and x > 1e-30


def is_count(x: Any) -> bool:
  """Whether it is a whole number above 0."""
  return type(x) is int and 0 < x < 2**31


def are_counts(x: Any, number: int) -> bool:
  """Whether it is a list of `number` whole numbers above 0."""
  return isinstance(x, list) and len(x) == number and all(map(is_count, x))


def _are_labels(x: Any) -> bool:
  if isinstance(x, dict):
    if not all(re.fullmatch('[0-9]{1,9}', str(number)) for number in x):
      return False
    x = [*x.values()]
  return isinstance(x, list) and all(type(name) in (str, int) for name in x)


def _is_window(x: Any) -> bool:
  is_pair = isinstance(x, list) and len(x) == 2 and all(map(is_number, x))
  return is_pair and 0 <= x[0] < x[1]


def one_of(*values: Any) -> Kind:
  """Returns the kind of a field that has one of a few values."""
  text = f'one of {", ".join(map(repr, values))}'
  # True == 1 in Python.
  return Kind(
    text, lambda x: any(type(x) is type(y) and x == y for y in values)
  )


TEXT = Kind('text', lambda x: isinstance(x, str))
TRUTH = Kind('true or false', lambda x: isinstance(x, bool))
OBJECT = Kind('an object', lambda x: isinstance(x, dict))
COUNT = Kind('a whole number above 0', is_count)
NUMBER = Kind('a finite number', is_number)
POSITIVE = Kind('a finite number above 0', is_positive)
PAIR = Kind('two whole numbers above 0', lambda x: are_counts(x, 2))
SIZE = Kind(
  'one or two whole numbers above 0', lambda x: is_count(x) or PAIR.fits(x)
)
BITS = one_of(8, 16)
WINDOW = Kind('two numbers from 0 on, the first the less', _is_window)
_LABELS = Kind('names in a list, or by the numbers of classes', _are_labels)


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
    parent, _, name = key.rpartition('.')
    fields = self.get(parent, OBJECT) if parent else self.content
    value = fields.get(name) if fields else None
    if value is None:
      return default
    if not kind.fits(value):
      raise self.error(key, value, f'it must be {kind.text}')
    return value

  def check_known(
    self, kinds: Mapping[str, Kind | None], key: str = ''
  ) -> None:
    """Checks that no field is set that this package would ignore.

    Args:
      kinds: Field -> its kind; None: any value. All other fields must be off:
        null, false, 0 or empty.
      key: Key of the object with the fields; '': the whole file.

    Raises:
      UserError: A field is unknown, or its value is not supported.
    """
    fields = self.get(key, OBJECT, {}) if key else self.content
    for name, value in fields.items():
      path = f'{key}.{name}' if key else name
      if name not in kinds:
        if value:
          raise self.error(
            path,
            value,
            'it is not known here what that changes; remove it if'
            ' it is nothing',
          )
      elif kind := kinds[name]:
        self.get(path, kind)

  def error(self, key: str, value: Any, advice: str) -> UserError:
    """Returns the error for a field with a wrong value."""
    return UserError(
      f'its {self.file} says {key} {reprlib.repr(value)}: {advice}'
    )

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
