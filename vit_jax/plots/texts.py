"""Texts that are cut or wrapped to a width.

Widths come from a function of the caller, `measure`, since sheets and charts
have other fonts.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import itertools
import re

Measure = Callable[[str], float]

_ELLIPSIS = '…'
# How much of what is kept of a text is its beginning; the first is preferred.
_BEGINNINGS = (0.5, 0.25, 0.0, 0.75, 1.0)
_PIECES = re.compile(r'\s+|[^\s_/-]*[_/-]|[^\s_/-]+')  # between line breaks


def common_start(texts: Sequence[str]) -> str:
  """Returns the longest common prefix of texts."""
  least, largest = min(texts), max(texts)  # sorted, all others lie between
  for i, (a, b) in enumerate(zip(least, largest, strict=False)):
    if a != b:
      return least[:i]
  return least


def shorten(texts: Sequence[str], most: float, measure: Measure) -> list[str]:
  """Cuts the texts that are wider than `most` pixels.

  An ellipsis replaces the middle of a text. If that makes different texts
  equal, another part of all of them is cut: `photo_0001.png` and
  `photo_0002.png` may become `…0001.png` and `…0002.png`. Texts are equal only
  if they were, or if there is no room for what distinguishes them.
  """
  distinct = list(dict.fromkeys(texts))
  wide = {text for text in distinct if measure(text) > most}
  if not wide:
    return list(texts)
  room = most - measure(_ELLIPSIS)
  start = len(common_start([*wide]))
  ways: list[Callable[[str], str]] = [
    functools.partial(_ends, room=room, beginning=part, measure=measure)
    for part in _BEGINNINGS
  ]
  ways.append(functools.partial(_part, room=room, start=start, measure=measure))

  def apply(way: Callable[[str], str]) -> dict[str, str]:
    return {text: way(text) if text in wide else text for text in distinct}

  short = max(
    map(apply, ways), key=lambda shortened: len({*shortened.values()})
  )
  return [short[text] for text in texts]


def wrap(
  texts: Sequence[str], most: float, measure: Measure, limit: int
) -> list[list[str]]:
  """Returns the lines of texts, none wider than `most` pixels.

  A line ends at a space, or after one of `_/-`. What does not fit into `limit`
  lines is shortened.
  """
  result = [_wrapped(text, most, measure) for text in texts]
  long = [lines for lines in result if len(lines) > limit]
  ends = [' '.join(lines[limit - 1 :]) for lines in long]
  for lines, end in zip(long, shorten(ends, most, measure), strict=True):
    lines[limit - 1 :] = [end]
  return [shorten(lines, most, measure) for lines in result]


def _wrapped(text: str, most: float, measure: Measure) -> list[str]:
  lines = ['']
  for piece in _PIECES.findall(text):
    if lines[-1].strip() and measure(lines[-1] + piece.rstrip()) > most:
      lines.append('')
    lines[-1] += piece
  return [line.strip() for line in lines]


def _ends(text: str, room: float, beginning: float, measure: Measure) -> str:
  """Returns the beginning and the end of a text."""
  head = _fitting(text, beginning * room, measure)
  tail = _fitting(text[::-1], room - sum(map(measure, head)), measure)[::-1]
  return f'{head}{_ELLIPSIS}{tail}'


def _part(text: str, room: float, start: int, measure: Measure) -> str:
  """Returns the part of a text from a letter on."""
  inner = _fitting(text[start:], room - measure(_ELLIPSIS), measure)
  return f'{_ELLIPSIS}{inner}{_ELLIPSIS}'


def _fitting(text: str, room: float, measure: Measure) -> str:
  """Returns the most letters of a text, from the first on, that have room."""
  ends = itertools.accumulate(map(measure, text))
  return text[: sum(end <= room for end in ends)]
