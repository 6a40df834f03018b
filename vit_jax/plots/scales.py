"""Scales of colour maps, and matrices in these colours."""

from collections.abc import Sequence
import math

import numpy as np

from vit_jax.plots import matrix
from vit_jax.plots import paper as paper_lib
from vit_jax.plots import sheet
from vit_jax.plots import style

LINE, GAP = paper_lib.LINE, paper_lib.GAP
_SCALE_SIZE = 440, 20  # width and height of a scale's colours
_TICK, _TICKS = 6, 7  # length of marks below it, and their largest number
_TICK_MARGIN = (
  0.12  # of a scale's length: ticks so near to its ends are left out
)


def draw(scale: sheet.Scale) -> np.ndarray:
  """Returns a scale: its colours with numbers below, and its label."""
  places = ticks(scale.low, scale.high)
  numbers = [number(x) for x in places]
  if scale.exceeded:
    numbers[-1] = f'\N{GREATER-THAN OR EQUAL TO} {numbers[-1]}'
  left = GAP + paper_lib.width(numbers[0]) / 2
  right = left + _SCALE_SIZE[0] + max(GAP, paper_lib.width(numbers[-1]) / 2)
  paper = paper_lib.Paper(
    right + paper_lib.width(scale.label) + 2 * GAP, 2 * GAP + 2 * LINE
  )
  table = style.colour_table(scale.colours)
  steps = np.linspace(0, len(table) - 1, _SCALE_SIZE[0]).round().astype(int)
  paper.paste(
    np.broadcast_to(table[steps], (_SCALE_SIZE[1], _SCALE_SIZE[0], 3)),
    left,
    GAP,
  )
  below = GAP + _SCALE_SIZE[1]
  span = (scale.high - scale.low) or 1
  for value, text in zip(places, numbers, strict=True):
    x = left + (value - scale.low) / span * (_SCALE_SIZE[0] - 2)
    paper.fill(x, below, 2, _TICK, style.INK)
    paper.write([text], x, below + _TICK, align=0.5)
  paper.write([scale.label], right, GAP + (_SCALE_SIZE[1] - LINE) / 2)
  return paper.pixels


def ticks(low: float, high: float) -> list[float]:
  """Returns three to six round numbers from `low` to `high`, with both ends."""
  if high <= low:
    return [low]
  power = 10.0 ** math.floor(math.log10(high - low))
  steps = (factor * power / 10 for factor in (1, 2, 2.5, 5, 10, 20, 25, 50))
  step = next(x for x in steps if (high - low) / x <= _TICKS)
  first, last = math.ceil(low / step), math.floor(high / step)
  inner = [i * step for i in range(first, last + 1)]
  margin = _TICK_MARGIN * (high - low)
  return [low, *(x for x in inner if low + margin < x < high - margin), high]


def number(value: float) -> str:
  """Returns a number as text with three digits."""
  return f'{value + 0.0:.3g}'.replace('-', '\N{MINUS SIGN}')


def heat_map(
  values: np.ndarray,
  texts: np.ndarray,
  names: tuple[Sequence[str], Sequence[str]],
  axes: tuple[str, str],
  limits: tuple[float, float],
  label: str,
  *,
  empty: str = style.PAPER,
  framed: tuple[int, int] | None = None,
) -> np.ndarray:
  """Returns `matrix.draw` of values, float [R, C], below their scale.

  `limits` are the values of the first and the last colour, and `label` is the
  name of the values.
  """
  low, high = limits
  shades = (values - low) / ((high - low) or 1)
  cells = matrix.draw(
    shades, texts, names, axes, style.HEAT, empty=empty, framed=framed
  )
  return paper_lib.stack([draw(sheet.Scale(*limits, label)), cells])
