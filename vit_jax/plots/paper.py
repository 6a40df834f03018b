"""Paper to draw pictures on: images, rectangles and lines of text.

Texts are cut or wrapped to a width by a function `measure`, since charts have
other fonts.

OpenCV's own fonts are used, which have Latin, Greek, Cyrillic, Chinese,
Japanese and Korean letters: a picture is the same on all machines. Lengths are
in pixels of the file.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import io
import itertools
import math
import os
import pathlib
import re
import unicodedata

import cv2
import numpy as np
from PIL import Image

from vit_jax.plots import style
from vit_jax.runs import safe_io

LINE, GAP = style.LINE * style.DENSITY, style.GAP * style.DENSITY
_SIZE = style.TEXT * style.DENSITY
_NORMAL, _BOLD = 400, 600
Measure = Callable[[str], float]

_ELLIPSIS = '…'
# How much of what is kept of a text is its beginning; the first is preferred.
_BEGINNINGS = (0.5, 0.25, 0.0, 0.75, 1.0)
_PIECES = re.compile(r'\s+|[^\s_/-]*[_/-]|[^\s_/-]+')  # between line breaks


class Paper:
  """A picture to draw on, white at first.

  Attributes:
    pixels: uint8 [height, width, 3].
  """

  def __init__(self, width: float, height: float) -> None:
    shape = math.ceil(height), math.ceil(width), 3
    self.pixels = np.full(shape, style.rgb(style.PAPER), np.uint8)

  def paste(self, image: np.ndarray, left: float, top: float) -> None:
    """Copies an image uint8 [h, w, 3]."""
    x, y = round(left), round(top)
    self.pixels[y : y + image.shape[0], x : x + image.shape[1]] = image

  def fill(
    self, left: float, top: float, width: float, height: float, colour: str
  ) -> None:
    """Fills a rectangle."""
    x, y = round(left), round(top)
    right, bottom = round(left + width), round(top + height)
    self.pixels[y:bottom, x:right] = style.rgb(colour)

  def write(
    self,
    lines: Sequence[str],
    x: float,
    top: float,
    *,
    align: float = 0.0,
    bold: bool = False,
    colour: str = style.INK,
  ) -> None:
    """Writes lines of text below a height.

    Args:
      lines: The lines.
      x: Where their left ends are, or the part `align` of their widths.
      top: Height of the upper end of the first line.
      align: 0: x is on the left of a line; 0.5: in its middle; 1: on its right.
      bold: Whether letters are bold.
      colour: Colour of the letters.
    """
    for i, line in enumerate(lines):
      left = round(x - align * width(line, bold))
      baseline = round(top + i * LINE + 0.72 * LINE)
      weight = _BOLD if bold else _NORMAL
      text, ink = drawable(line), style.rgb(colour)
      at = left, baseline
      cv2.putText(self.pixels, text, at, ink, _font(), _SIZE, weight=weight)


def stack(blocks: Sequence[np.ndarray]) -> np.ndarray:
  """Puts pictures uint8 [h, w, 3] below each other, with their left sides."""
  right = max(block.shape[1] for block in blocks)
  paper, top = Paper(right, sum(map(len, blocks))), 0
  for block in blocks:
    paper.paste(block, 0, top)
    top += len(block)
  return paper.pixels


@functools.lru_cache(maxsize=4096)
def width(text: str, bold: bool = False) -> float:
  """Returns the width of a line of text."""
  origin, weight = (0, 0), _BOLD if bold else _NORMAL
  _, _, wide, _ = cv2.getTextSize(
    origin, drawable(text), origin, _font(), _SIZE, weight=weight
  )
  return float(wide)


def shorten(
  texts: Sequence[str], most: float, measure: Measure = width
) -> list[str]:
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
  start = len(os.path.commonprefix([*wide]))

  def ends(text: str, beginning: float) -> str:
    head = _fitting(text, beginning * room, measure)
    tail = _fitting(text[::-1], room - sum(map(measure, head)), measure)[::-1]
    return f'{head}{_ELLIPSIS}{tail}'

  def inner(text: str) -> str:
    part = _fitting(text[start:], room - measure(_ELLIPSIS), measure)
    return f'{_ELLIPSIS}{part}{_ELLIPSIS}'

  ways: list[Callable[[str], str]] = [
    functools.partial(ends, beginning=part) for part in _BEGINNINGS
  ]
  shortened = [
    {text: way(text) if text in wide else text for text in distinct}
    for way in [*ways, inner]
  ]
  best = max(shortened, key=lambda by_text: len({*by_text.values()}))
  return [best[text] for text in texts]


def _fitting(text: str, room: float, measure: Measure) -> str:
  """Returns the most letters of a text, from the first on, that have room."""
  ends = itertools.accumulate(map(measure, text))
  return text[: sum(end <= room for end in ends)]


def wrap(
  texts: Sequence[str], most: float, limit: int, measure: Measure = width
) -> list[list[str]]:
  """Returns the lines of texts, none wider than `most` pixels.

  A line ends at a space, or after one of `_/-`. What does not fit into `limit`
  lines is shortened.
  """
  wrapped = []
  for text in texts:
    lines = ['']
    for piece in _PIECES.findall(text):
      if lines[-1].strip() and measure(lines[-1] + piece.rstrip()) > most:
        lines.append('')
      lines[-1] += piece
    wrapped.append([line.strip() for line in lines])
  long = [lines for lines in wrapped if len(lines) > limit]
  ends = [' '.join(lines[limit - 1 :]) for lines in long]
  for lines, end in zip(long, shorten(ends, most, measure), strict=True):
    lines[limit - 1 :] = [end]
  return [shorten(lines, most, measure) for lines in wrapped]


def drawable(text: str) -> str:
  r"""Escapes letters that the font does not have, as \u0928."""
  return ''.join(
    c if _has_glyph(c) else c.encode('unicode_escape').decode()
    for c in unicodedata.normalize('NFC', text)  # macOS stores accents apart
  )


def has_letters(text: str) -> bool:
  """Whether the font has all letters of a text."""
  return all(map(_has_glyph, unicodedata.normalize('NFC', text)))


@functools.cache
def _has_glyph(letter: str) -> bool:
  """Whether the font has a letter; it draws a '?' for others."""
  if letter.isascii() or not letter.isprintable():
    return letter.isprintable()
  drawn, unknown = (Paper(2 * LINE, 2 * LINE).pixels for _ in range(2))
  for pixels, text in ((drawn, letter), (unknown, '?')):
    at = LINE // 2, LINE
    cv2.putText(pixels, text, at, style.rgb(style.INK), _font(), _SIZE)
  return not np.array_equal(drawn, unknown)


@functools.cache
def _font() -> cv2.FontFace:
  return cv2.FontFace('sans')


def encode(pixels: np.ndarray) -> bytes:
  """Returns a picture uint8 [H, W, 3] or [H, W] as PNG."""
  file = io.BytesIO()
  dpi = style.DPI, style.DPI
  Image.fromarray(np.ascontiguousarray(pixels)).save(file, 'PNG', dpi=dpi)
  return file.getvalue()


def save(path: pathlib.Path, pixels: np.ndarray) -> None:
  """Writes the PNG of `encode` to a path, whose folder is made if need be."""
  with safe_io.writing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(pixels))
