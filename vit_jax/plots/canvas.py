"""Figures: a common style, sheets laid out in pixels, and files.

Needs matplotlib, which is in the extra [explore]. Figures are made without
pyplot, which would keep them in memory.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import itertools
import math
import pathlib
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING
import warnings

import numpy as np

from vit_jax.config import check_package
from vit_jax.plots import style as style_lib
from vit_jax.plots import texts as texts_lib
from vit_jax.plots import tiles as tiles_lib
from vit_jax.runs import safe_io

if TYPE_CHECKING:
  from matplotlib import axes as axes_lib
  from matplotlib import axis as axis_lib
  from matplotlib import figure as figure_lib

DPI = texts_lib.DPI  # resolution of sheets; charts have twice as much
LINE = 17  # pixels of a line of text
GAP = 4  # pixels between tiles
_FRAME = 0xC8  # the grey level of FAINT
_TICKS = 4  # approximate number of ticks of a colour scale
_BETWEEN = 0.18  # least part of a colour scale from a tick to its ends
_BEFORE = 182  # largest width in pixels of the labels of rows
_APART = 16  # more pixels between groups of tiles
_BAR = 60  # pixels of the colour scale above a sheet, with its labels
_BAR_WIDTH, _BAR_HEIGHT = 240, 10  # pixels of its colours
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
  'axes.edgecolor': style_lib.PALE,
  'axes.labelcolor': style_lib.INK,
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.color': '#E6E6E6',
  'text.color': style_lib.INK,
  'text.parse_math': False,  # a $ in a name is a $
  'xtick.color': style_lib.INK,
  'ytick.color': style_lib.INK,
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
  check_package('a picture', 'matplotlib', 'explore')


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


def sheet(
  tiles: Sequence[Sequence[np.ndarray | None]],
  *,
  title: str = '',
  columns: Sequence[str] = (),
  corner: str = '',
  rows: Sequence[str] = (),
  captions: Sequence[str] = (),
  group: int = 0,
  scale: Scale | None = None,
) -> 'figure_lib.Figure':
  """Returns tiles in rows, with labels.

  Labels and captions have one or more lines. What is too wide is shortened as
  `texts.shorten` does, so that different lines stay different.

  Args:
    tiles: uint8 [h, w, 3], all of one size; None leaves a place empty.
    title: A line above all.
    columns: Labels above the columns.
    corner: Says before the lines of `columns` what they are; needs `rows`.
    rows: Labels before the rows.
    captions: Texts below the tiles, row by row.
    group: Number of tiles of a row that belong together; 0: all of them.
    scale: Colour scale of the tiles.
  """
  high, wide = next(x for row in tiles for x in row if x is not None).shape[:2]
  labels = _Labels(
    heads=[label.split('\n') for label in columns],
    corner=corner.split('\n'),
    before=_lines(rows, _BEFORE),
    below=_lines(captions, wide - GAP),
  )
  start = GAP + (LINE if title else 0)
  top = start + (_BAR if scale else 0) + LINE * _most(labels.heads)
  left = GAP + labels.width
  down = (
    max(high, LINE * _most(labels.before)) + GAP + LINE * _most(labels.below)
  )
  xs = [j * (wide + GAP) for j in range(len(tiles[0]))]
  if group:
    xs = [x + j // group * _APART for j, x in enumerate(xs)]
  paper = _paste(tiles, down, xs)
  bar = _Bar(scale, left) if scale else None
  width = max(left + paper.shape[1], bar.right if bar else 0)
  figure, axes = pixel_figure(width, top + paper.shape[0])
  place(axes, paper, left - 1, top - 1)
  if title:
    _write(axes, texts_lib.shorten([title], width - 2 * GAP), GAP, GAP, 'left')
  labels.write(axes, (left, top), (high, wide), down, xs)
  if bar:
    bar.draw(figure, start)
  return figure


class _Labels(NamedTuple):
  """Lines of the labels of a sheet; see `sheet`."""

  heads: list[list[str]]
  corner: list[str]
  before: list[list[str]]
  below: list[list[str]]

  @property
  def width(self) -> int:
    """Pixels before the tiles."""
    if not self.before:
      return 0
    lines = itertools.chain(self.corner, *self.before)
    return math.ceil(max(map(texts_lib.width, lines))) + GAP

  def write(
    self,
    axes: 'axes_lib.Axes',
    corner: tuple[int, int],
    size: tuple[int, int],
    down: int,
    xs: Sequence[int],
  ) -> None:
    """Writes the labels around tiles.

    Args:
      axes: Axes in pixels.
      corner: (left, top) of the first tile.
      size: (height, width) of a tile.
      down: Pixels from one row to the next.
      xs: Pixels from the first column to each.
    """
    (left, top), (high, wide) = corner, size
    above = top - LINE * _most(self.heads)
    middles = [left + x + wide / 2 for x in xs]
    if self.before:
      _write(axes, self.corner, left - GAP, above, 'right')
    for j, labels in enumerate(zip(*self.heads, strict=True)):
      _label(axes, labels, middles, wide + GAP, above + (j + 0.5) * LINE)
    tall = max(high, LINE * _most(self.before))
    for i, lines in enumerate(self.before):
      y = top + i * down + (tall - LINE * len(lines)) / 2
      _write(axes, lines, left - GAP, y, 'right')
    for i, lines in enumerate(self.below):
      row, column = divmod(i, len(xs))
      _write(axes, lines, middles[column], top + row * down + high, 'center')


def _most(lines: Sequence[Sequence[str]]) -> int:
  """Returns the largest number of lines of a label."""
  return max(map(len, lines), default=0)


def _lines(texts: Sequence[str], width: float) -> list[list[str]]:
  """Returns the lines of texts, each shortened to a width in pixels."""
  found = [text.split('\n') for text in texts]
  for i in range(_most(found)):
    lines = [lines for lines in found if len(lines) > i]
    short = texts_lib.shorten([x[i] for x in lines], width)
    for each, line in zip(lines, short, strict=True):
      each[i] = line
  return found


def _write(
  axes: 'axes_lib.Axes', lines: Sequence[str], x: float, y: float, side: str
) -> None:
  """Writes lines of text below the height y, with a side or the center at x."""
  for i, line in enumerate(lines):
    axes.text(x, y + (i + 0.5) * LINE, line, ha=side, va='center')


def _paste(
  tiles: Sequence[Sequence[np.ndarray | None]], down: int, xs: Sequence[int]
) -> np.ndarray:
  """Joins tiles into one image, since matplotlib draws hundreds slowly.

  From one row to the next are `down` pixels; the columns begin at `xs`.
  """
  wide = next(x for row in tiles for x in row if x is not None).shape[1]
  shape = 1 + len(tiles) * down, 1 + xs[-1] + wide + GAP, 3
  paper = np.full(shape, 255, np.uint8)
  for i, row in enumerate(tiles):
    for x, tile in zip(xs, row, strict=True):
      if tile is not None:
        h, w = tile.shape[:2]
        place = paper[i * down :, x:]
        place[: h + 2, : w + 2] = framed(tile)
  return paper


def _label(
  axes: 'axes_lib.Axes',
  labels: Sequence[str],
  middles: Sequence[float],
  pitch: float,
  y: float,
) -> None:
  """Writes labels in a row; leaves some out if they are too wide."""
  widest = max(map(texts_lib.width, labels))
  step = math.ceil(widest / pitch) if len(labels) > 10 else 1
  step = max(step, 1)
  shown = texts_lib.shorten(labels[::step], step * pitch)
  for x, text in zip(middles[::step], shown, strict=True):
    axes.text(x, y, text, ha='center', va='center')


class _Bar:
  """The colour scale of a sheet, whose labels have room on both sides.

  Attributes:
    right: Where it ends, in pixels.
  """

  def __init__(self, scale: Scale, left: float) -> None:
    self._scale = scale
    self._places, self._labels = _ticks(scale)
    sides = [texts_lib.width(self._labels[i]) / 2 + GAP for i in (0, -1)]
    self._left = max(left, sides[0])
    self.right = self._left + _BAR_WIDTH + sides[1]

  def draw(self, figure: 'figure_lib.Figure', top: float) -> None:
    """Draws it below a height in pixels."""
    from matplotlib import cm
    from matplotlib import colors

    scale = self._scale
    width, height = (float(n * DPI) for n in figure.get_size_inches())
    bottom = 1 - (top + GAP + _BAR_HEIGHT) / height
    size = _BAR_WIDTH / width, _BAR_HEIGHT / height
    norm = colors.Normalize(scale.low, scale.high)
    bar = figure.colorbar(
      cm.ScalarMappable(norm, scale.colors),
      cax=figure.add_axes((self._left / width, bottom, *size)),
      orientation='horizontal',
    )
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label(scale.label, labelpad=1)
    bar.set_ticks(self._places, labels=self._labels)


def _ticks(scale: Scale) -> tuple[list[float], list[str]]:
  """Returns places and labels along a scale, among them both of its ends."""
  from matplotlib import ticker

  low, high = scale.low, scale.high
  if scale.ticks:
    return [*np.linspace(low, high, len(scale.ticks))], [*scale.ticks]
  least = _BETWEEN * (high - low)
  even = ticker.MaxNLocator(_TICKS).tick_values(low, high)
  inner = [float(x) for x in even if low + least < x < high - least]
  places = list(dict.fromkeys([low, *inner, high]))
  return places, [
    f'{x + 0.0:.3g}'.replace('-', '\N{MINUS SIGN}') for x in places
  ]


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
