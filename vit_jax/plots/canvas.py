"""Figures: a common style, sheets laid out in pixels, and files.

Needs matplotlib, which is in the extra [explore]. Figures are made without
pyplot, which would keep them in memory.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import importlib.util
import math
import pathlib
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING
import warnings

import numpy as np

from vit_jax.config import UserError
from vit_jax.plots import tiles as tiles_lib
from vit_jax.runs import safe_io

if TYPE_CHECKING:
  from matplotlib import axes as axes_lib
  from matplotlib import axis as axis_lib
  from matplotlib import figure as figure_lib

DPI = 100  # resolution of sheets; charts have twice as much
LETTER, LINE = 7.6, 17  # pixels of a wide letter, and of a line of text
GAP = 4  # pixels between tiles
INK, PALE, FAINT = '#303030', '#808080', '#C8C8C8'
# Okabe and Ito's colours, which are distinguishable for the colour-blind.
BLUE, RED, GREEN, PURPLE = '#0072B2', '#D55E00', '#009E73', '#CC79A7'
ORANGE, SKY, GREY = '#E69F00', '#56B4E9', '#8C8C8C'
_FRAME = 0xC8  # the grey level of FAINT
_TICKS = 4  # approximate number of ticks of a colour scale
_MOST_LETTERS = 24  # maximum letters in the label of a row
_BAR = 60  # pixels of the colour scale above a sheet
# For scripts that DejaVu Sans does not have.
_MORE_FONTS = (
  'Noto Sans CJK JP',
  'Noto Sans CJK SC',
  'Noto Sans JP',
  'Noto Sans SC',
  'WenQuanYi Micro Hei',
  'WenQuanYi Zen Hei',
  'Droid Sans Fallback',
  'Arial Unicode MS',
  'Noto Sans Devanagari',
  'Noto Sans Bengali',
  'Noto Sans Tamil',
  'Noto Sans Thai',
)
_STYLE: Any = {
  'font.size': 9,
  'axes.titlesize': 10,
  'axes.titleweight': 'bold',
  'axes.titlelocation': 'left',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.edgecolor': PALE,
  'axes.labelcolor': INK,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.color': '#E6E6E6',
  'text.color': INK,
  'text.parse_math': False,  # a $ in a name is a $
  'xtick.color': INK,
  'ytick.color': INK,
  'image.composite_image': False,
  # SVG files are reproducible, and their text stays text.
  'svg.hashsalt': 'vit_jax',
  'svg.fonttype': 'none',
}


class Scale(NamedTuple):
  """A colour scale above the tiles of a sheet.

  Attributes:
    low: Value of the first colour.
    high: Value of the last colour.
    label: Name of the values.
    colors: Name of the colour map in matplotlib.
    ticks: Texts evenly spaced along the scale, which replace numbers.
  """

  low: float
  high: float
  label: str
  colors: str = tiles_lib.VALUES
  ticks: tuple[str, ...] = ()


def check() -> None:
  """Raises a UserError if matplotlib is missing."""
  if importlib.util.find_spec('matplotlib') is None:
    raise UserError(
      "pictures need matplotlib: run pip install 'vit_jax[explore]'"
    )


@contextlib.contextmanager
def style() -> Iterator[None]:
  """Returns the context in which figures are made and saved."""
  import matplotlib

  with matplotlib.rc_context(_STYLE | fonts()), warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'Glyph')  # names may be in any script
    yield


@functools.cache
def fonts() -> Mapping[str, Any]:
  """Returns a style with fonts for all scripts that are installed here."""
  from matplotlib import font_manager

  known = set(font_manager.get_font_names())
  return {
    'font.family': ['DejaVu Sans', *(x for x in _MORE_FONTS if x in known)]
  }


def figure(width: float, height: float) -> 'figure_lib.Figure':
  """Returns an empty figure for charts, with constrained layout.

  Its sides are in pixels of the page.
  """
  from matplotlib import figure as figure_lib

  size = width / DPI, height / DPI
  return figure_lib.Figure(figsize=size, dpi=2 * DPI, layout='constrained')


def make_log(axis: 'axis_lib.XAxis | axis_lib.YAxis') -> None:
  """Makes an axis logarithmic, with plain numbers at the powers of ten.

  Matplotlib's own labels are formulas, which the style does not parse.
  """
  from matplotlib import ticker

  axis.axes.set(**{f'{axis.axis_name}scale': 'log'})
  axis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  axis.set_minor_formatter(ticker.NullFormatter())


def pixel_figure(
  width: float, height: float
) -> 'tuple[figure_lib.Figure, axes_lib.Axes]':
  """Returns a figure and axes in pixels, with (0, 0) at the top left."""
  from matplotlib import figure as figure_lib

  width, height = math.ceil(width), math.ceil(height)
  result = figure_lib.Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
  axes = result.add_axes((0.0, 0.0, 1.0, 1.0))
  axes.set_xlim(0, width)
  axes.set_ylim(height, 0)
  axes.set_axis_off()
  return result, axes


def place(
  axes: 'axes_lib.Axes', image: np.ndarray, left: float, top: float
) -> None:
  """Draws an image uint8 [h, w, 3] on pixel axes, without scaling."""
  h, w = image.shape[:2]
  axes.imshow(
    image,
    extent=(left, left + w, top + h, top),
    aspect='auto',
    interpolation='none',
  )


def framed(tile: np.ndarray) -> np.ndarray:
  """Returns a tile [h, w, 3] with a thin frame, since it may be white."""
  sides = (1, 1), (1, 1), (0, 0)
  return np.pad(tile, sides, constant_values=_FRAME)


def shorten(text: str, width: float) -> str:
  """Cuts a text that is wider than `width` pixels."""
  letters = max(1, int(width / LETTER + 1e-6))
  return text if len(text) <= letters else f'{text[: letters - 1]}…'


def sheet(
  tiles: Sequence[Sequence[np.ndarray | None]],
  *,
  columns: Sequence[str] = (),
  rows: Sequence[str] = (),
  captions: Sequence[str] = (),
  scale: Scale | None = None,
) -> 'figure_lib.Figure':
  """Returns tiles in rows, with labels.

  Args:
    tiles: uint8 [h, w, 3], all of one size; None leaves a place empty.
    columns: Labels above the columns, in one line or more.
    rows: Labels before the rows.
    captions: Texts below the tiles, row by row, of one or more lines; cut if
      they are wider than a tile.
    scale: Colour scale of the tiles.
  """
  high, wide = next(x for row in tiles for x in row if x is not None).shape[:2]
  lines = max((text.count('\n') + 1 for text in captions), default=0)
  down, along = high + GAP + lines * LINE, wide + GAP
  letters = min(max(map(len, rows), default=0), _MOST_LETTERS)
  left = GAP + (math.ceil(letters * LETTER) + GAP if rows else 0)
  heads = [label.split('\n') for label in columns]
  start = GAP + (_BAR if scale else 0)
  top = start + LINE * max(map(len, heads), default=0)
  paper = _paste(tiles, down, along)
  width = max(left + paper.shape[1], 300 if scale else 0)
  height = top + paper.shape[0]
  result, axes = pixel_figure(width, height)
  place(axes, paper, left - 1, top - 1)
  middle = left + wide / 2
  for j, labels in enumerate(zip(*heads, strict=True)):
    _label(axes, labels, middle, along, start + (j + 0.5) * LINE)
  for i, label in enumerate(rows):
    label = shorten(label, letters * LETTER)
    where = left - GAP, top + i * down + high / 2
    axes.text(*where, label, ha='right', va='center')
  for i, text in enumerate(captions):
    row, column = divmod(i, len(tiles[0]))
    where = middle + column * along, top + row * down + high
    _caption(axes, text, where, wide)
  if scale:
    _color_bar(result, scale, left, height)
  return result


def _caption(
  axes: 'axes_lib.Axes', text: str, where: tuple[float, float], width: float
) -> None:
  """Writes the lines of a text, centred below a point."""
  for i, line in enumerate(text.split('\n')):
    y = where[1] + (i + 0.5) * LINE
    axes.text(where[0], y, shorten(line, width), ha='center', va='center')


def _paste(
  tiles: Sequence[Sequence[np.ndarray | None]], down: int, along: int
) -> np.ndarray:
  """Joins tiles into one image, since matplotlib draws hundreds slowly.

  From one row to the next are `down` pixels, and `along` between columns.
  """
  shape = 1 + len(tiles) * down, 1 + len(tiles[0]) * along, 3
  paper = np.full(shape, 255, np.uint8)
  for i, row in enumerate(tiles):
    for j, tile in enumerate(row):
      if tile is not None:
        h, w = tile.shape[:2]
        place = paper[i * down :, j * along :]
        place[: h + 2, : w + 2] = framed(tile)
  return paper


def _label(
  axes: 'axes_lib.Axes',
  labels: Sequence[str],
  start: float,
  pitch: float,
  y: float,
) -> None:
  """Writes labels in a row; leaves some out if they are too wide."""
  widest = max(map(len, labels), default=0) * LETTER
  step = math.ceil(widest / pitch) if len(labels) > 10 else 1
  for i in range(0, len(labels), max(step, 1)):
    text = shorten(labels[i], max(step, 1) * pitch)
    axes.text(start + i * pitch, y, text, ha='center', va='center')


def _color_bar(
  figure: 'figure_lib.Figure',
  scale: Scale,
  left: float,
  height: float,
) -> None:
  from matplotlib import cm
  from matplotlib import colors
  from matplotlib import ticker

  width, total = 240, figure.get_figwidth() * DPI
  thick = 10
  bottom = 1 - (2 * GAP + thick) / height
  where = left / total, bottom, width / total, thick / height
  norm = colors.Normalize(scale.low, scale.high)
  colorable = cm.ScalarMappable(norm, scale.colors)
  bar = figure.colorbar(
    colorable, cax=figure.add_axes(where), orientation='horizontal'
  )
  bar.outline.set_visible(False)  # type: ignore[operator]
  bar.set_label(scale.label, labelpad=1)
  if scale.ticks:
    places = np.linspace(scale.low, scale.high, len(scale.ticks))
    bar.set_ticks(places.tolist(), labels=scale.ticks)
  else:
    bar.locator = ticker.MaxNLocator(_TICKS)
    bar.update_ticks()


def save(figure: 'figure_lib.Figure', path: pathlib.Path) -> tuple[int, int]:
  """Writes a figure as PNG and SVG.

  Args:
    figure: Figure from this module, made within the same `style`.
    path: Path of both files, without suffix.

  Returns:
    (width, height) that it should have on a page, in pixels.

  Raises:
    UserError: It cannot be written.
  """
  for ending, metadata in (
    ('.png', {'Software': None}),
    ('.svg', {'Date': None}),
  ):
    file = path.with_name(path.name + ending)
    try:
      figure.savefig(file, dpi=figure.dpi, metadata=metadata)
    except OSError as e:
      raise safe_io.cannot_write(file, e) from e
  width, height = figure.get_size_inches() * DPI
  return round(width), round(height)
