"""The style of all pictures: colours, sizes of text, density.

Two engines take it from here. `sheet.draw` puts tiles (images, maps, labels)
with column heads, captions, a colour bar and a legend onto one picture, uint8
[H, W, 3], with OpenCV alone. `canvas.figure` makes charts with matplotlib,
which training and most commands do without. Lengths are in pixels of a page.
Files have `DENSITY` times as many, and are sharp on screens of high density.
"""

import functools

import cv2
import numpy as np

DENSITY = 2
DPI = 96 * DENSITY

INK, PALE, FAINT, PAPER = '#303030', '#767676', '#D0D0D0', '#FFFFFF'
# Okabe and Ito's colours, which are distinguishable for the colour-blind.
BLUE, RED, GREEN, PURPLE = '#0072B2', '#D55E00', '#009E73', '#CC79A7'
ORANGE, SKY, YELLOW, GREY = '#E69F00', '#56B4E9', '#F0E442', '#8C8C8C'
RIGHT, WRONG = GREEN, RED  # frames and texts of predictions
BACKGROUND = '#BDBDBD'  # of the class of all other pixels; no class has it
VOID = PAPER  # of pixels that do not count
HIDDEN = '#92A0B8'  # of patches that a model does not see: unlike grey images
MARK = '#00EBFF'  # the frame of a chosen patch: no map has this colour
NOT_FINITE = '#FF00FF'

TEXT, SMALL = 12, 11  # heights of letters with their descenders
LINE = 17  # from one line of text to the next
GAP = 6  # between tiles

# Colour maps, by their names in matplotlib. Each is perceptually uniform.
HEAT = 'magma'  # values from 0 on
SIGNED = 'RdBu_r'  # values below and above 0, with white at 0
COUNTS = 'Blues'  # counts and fractions of them, with 0 nearly white
# ColorBrewer's colours (Harrower and Brewer, 2003), evenly spaced.
_BREWER = {
  SIGNED: '053061 2166AC 4393C3 92C5DE D1E5F0 F7F7F7'
  ' FDDBC7 F4A582 D6604D B2182B 67001F',
  COUNTS: 'F7FBFF DEEBF7 C6DBEF 9ECAE1 6BAED6 4292C6 2171B5 08519C 08306B',
}


def rgb(colour: str) -> tuple[int, int, int]:
  """Returns red, green and blue of a colour such as '#0072B2'."""
  red, green, blue = bytes.fromhex(colour.removeprefix('#'))
  return red, green, blue


@functools.cache
def colour_table(name: str) -> np.ndarray:
  """Returns the colours of a map from its lowest value on, uint8 [256, 3].

  `name` is HEAT, SIGNED or COUNTS.
  """
  steps = np.arange(256)
  if name == HEAT:
    table = cv2.applyColorMap(steps.astype(np.uint8), cv2.COLORMAP_MAGMA)
    return np.ascontiguousarray(table.reshape(-1, 3)[:, ::-1])
  colours = np.array([rgb(x) for x in _BREWER[name].split()])
  at = np.linspace(0, 255, len(colours))
  channels = [np.interp(steps, at, channel) for channel in colours.T]
  return np.round(np.stack(channels, axis=-1)).astype(np.uint8)
