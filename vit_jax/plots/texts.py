"""Widths of texts in pictures, and texts that are cut to a width.

Used within `canvas.style`, which sets the fonts.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import itertools
from typing import Any

from vit_jax.runs import records

DPI = 100  # widths are in pixels at this resolution
_ELLIPSIS = '…'
# How much of what is kept of a text is its beginning; the first is preferred.
_BEGINNINGS = (0.5, 0.25, 0.0, 0.75, 1.0)


def width(text: str, weight: str = 'normal') -> float:
  """Returns the width of a line of text in pixels."""
  return sum(_advance(letter, weight) for letter in text)


def shorten(
  texts: Sequence[str], most: float, weight: str = 'normal'
) -> list[str]:
  """Cuts the texts that are wider than `most` pixels.

  An ellipsis replaces the middle of a text. If that makes different texts
  equal, another part of all of them is cut: `photo_0001.png` and
  `photo_0002.png` may become `…0001.png` and `…0002.png`. Texts are equal only
  if they were, or if there is no room for what distinguishes them.
  """
  known = list(dict.fromkeys(texts))
  wide = {text for text in known if width(text, weight) > most}
  if not wide:
    return list(texts)
  room = most - width(_ELLIPSIS, weight)
  measure = functools.partial(_advance, weight=weight)
  start = len(records.common_start([*wide]))
  ways: list[Callable[[str], str]] = [
    functools.partial(_ends, room=room, beginning=part, measure=measure)
    for part in _BEGINNINGS
  ]
  ways.append(functools.partial(_part, room=room, start=start, measure=measure))

  def apply(way: Callable[[str], str]) -> dict[str, str]:
    return {text: way(text) if text in wide else text for text in known}

  found = max(map(apply, ways), key=lambda short: len({*short.values()}))
  return [found[text] for text in texts]


def _ends(
  text: str, room: float, beginning: float, measure: Callable[[str], float]
) -> str:
  """Returns the beginning and the end of a text."""
  head = _fitting(text, beginning * room, measure)
  rest = room - sum(map(measure, head))
  tail = _fitting(text[::-1], rest, measure)[::-1]
  return f'{head}{_ELLIPSIS}{tail}'


def _part(
  text: str, room: float, start: int, measure: Callable[[str], float]
) -> str:
  """Returns the part of a text from a letter on."""
  inner = _fitting(text[start:], room - measure(_ELLIPSIS), measure)
  return f'{_ELLIPSIS}{inner}{_ELLIPSIS}'


def _fitting(text: str, room: float, measure: Callable[[str], float]) -> str:
  """Returns the most letters of a text, from the first on, that have room."""
  ends = itertools.accumulate(map(measure, text))
  return text[: sum(end <= room for end in ends)]


@functools.cache
def _advance(letter: str, weight: str) -> float:
  """Returns the pixels from one letter to the next."""
  return _line_width(f'|{letter}|', weight) - _line_width('||', weight)


def _line_width(text: str, weight: str) -> float:
  from matplotlib import font_manager

  font = font_manager.FontProperties(weight=weight)
  found = _renderer().get_text_width_height_descent(text, font, ismath=False)
  return found[0]


@functools.cache
def _renderer() -> Any:
  from matplotlib.backends import backend_agg

  return backend_agg.RendererAgg(1, 1, DPI)
