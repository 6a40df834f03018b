"""Paper to draw pictures on: images, rectangles and lines of text.

OpenCV's own fonts are used, which have Latin, Greek, Cyrillic, Chinese,
Japanese and Korean letters: a picture is the same on all machines. Lengths are
in pixels of the file.
"""

from collections.abc import Sequence
import functools
import io
import math
import pathlib
import unicodedata

import cv2
import numpy as np
from PIL import Image

from vit_jax.plots import style
from vit_jax.runs import safe_io

LINE, GAP = style.LINE * style.DENSITY, style.GAP * style.DENSITY
_SIZE = style.TEXT * style.DENSITY
_NORMAL, _BOLD = 400, 600


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
    """Writes lines of text below a height."""
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
  return not np.array_equal(_letter(letter), _letter('?'))


def _letter(letter: str) -> np.ndarray:
  """Returns the picture of a letter."""
  image = np.zeros((2 * LINE, 2 * LINE, 3), np.uint8)
  white, at = (255, 255, 255), (LINE // 2, LINE)
  return cv2.putText(image, letter, at, white, _font(), _SIZE)[1]


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
