"""Kinds of model fields, and the allowed values of a field.

A field is declared once, in its model or part, together with its kind:

    qk_norm: Annotated[bool, fields.FUNCTION] = False
"""

from collections.abc import Iterator
import dataclasses
import enum
import functools
import math
import reprlib
import typing
from typing import Any

from flax import linen as nn

from vit_jax.config import options


class Kind(enum.Enum):
  """Kinds of fields, by what happens when a checkpoint is loaded."""

  # Part of a model's name; checkpoint and model must agree.
  SIZE = 'size'
  # Other choices that change the function of the same parameters; checkpoint
  # and model must agree.
  FUNCTION = 'function'
  # If the values differ, the checkpoint's parameters are adapted
  # (`weights.adapt`).
  FITTED = 'fitted'
  # Initialization and dropout: each run may choose other values.
  TRAINING = 'training'
  # How the same function is computed: each run may choose other values.
  EXECUTION = 'execution'


@dataclasses.dataclass(frozen=True)
class Field:
  """The kind of a field, and its allowed values.

  Attributes:
    kind: Decides what happens when a checkpoint is loaded into a model.
    is_visible: Whether the value can be read from a checkpoint's arrays.
    least: The smallest integer; for tuples, of each number.
    most: The largest integer. The defaults are far above any real model
      (ViT-22B has 48 layers 6,144 wide), so that a mistaken number is refused
      before arrays of that shape are made.
    interval: Interval of a real number: '[0, 1)', '(0, 1)', '(0, inf)',
      '[0, inf)', or '' for any.
    choices: The allowed strings; () for any.
    key: Key of `config.model` that fills a part's field which its text does not
      set; '' stands for the key of the field's name.
    part: Name of the part that a field holds if neither its text nor a key says
      which, as 'mlp'; '' elsewhere.
  """

  kind: Kind
  is_visible: bool = True
  least: float = -math.inf
  most: int = 2**20
  interval: str = ''
  choices: tuple[str, ...] = ()
  key: str = ''
  part: str = ''


# Fields with bounds or choices of their own.
function = functools.partial(Field, Kind.FUNCTION)
unseen = functools.partial(Field, Kind.FUNCTION, is_visible=False)
fitted = functools.partial(Field, Kind.FITTED)
training = functools.partial(Field, Kind.TRAINING)

SIZE = Field(Kind.SIZE, least=1)
MLP_DIM = Field(Kind.SIZE, least=1, key='mlp_dim')
HEADS = Field(Kind.SIZE, is_visible=False, least=1)  # number of them
DEPTH = Field(Kind.SIZE, least=1, most=1_000)
STAGES = Field(Kind.SIZE, least=1, most=1_000)  # units in each
FUNCTION = Field(Kind.FUNCTION)
UNSEEN = Field(Kind.FUNCTION, is_visible=False)
GRID = Field(Kind.FITTED, is_visible=False, least=1)  # of positions
FITTED = Field(Kind.FITTED)
TRAINING = Field(Kind.TRAINING)
RATE = Field(Kind.TRAINING, interval='[0, 1)')
ATTENTION_RATE = Field(
  Kind.TRAINING, interval='[0, 1)', key='attention_dropout_rate'
)
EXECUTION = Field(Kind.EXECUTION)
EPSILON = Field(  # of norms
  Kind.FUNCTION, is_visible=False, interval='(0, 1)', key='layer_norm_epsilon'
)
PART = Field(Kind.FUNCTION)  # a module, whose own fields say their kinds

_MOST_NUMBERS = 16  # most numbers in a tuple, such as stages of a ResNet
_MOST_FLOAT = 1e30


def annotated(hint: Any) -> Field | None:
  """Returns the field of a type hint; None: it has none, or several."""
  metadata = getattr(hint, '__metadata__', ())
  declared = [x for x in metadata if isinstance(x, Field)]
  return declared[0] if len(declared) == 1 else None


def inner_parts(part: Any) -> Iterator[nn.Module]:
  """Yields a part, or each of a tuple, and the parts in its fields."""
  if isinstance(part, tuple | list):
    for x in part:
      yield from inner_parts(x)
  if isinstance(part, nn.Module):
    yield part
    for field in dataclasses.fields(part):
      if field.name not in ('parent', 'name'):
        yield from inner_parts(getattr(part, field.name, None))


def converted(name: str, value: Any, hint: Any) -> Any:
  """Returns the value of a field, converted to its type.

  A single patch size becomes a pair; else as `options.converted`, which also
  has the error.
  """
  alternatives = options.type_alternatives(hint)
  origins = [typing.get_origin(x) for x in alternatives]
  if name == 'patch_size' and tuple in origins:
    sides = (value, value) if type(value) is int else value
    good = isinstance(sides, tuple | list) and len(sides) in (2, 3)
    if not good or not all(type(x) is int and x > 0 for x in sides):
      raise ValueError(
        f'patch_size is {value!r}: write one positive number, or'
        ' (height, width); of volumes (depth, height, width)'
      )
    value = tuple(sides)
  return options.converted(name, value, hint)


def type_name(hint: Any) -> str:
  """Returns the name of a type, for errors."""
  return hint.__name__ if isinstance(hint, type) else str(hint)


def check_value(name: str, field: Field, value: Any) -> None:
  """Raises a ValueError if a field does not allow a value of its type."""
  if value is None:
    return
  numbers = value if isinstance(value, tuple) else (value,)
  if len(numbers) > _MOST_NUMBERS:
    raise ValueError(
      f'{name} has {len(numbers)} numbers: at most {_MOST_NUMBERS}'
    )
  least = max(field.least, 1) if isinstance(value, tuple) else field.least
  bounds = f'at most {field.most:,}'
  if least > -math.inf:
    bounds = f'from {least:,} to {field.most:,}'
  for x in numbers:
    if type(x) is int and not least <= x <= field.most:
      raise ValueError(f'{name} is {reprlib.repr(value)}: it must be {bounds}')
  if field.choices and value not in field.choices:
    raise ValueError(
      f'{name} is {value!r}: choose one of {", ".join(field.choices)}'
    )
  if field.interval:
    options.check_interval(name, value, field.interval)
  if type(value) is float and not abs(value) < _MOST_FLOAT:
    raise ValueError(f'{name} is {value}: it must be a finite number')
