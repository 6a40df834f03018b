"""Draws curves of several runs in one picture.

Needs matplotlib, which is in the extra [explore].
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools
import math
import pathlib
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.config import UserError
from vit_jax.plots import canvas
from vit_jax.plots import style
from vit_jax.runs import safe_io

if TYPE_CHECKING:
  from matplotlib import axes
  from matplotlib import figure

ENDINGS = ('.png', '.pdf', '.svg')

# Grey replaces yellow, which is too pale for lines.
_COLORS = (
  style.BLUE,
  style.RED,
  style.GREEN,
  style.PURPLE,
  style.ORANGE,
  style.SKY,
  '#000000',
  style.GREY,
)
_DASHES = ('-', '--', ':')  # in turn, once all colours are used
_COLUMNS = 3
_WIDTH, _HEIGHT, _LEGEND = 460, 330, 50  # pixels of a panel and the legend
_SAMPLE = 60  # pixels before a name in the legend, for the sample of its line
_SMOOTHING = 0.05  # window of the mean, as a fraction of a panel's width
_LOG_RANGE = 100.0  # the axis of losses is logarithmic above this ratio
_MARKED = 25  # maximum number of points that are marked


@dataclasses.dataclass(frozen=True)
class Line:
  """A curve with N points, of one run or of several with the same config.

  Attributes:
    x: Float [N].
    y: Float [N], the mean over the runs; nan makes a gap.
    low: Minimum over several runs, float [N]; None for one run.
    high: Maximum over several runs, float [N]; None for one run.
  """

  x: np.ndarray
  y: np.ndarray
  low: np.ndarray | None = None
  high: np.ndarray | None = None


def check(path: pathlib.Path) -> None:
  """Checks that `draw` can write a picture.

  Raises:
    UserError: matplotlib is missing, or cannot write such a file there.
  """
  if path.suffix not in ENDINGS:
    raise UserError(
      f'--out={path}: its name must end in {" or ".join(ENDINGS)}'
    )
  if not path.parent.is_dir():
    raise UserError(f'--out={path}: there is no folder {path.parent}')
  try:
    canvas.check()
  except UserError as e:
    raise UserError(f"{e}, or give --out='' for the tables alone") from None


def draw(
  panels: Mapping[str, Mapping[str, Line]],
  names: Sequence[str],
  path: pathlib.Path,
  *,
  x_label: str,
  smooth: Sequence[str] = (),
) -> None:
  """Writes a picture with a panel for each metric, and one legend.

  Args:
    panels: Curves by metric, then by run.
    names: Names of all runs, in the order of the legend.
    path: Path of the picture; see `ENDINGS`.
    x_label: Label below each panel.
    smooth: Metrics to draw smoothed, in front of the unsmoothed curve. Each
      point is the mean over a range of x that is the same for all runs.

  Raises:
    UserError: It cannot be written.
  """
  columns = 2 if len(panels) in (2, 4) else min(len(panels), _COLUMNS)
  rows = -(-len(panels) // columns)
  with canvas.style():
    figure = canvas.figure(columns * _WIDTH, rows * _HEIGHT + _LEGEND)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    cells = list(grid.flat)
    styles = dict(zip(names, _styles(len(names)), strict=True))
    for cell, (metric, lines) in zip(cells, panels.items(), strict=False):
      _draw_panel(cell, metric, lines, styles, x_label, metric in smooth)
    for cell in cells[len(panels) :]:
      cell.set_axis_off()
    _add_legend(figure, styles, columns)
    try:
      figure.savefig(path)
    except OSError as e:
      raise safe_io.cannot_write(path, e) from e


def _draw_panel(
  cell: 'axes.Axes',
  metric: str,
  lines: Mapping[str, Line],
  styles: Mapping[str, Mapping[str, Any]],
  x_label: str,
  is_smoothed: bool,
) -> None:
  width = _window(lines.values()) if is_smoothed else 0.0
  for name, line in lines.items():
    _draw_line(cell, line, styles[name], width)
  _finish(cell, metric, lines, x_label)
  if width:
    has_thin = any(line.low is None for line in lines.values())
    _say_smoothed(cell, width, x_label, has_thin)


def _styles(count: int) -> list[dict[str, Any]]:
  """Returns the style of each line.

  The first lines are wider, so that they stay visible below others.
  """
  widths = np.linspace(2.0, 1.3, count)
  styles = itertools.cycle(itertools.product(_DASHES, _COLORS))
  return [
    {'linestyle': dash, 'color': color, 'linewidth': float(width)}
    for (dash, color), width in zip(styles, widths, strict=False)
  ]


def _window(lines: Iterable[Line]) -> float:
  """Returns the width of the smoothing window; 0: points are too far apart."""
  xs = [line.x for line in lines if len(line.x) > 1]
  if not xs:
    return 0.0
  width = _SMOOTHING * (max(x.max() for x in xs) - min(x.min() for x in xs))
  nearest = min(np.diff(x).min() for x in xs)
  return float(width) if nearest <= width / 2 else 0.0


def _say_smoothed(
  cell: 'axes.Axes', width: float, x_label: str, has_thin: bool
) -> None:
  unit = {'step': 'steps', 'epoch': 'epochs'}.get(x_label, x_label)
  unit = unit.removeprefix('time (').removesuffix(')')
  thin = '; thin: each value' if has_thin else ''
  text = f'mean over {width:.3g} {unit}{thin}'
  cell.set_title(text, loc='right', fontsize=8, fontweight='normal')


def _draw_line(
  cell: 'axes.Axes', line: Line, style: Mapping[str, Any], width: float
) -> None:
  marker = '.' if len(line.y) <= _MARKED else ''
  smooth = _smoothed(line.x, line.y, width)
  cell.plot(line.x, smooth, marker=marker, **style)
  if line.low is not None and line.high is not None:
    low, high = (_smoothed(line.x, y, width) for y in (line.low, line.high))
    color = style['color']
    cell.fill_between(line.x, low, high, color=color, alpha=0.2, linewidth=0)
  elif width:
    thin = {'linewidth': 0.7, 'alpha': 0.3, 'zorder': 1}
    cell.plot(line.x, line.y, **{**style, **thin})


def _smoothed(x: np.ndarray, y: np.ndarray, width: float) -> np.ndarray:
  """Returns means over `width` of x around each point; nan stays nan.

  x is ascending.
  """
  known = np.isfinite(y)
  sums, counts = (
    np.concatenate([[0.0], np.cumsum(values)])
    for values in (np.where(known, y, 0.0), known)
  )
  start = np.searchsorted(x, x - width / 2, 'left')
  end = np.searchsorted(x, x + width / 2, 'right')
  means = (sums[end] - sums[start]) / np.maximum(counts[end] - counts[start], 1)
  return np.where(known, means, np.nan)


def _finish(
  cell: 'axes.Axes', metric: str, lines: Mapping[str, Line], x_label: str
) -> None:
  cell.set_title(metric)
  cell.set_xlabel(x_label)
  cell.tick_params(labelbottom=True)  # also above other panels
  values = np.concatenate([line.y for line in lines.values()])
  values = values[np.isfinite(values)]
  if metric.endswith('loss') and values.size and values.min() > 0:
    if values.max() / values.min() > _LOG_RANGE:
      canvas.make_log(cell.yaxis)


def _add_legend(
  figure: 'figure.Figure',
  styles: Mapping[str, Mapping[str, Any]],
  columns: int,
) -> None:
  from matplotlib import lines

  wide = max(map(canvas.text_width, styles)) + _SAMPLE
  per_row = math.floor(columns * _WIDTH / wide)
  handles = [lines.Line2D([], [], **style) for style in styles.values()]
  figure.legend(
    handles,
    list(styles),
    loc='outside lower center',
    ncols=max(1, min(len(styles), per_row)),
    frameon=False,
  )
