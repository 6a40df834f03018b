"""Charts: figures of matplotlib in the common style, and files of pictures.

Needs matplotlib, which is in the extra [explore]. Figures are made without
pyplot, which would keep them in memory.
"""

from collections.abc import Iterator
import contextlib
import pathlib
from typing import Any
from typing import TYPE_CHECKING
import warnings

import numpy as np

from vit_jax.config import check_package
from vit_jax.plots import paper
from vit_jax.plots import style as style_lib
from vit_jax.runs import safe_io

if TYPE_CHECKING:
  from matplotlib import axis as axis_lib
  from matplotlib import figure as figure_lib

# For scripts that DejaVu Sans does not have.
_MORE_FONTS = (
  *(f'Noto Sans {x}' for x in ('CJK JP', 'CJK SC', 'JP', 'SC')),
  *('WenQuanYi Micro Hei', 'WenQuanYi Zen Hei', 'Droid Sans Fallback'),
  *(f'Noto Sans {x}' for x in ('Devanagari', 'Bengali', 'Tamil', 'Thai')),
  'Arial Unicode MS',
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


def check() -> None:
  """Raises a UserError if matplotlib is missing."""
  check_package('a picture', 'matplotlib', 'explore')


@contextlib.contextmanager
def style() -> Iterator[None]:
  """Returns the context in which figures are made and saved."""
  import matplotlib
  from matplotlib import font_manager

  installed = set(font_manager.get_font_names())
  fonts = ['DejaVu Sans', *(x for x in _MORE_FONTS if x in installed)]
  style = _STYLE | {'font.family': fonts}
  with matplotlib.rc_context(style), warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'Glyph')  # names may be in any script
    yield


def figure(width: float, height: float) -> 'figure_lib.Figure':
  """Returns an empty figure for charts, with constrained layout.

  Its sides are in pixels of the page.
  """
  from matplotlib import figure as figure_lib

  inches = style_lib.DPI / style_lib.DENSITY
  size = width / inches, height / inches
  dpi = style_lib.DPI
  return figure_lib.Figure(figsize=size, dpi=dpi, layout='constrained')


def make_log(axis: 'axis_lib.XAxis | axis_lib.YAxis') -> None:
  """Makes an axis logarithmic, with plain numbers at the powers of ten.

  Matplotlib's own labels are formulas, which the style does not parse.
  """
  from matplotlib import ticker

  axis.axes.set(**{f'{axis.axis_name}scale': 'log'})
  axis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  axis.set_minor_formatter(ticker.NullFormatter())


def save(
  picture: 'figure_lib.Figure | np.ndarray', path: pathlib.Path
) -> tuple[int, int]:
  """Writes a picture: a chart as PNG and SVG, a sheet as PNG.

  Args:
    picture: Figure from this module, made within the same `style`; or pixels,
      uint8 [H, W, 3].
    path: Path of the files, without suffix.

  Returns:
    (width, height) that it should have on a page, in pixels.
  """
  png = path.with_name(f'{path.name}.png')
  if isinstance(picture, np.ndarray):
    paper.save(png, picture)
    height, width = picture.shape[:2]
    return width // style_lib.DENSITY, height // style_lib.DENSITY
  for file, metadata in (
    (png, {'Software': None}),
    (path.with_name(f'{path.name}.svg'), {'Date': None}),
  ):
    try:
      picture.savefig(file, dpi=picture.dpi, metadata=metadata)
    except OSError as e:
      raise safe_io.cannot_write(file, e) from e
  inches = picture.get_size_inches() * style_lib.DPI / style_lib.DENSITY
  return round(inches[0]), round(inches[1])
