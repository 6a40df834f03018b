"""Finds texts in pictures, which are pixels."""

import math

import cv2
import numpy as np

from vit_jax.plots import paper as paper_lib
from vit_jax.plots import style


def places(pixels, text, *, bold=False, colour=style.INK):
  """Returns where a text is written, [(y, x), ...], in pixels."""
  width = math.ceil(paper_lib.width(text, bold)) + 8
  paper = paper_lib.Paper(width, 2 * paper_lib.LINE)
  paper.write([text], 4, 8, bold=bold, colour=colour)
  inked = np.argwhere((paper.pixels < 255).any(axis=-1))
  (top, left), (bottom, right) = inked.min(axis=0), inked.max(axis=0) + 1
  letters = paper.pixels[top:bottom, left:right]
  if any(a < b for a, b in zip(pixels.shape, letters.shape, strict=True)):
    return []
  unlike = cv2.matchTemplate(pixels, letters, cv2.TM_SQDIFF_NORMED)
  return [
    (y, x)
    for y, x in np.argwhere(unlike < 1e-4).tolist()
    if (pixels[y : y + bottom - top, x : x + right - left] == letters).all()
  ]


def shows(pixels, text, **kwargs):
  """Whether a text is written in a picture."""
  return bool(places(pixels, text, **kwargs))
