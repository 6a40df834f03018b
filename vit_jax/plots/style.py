"""The style of all pictures: colours, sizes of text, density.

Two engines take it from here. `sheet.draw` puts tiles (images, maps, labels)
with column heads, captions, a colour bar and a legend onto one picture, uint8
[H, W, 3], with OpenCV alone. `canvas.figure` makes charts with matplotlib,
which training and most commands do without. Lengths are in pixels of a page.
Files have `DENSITY` times as many, and are sharp on screens of high density.
"""

from collections.abc import Sequence
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
_CLASSES = BLUE, ORANGE, GREEN, RED, SKY, PURPLE, YELLOW, '#000000'
_LEVELS = 14  # of red, green and blue among which more colours are chosen
_LIGHTNESS = 25, 90  # of these, in CIELAB
_CHROMA = 25, 75  # neither greys nor glaring colours
# What deuteranopes see of linear RGB (Machado et al., 2009, severity 1).
_DEUTERANOPIA = np.array(
  [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
  ]
)
_BACKGROUNDS = ('background', 'unlabelled', 'unlabeled')


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


@functools.cache
def class_colours(count: int) -> np.ndarray:
  """Returns the colours of classes, uint8 [count, 3].

  The first eight are Okabe and Ito's. Each further one is the colour that is
  least like all before it, for normal sight and for deuteranopes. None is like
  BACKGROUND or VOID.
  """
  chosen = [rgb(colour) for colour in _CLASSES[:count]]
  if count <= len(chosen):
    return np.array(chosen, np.uint8).reshape(-1, 3)
  levels = np.linspace(0, 255, _LEVELS)
  grid = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
  lightness, red_green, yellow_blue = _lab(grid).T
  chroma = np.hypot(red_green, yellow_blue)
  fits = (lightness > _LIGHTNESS[0]) & (lightness < _LIGHTNESS[1])
  grid = grid[fits & (chroma > _CHROMA[0]) & (chroma < _CHROMA[1])]
  colours = _perceived(grid)
  fixed = np.array([*chosen, *map(rgb, (BACKGROUND, VOID))], np.float64)
  nearest = _distances(colours, _perceived(fixed)).min(axis=1)
  while len(chosen) < count:
    best = int(nearest.argmax())
    red, green, blue = np.round(grid[best]).astype(int).tolist()
    chosen.append((red, green, blue))
    nearest = np.minimum(
      nearest, _distances(colours, colours[best : best + 1])[:, 0]
    )
  return np.array(chosen, np.uint8)


def label_colours(names: Sequence[str]) -> np.ndarray:
  """Returns the colours of classes of pixels, uint8 [len(names), 3].

  A class named 'background' or 'unlabelled' has the colour BACKGROUND. The
  others have `class_colours` in their order.
  """
  is_class = np.array([x.lower() not in _BACKGROUNDS for x in names], bool)
  colours = np.tile(np.array(rgb(BACKGROUND), np.uint8), (len(names), 1))
  colours[is_class] = class_colours(int(is_class.sum()))
  return colours


def _perceived(colours: np.ndarray) -> np.ndarray:
  """Returns CIELAB with normal sight and with deuteranopia, [N, 2, 3]."""
  linear = (colours / 255) ** 2.2
  weak_sight = np.clip(linear @ _DEUTERANOPIA.T, 0, 1) ** (1 / 2.2) * 255
  return np.stack([_lab(colours), _lab(weak_sight)], axis=1)


def _lab(colours: np.ndarray) -> np.ndarray:
  """Converts red, green and blue from 0 to 255, [N, 3], to CIELAB."""
  image = (colours[None] / 255).astype(np.float32)
  lab: np.ndarray = cv2.cvtColor(image, cv2.COLOR_RGB2Lab)[0]
  return lab


def _distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns how unlike colours are: the lesser of both sights, [N, M]."""
  distances = np.linalg.norm(first[:, None] - second[None], axis=-1)
  lesser: np.ndarray = distances.min(axis=-1)
  return lesser
