"""The schema of preprocess.json, for pydantic, which takes 0.1 s to import."""

from collections.abc import Callable
from collections.abc import Mapping
import reprlib
from typing import Annotated
from typing import Any
from typing import Literal

import pydantic
from pydantic import AfterValidator
from pydantic import Field

from vit_jax.config import MOST_PIXELS
from vit_jax.config import UserError
from vit_jax.data import kinds as kinds_lib
from vit_jax.data import scans
from vit_jax.data.host import geometry

_Side = Annotated[int, Field(gt=0, le=MOST_PIXELS)]
_Size = tuple[_Side, _Side]
_Number = Annotated[float, Field(gt=-1e30, lt=1e30)]
_Positive = Annotated[float, Field(gt=0, lt=1e30)]
_Level = Annotated[int, Field(ge=0, lt=2**16)]


def _fits(is_valid: Callable[[Any], object], text: str) -> AfterValidator:
  """Returns a check of a value, with a text that says which are valid."""

  def check(value: Any) -> Any:
    if not is_valid(value):
      raise ValueError(f'it must be {text}')
    return value

  return AfterValidator(check)


def choice(*values: str) -> AfterValidator:
  """Returns a check that a value is one of these."""
  return _fits(values.__contains__, f'one of {", ".join(map(repr, values))}')


_Feature = Annotated[
  dict[str, Any],
  _fits(kinds_lib.from_dict, 'a feature'),  # or its own error
]
_Spacing = _fits(scans.is_spacing, 'three distances in mm, or empty')
_Window = _fits(scans.is_window, "'type', (low, high) or percentiles")
_Range = _fits(lambda x: 0 <= x[0] < x[1], '(low, high) with 0 <= low < high')


class _Output(pydantic.BaseModel, extra='allow', strict=True):
  feature: str


class _Stored(pydantic.BaseModel, extra='forbid', strict=True):
  """Fields as of `data.Preprocess`, with tuples for lists.

  Classes may have the names of folders, which need not be UTF-8, as pydantic
  wants a str to be.
  """

  classes: tuple[pydantic.InstanceOf[str], ...]
  image_size: _Size | tuple[_Side, _Side, _Side]
  channels: Annotated[int, Field(gt=0, lt=2**10)]
  mean: tuple[_Number, ...]
  std: tuple[_Positive, ...]
  resize: _Side | _Size | None = None
  crop_pct: Annotated[float, Field(ge=1e-3, le=1)] | None = None
  fill: tuple[_Level, ...] | None = None
  antialias: bool = True
  bits: Literal[8, 16] = 8
  intensity: Annotated[tuple[_Number, _Number], _Range] | None = None
  interpolation: Annotated[str, choice(*geometry.INTERPOLATIONS)] = 'bilinear'
  resize_like: Annotated[str, choice('', *geometry.LIKE)] = ''
  spacing: Annotated[Any, _Spacing] = ()
  window: Annotated[Any, _Window] = 'type'
  features: dict[str, _Feature] = {}
  outputs: dict[str, _Output] = {}
  trunk: str = ''

  @pydantic.model_validator(mode='after')
  def _check_together(self) -> '_Stored':
    for name in ('mean', 'std', 'fill'):
      values = getattr(self, name)
      if values is not None and len(values) not in (1, self.channels):
        raise ValueError(
          f'{name} is {reprlib.repr(values)}: it must have one number, or one'
          f' for each of {self.channels} channels'
        )
    if self.fill is not None and max(self.fill) >= 2**self.bits:
      raise ValueError(f'fill is {self.fill}: a value has {self.bits} bits')
    if self.fill is not None and self.crop_pct is None:
      raise ValueError(f'fill is {self.fill}, and needs a crop_pct')
    for name, output in self.outputs.items():
      if output.feature not in self.features:
        raise ValueError(f'outputs.{name} is of no feature that is there')
    return self


def check(fields: Mapping[str, Any]) -> None:
  """Checks the content of a preprocess.json, with tuples for lists."""
  validate(_Stored, fields)


def validate(schema: type[pydantic.BaseModel], fields: Any) -> None:
  """Raises a UserError, of one line, if fields do not fit a schema."""
  try:
    schema.model_validate(fields)
  except pydantic.ValidationError as e:
    errors = e.errors(include_url=False)
  else:
    return
  place = errors[0]['loc'][:1]  # of a union there are several errors
  messages = dict.fromkeys(x['msg'] for x in errors if x['loc'][:1] == place)
  text = ' or '.join(x.removeprefix('Value error, ') for x in messages)
  text = text.replace('Input should', 'it must')
  if place and place[0] in fields:
    text = f'{place[0]} is {reprlib.repr(fields[str(place[0])])}: {text}'
  elif place:
    text = f'{place[0]}: {text}'
  raise UserError(text)
