"""The stored values that become 0 and 1, where they are not those of the type.

`data.intensity` and `data.volume.window` are 'type', (low, high), or
'percentiles(0.5, 99.5)'.
"""

import dataclasses
import math
from typing import Annotated
from typing import Any

from vit_jax import config as config_lib
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


def _range_of_type() -> None:
  """Returns what 'type' stands for."""


_CHOICES = {
  'type': f'{__name__}:_range_of_type',
  'percentiles': f'{__name__}:Percentiles',
}


def percentiles(window: Any, key: str) -> tuple[float, float] | None:
  """Returns the percentiles that a window has; None for any other window.

  `key` is the key of the config that holds it, for errors.
  """
  if not isinstance(window, str):
    return None
  choice = config_lib.build(window, key, _CHOICES)
  return None if choice is None else (choice.low, choice.high)


def check(window: Any, key: str, least: float, most: float) -> None:
  """Raises a UserError unless a window is one of values `least` to `most`."""
  if isinstance(window, str):
    percentiles(window, key)
    return
  good = isinstance(window, tuple | list) and len(window) == 2
  good = good and all(
    type(x) in (int, float) and math.isfinite(x) for x in window
  )
  if not good or not least <= window[0] < window[1] <= most:
    raise UserError(
      f"config.{key} is {window!r}: write 'type' (the range of the stored"
      " type), 'percentiles(0.5, 99.5)', or (low, high) in stored units, from"
      f' {least:g} to {most:g}'
    )
