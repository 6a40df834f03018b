"""The stored values that become 0 and 1, where the type does not say them.

`data.intensity` and `data.volume.window` are 'type', (low, high), or
'percentiles(0.5, 99.5)'. Other modules compare them with 'type', so no other
text stands for it.
"""

import contextlib
import dataclasses
import math
from typing import Annotated
from typing import Any

from vit_jax import config as config_lib
from vit_jax.config import parts
from vit_jax.config import UserError
from vit_jax.config.options import Interval

_PERCENT = Interval('[0, 100]')


@dataclasses.dataclass(frozen=True)
class Percentiles:
  """The percentiles of the values that become 0 and 1."""

  low: Annotated[float, _PERCENT]
  high: Annotated[float, _PERCENT]

  def __post_init__(self) -> None:
    if self.low >= self.high:
      raise UserError(f'low is {self.low}: it must be less than high')


_CHOICES = {'percentiles': f'{__name__}:Percentiles'}


@dataclasses.dataclass(frozen=True)
class Setting:
  """A key of the config that holds a window.

  Attributes:
    key: Its name.
    least: Least value of (low, high).
    most: Greatest value of (low, high).
    advice: What may be written, for errors.
  """

  key: str
  least: float
  most: float
  advice: str

  def percentiles(self, window: Any) -> tuple[float, float] | None:
    """Returns the percentiles that a window has; None for any other window."""
    if not isinstance(window, str) or window == 'type':
      return None
    name = ''
    with contextlib.suppress(UserError):  # the error below says more
      name = parts.parse(window, self.key).name
    if name not in _CHOICES:
      raise self._error(window)
    choice = config_lib.build(window, self.key, _CHOICES)
    return choice.low, choice.high

  def check(self, window: Any) -> None:
    """Raises a UserError unless a value is a window."""
    if isinstance(window, str):
      self.percentiles(window)
    else:
      self.check_pair(window)

  def check_pair(self, window: Any) -> None:
    """Raises a UserError unless a value is (low, high)."""
    good = isinstance(window, tuple | list) and len(window) == 2
    good = good and all(
      type(x) in (int, float) and math.isfinite(x) for x in window
    )
    if not good or not self.least <= window[0] < window[1] <= self.most:
      raise self._error(window)

  def _error(self, window: Any) -> UserError:
    return UserError(f'config.{self.key} is {window!r}: write {self.advice}')


INTENSITY = Setting(
  'data.intensity',
  0,
  65535,
  "'type' (the range of the stored type), 'percentiles(0.5, 99.5)', or (low,"
  ' high) in stored units, from 0 to 65535',
)
# The (low, high) that percentiles of `INTENSITY` come to.
MEASURED = dataclasses.replace(
  INTENSITY,
  key='data.intensity_window',
  advice='(low, high) in stored units, from 0 to 65535',
)
VOLUME = Setting(
  'data.volume.window',
  -1e30,
  1e30,
  "'type' (the range of uint8 or uint16), 'percentiles(0.5, 99.5)' of each scan"
  ' and modality, or (low, high) in the unit of the files, after their slope'
  ' and intercept',
)
