"""JSON of other programs, whose fields pydantic checks.

It is imported when the first field is read, since most runs read none.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import re
import reprlib
from typing import Annotated
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

from absl import logging
from annotated_types import Interval
from annotated_types import Len
from annotated_types import Predicate

from vit_jax.config import UserError

if TYPE_CHECKING:
  import pydantic

# No number of a sensible config is beyond these.
_Number = Annotated[float, Interval(gt=-1e30, lt=1e30)]
_Positive = Annotated[float, Interval(gt=1e-30, lt=1e30)]
_Count = Annotated[int, Interval(gt=0, lt=2**31)]
_Pair = Annotated[list[_Count], Len(2, 2)]
_Table = Annotated[
  list[Annotated[list[_Number], Len(1)]],
  Len(1),
  Predicate(lambda rows: len({*map(len, rows)}) == 1),
]
_Digits = Annotated[str, Predicate(re.compile('[0-9]{1,9}').fullmatch)]


class Kind(NamedTuple):
  """A type of a field in a JSON file, and whether a value has it."""

  text: str  # description of the type
  fits: Callable[[Any], bool]


def _checked(schema: Any) -> Callable[[Any], bool]:
  """Returns a function that says whether a value has the type of a schema."""

  @functools.cache
  def validator() -> 'pydantic.TypeAdapter[Any]':
    import pydantic

    return pydantic.TypeAdapter(schema, config=pydantic.ConfigDict(strict=True))

  def fits(value: Any) -> bool:
    try:
      validator().validate_python(value)
    except ValueError:
      return False
    return True

  return fits


# A bool is no number, and neither are infinity and NaN.
is_number = _checked(_Number)
is_positive = _checked(_Positive)
is_count = _checked(_Count)


def choice(*values: Any) -> Kind:
  """Returns the kind of a field that has one of a few values."""
  text = f'one of {", ".join(repr(x) for x in values)}'
  # pydantic takes true for 1.
  return Kind(
    text, lambda x: any(type(x) is type(y) and x == y for y in values)
  )


TEXT = Kind('text', _checked(str))
TRUTH = Kind('true or false', _checked(bool))
OBJECT = Kind('an object', _checked(dict))
COUNT = Kind('a whole number above 0', is_count)
NUMBER = Kind('a finite number', is_number)
POSITIVE = Kind('a finite number above 0', is_positive)
PAIR = Kind('two whole numbers above 0', _checked(_Pair))
SIZE = Kind('one or two whole numbers above 0', _checked(_Count | _Pair))
INPUT_SIZE = Kind(
  'three whole numbers above 0: channels, height, width',
  _checked(Annotated[list[_Count], Len(3, 3)]),
)
COLOURS = Kind('a list of colours, each a list of numbers', _checked(_Table))
_LABELS = Kind(
  'names in a list, or by the numbers of classes',
  _checked(list[str | int] | dict[_Digits, str | int]),
)


@dataclasses.dataclass(frozen=True)
class Json:
  """A JSON object of another program's file, whose content is not trusted."""

  file: str
  content: Mapping[str, Any]

  def get(self, key: str, kind: Kind, default: Any = None) -> Any:
    """Returns a field ('a.b' for one of a nested object), or the default.

    A field that is null counts as absent.
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
    """Checks the fields of the object at a key, or of the whole file.

    `kinds` has the kind of each known field; None: any value. All other fields
    must be off: null, false, 0 or empty.
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
    """Returns one number for all channels, or one for each."""

    def fits(value: Any) -> bool:
      values = value if isinstance(value, list) else [value]
      return len(values) in (1, channels) and all(map(is_wanted, values))

    above = ' above 0' if is_wanted is is_positive else ''
    text = f'one finite number{above}, or one for each of {channels} channels'
    value = self.get(key, Kind(text, fits), default)
    return tuple(value) if isinstance(value, list | tuple) else (value,)

  def labels(self, key: str, classes: int) -> tuple[str, ...]:
    """Returns the names of `classes` classes; () if there are others.

    They are in a list, or in an object: number of the class -> name.
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
