"""Draws curves of several runs in one picture.

Needs matplotlib, which is in the extra [explore].
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools
import math
import pathlib
import re
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.config import UserError
from vit_jax.plots import canvas
from vit_jax.plots import paper
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
_COLUMNS = 3, 4  # of panels, from four panels on
_WIDTH, _HEIGHT, _LEGEND = 440, 330, 50  # pixels of a panel and the legend
_LINE_WIDTH = 1.6
_WORDS = {'miou': 'mIoU', 'iou': 'IoU', 'map': 'mAP', 'mfu': 'MFU'}
_SAMPLE = 60  # pixels before a name in the legend, for the sample of its line
# Pixels of letters of charts on a page, relative to letters of sheets in files.
_WIDER = 1.2 / style.DENSITY
_SMOOTHING = 0.05  # window of the mean, as a fraction of a panel's width
_LOG_RANGE = 100.0  # the axis of losses is logarithmic above this ratio
_MARKED = 25  # maximum number of points that are marked


@dataclasses.dataclass(frozen=True)
class Line:
  """A curve with N points, of one run or of several with the same config."""

  x: np.ndarray  # float [N]
  y: np.ndarray  # float [N], the mean over the runs; nan makes a gap
  # Minimum over several runs, float [N]; None for one run.
  low: np.ndarray | None = None
  # Maximum over several runs, float [N]; None for one run.
  high: np.ndarray | None = None


def check(path: pathlib.Path) -> None:
  """Checks that `draw` can write a picture, or raises a UserError."""
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
  """
  columns = _num_columns(len(panels))
  rows = -(-len(panels) // columns)
  room = rows * columns - len(panels)  # empty cells, where the legend goes
  smoothed = [x for name in smooth for x in panels.get(name, {}).values()]
  width = _window(smoothed)
  styles = {
    name: {'linestyle': dash, 'color': color, 'linewidth': _LINE_WIDTH}
    for name, (dash, color) in zip(
      names, itertools.cycle(itertools.product(_DASHES, _COLORS)), strict=False
    )
  }
  with canvas.style():
    height = rows * _HEIGHT + (0 if room else _LEGEND)
    figure = canvas.figure(columns * _WIDTH, height)
    figure.set_layout_engine('constrained', w_pad=0.1, h_pad=0.1, wspace=0.04)
    grid = figure.add_gridspec(rows, columns)
    for i, (metric, lines) in enumerate(panels.items()):
      cell = figure.add_subplot(grid[divmod(i, columns)])
      for name, line in lines.items():
        _draw_line(cell, line, styles[name], width if metric in smooth else 0.0)
      _finish(cell, metric, lines, x_label)
    note = ''
    if width:
      unit = {'step': 'steps', 'epoch': 'epochs'}.get(x_label, x_label)
      unit = unit.removeprefix('time (').removesuffix(')')
      thin = (
        ', thin: each value' if any(x.low is None for x in smoothed) else ''
      )
      width_text = f'{width:.0f}' if width >= 10 else f'{width:.2g}'
      note = f'Training: mean over {width_text} {unit}{thin}'
    if room:
      place = figure.add_subplot(grid[-1, -room:])
      place.set_axis_off()
      _add_legend(place, styles, note, loc='center left')
    else:
      wide = _WIDER * max(map(paper.width, names)) + _SAMPLE
      per_row = math.floor(columns * _WIDTH / wide)
      _add_legend(figure, styles, note, per_row, loc='outside lower center')
    try:
      figure.savefig(path)
    except OSError as e:
      raise safe_io.cannot_write(path, e) from e


def _num_columns(panels: int) -> int:
  """Returns the number of columns that leaves the fewest cells empty."""
  if panels <= _COLUMNS[0]:
    return panels
  if panels == 4:
    return 2
  return min(_COLUMNS, key=lambda columns: -panels % columns)


def title(metric: str) -> str:
  """Returns words for a metric: 'Learning rate (training)'."""
  source, _, name = metric.partition('/')
  words = [_WORDS.get(x, x) for x in re.split('[_/]', name or source)]
  text = ' '.join(words)
  if words[0] not in _WORDS.values():
    text = text[:1].upper() + text[1:]
  source = {'train': 'training'}.get(source, source)
  return f'{text} ({source})' if name else text


def _window(lines: Sequence[Line]) -> float:
  """Returns the width of the smoothing window; 0: points are too far apart."""
  xs = [line.x for line in lines if len(line.x) > 1]
  if not xs:
    return 0.0
  width = _SMOOTHING * (max(x.max() for x in xs) - min(x.min() for x in xs))
  nearest = min(np.diff(x).min() for x in xs)
  return float(width) if nearest <= width / 2 else 0.0


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
  finite = np.isfinite(y)
  sums, counts = (
    np.concatenate([[0.0], np.cumsum(values)])
    for values in (np.where(finite, y, 0.0), finite)
  )
  start = np.searchsorted(x, x - width / 2, 'left')
  end = np.searchsorted(x, x + width / 2, 'right')
  means = (sums[end] - sums[start]) / np.maximum(counts[end] - counts[start], 1)
  return np.where(finite, means, np.nan)


def _finish(
  cell: 'axes.Axes', metric: str, lines: Mapping[str, Line], x_label: str
) -> None:
  words = title(metric)
  cell.set_title(words)
  cell.set_xlabel(x_label)
  name = words.partition(' (')[0]
  is_abbreviated = name.split()[0] in _WORDS.values()
  cell.set_ylabel(name if is_abbreviated else name[:1].lower() + name[1:])
  values = np.concatenate([line.y for line in lines.values()])
  values = values[np.isfinite(values)]
  if metric.endswith('loss') and values.size and values.min() > 0:
    if values.max() / values.min() > _LOG_RANGE:
      canvas.make_log(cell.yaxis)


def _add_legend(
  owner: 'figure.Figure | axes.Axes',
  styles: Mapping[str, Mapping[str, Any]],
  note: str,
  per_row: int = 1,
  *,
  loc: Any,
) -> None:
  """Adds the legend of all panels, with a note above it."""
  from matplotlib import lines

  handles = [lines.Line2D([], [], **style) for style in styles.values()]
  owner.legend(
    handles,
    list(styles),
    loc=loc,
    ncols=max(1, min(len(styles), per_row)),
    title=note,
    alignment='left',
    frameon=False,
  )
