"""Draws the result of a sweep as one picture."""

from collections.abc import Callable
from collections.abc import Sequence
import math
import pathlib
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.config import counted
from vit_jax.plots import canvas
from vit_jax.plots import charts
from vit_jax.plots import curves
from vit_jax.plots import matrix
from vit_jax.plots import paper
from vit_jax.plots import scales
from vit_jax.plots import style
from vit_jax.runs import safe_io
from vit_jax.sweep import board as board_lib
from vit_jax.sweep import space as space_lib
from vit_jax.sweep import study as study_lib

if TYPE_CHECKING:
  from matplotlib import axes
  from matplotlib import figure as figure_lib

_COLUMNS = 3
_WIDTH, _HEIGHT = 4.6, 3.6  # of a panel, in inches
_LETTERS = 30  # below a panel; longer labels are rotated
_ROOM = 4.0  # range of the y axis, in distances of the median from the best
_BEYOND = ('below the panel', 'above the panel')
_MARKS: dict[str, dict[str, Any]] = {
  'pruned': {'marker': 'x', 'color': style.GREY, 'markersize': 6},
  _BEYOND[0]: {'marker': 'v', 'color': style.GREY, 'markersize': 6},
  _BEYOND[1]: {'marker': '^', 'color': style.GREY, 'markersize': 6},
  'failed': {'marker': '|', 'color': style.RED, 'markersize': 9},
  'best': {
    'marker': '*',
    'color': style.ORANGE,
    'markeredgecolor': 'black',
    'markersize': 14,
    'zorder': 5,
  },
}
_COMPLETE = ('complete', 'mean of the seeds, its 95% interval')
_LOG_RATIO = 10.0  # the axis of a choice is logarithmic above this ratio
_EMPTY = '#EEEEEE'  # cells of a grid without a value


def draw(
  rows: Sequence[study_lib.Row], sweep: space_lib.Sweep, path: pathlib.Path
) -> None:
  """Writes the picture, if there are a key and a value to draw.

  A grid over two keys becomes a heat map. Otherwise each key has a panel that
  shows the trials over its values.
  """
  valued = [row for row in rows if _value(row) is not None]
  if not valued or not sweep.space:
    return
  states = ('complete', 'pruned', 'failed')
  counts = {x: sum(row.state == x for row in rows) for x in states}
  by_state = ', '.join(f'{n} {x}' for x, n in counts.items() if n)
  title = f'{counted(len(rows), "trial")}: {by_state}'
  if sweep.sampler == 'grid' and len(sweep.space) == 2:
    best = _best(rows, sweep)
    title += f'; framed is the {_best_label(best)}' if best else ''
    pixels = matrix.titled(title, _draw_map(rows, sweep, best))
    with safe_io.replacing_path(path) as temporary:
      paper.save(temporary, pixels)
    return
  with canvas.style():
    figure = canvas.figure(_WIDTH, _HEIGHT)  # its size depends on the content
    _draw_panels(figure, rows, sweep)
    figure.suptitle(title, x=0.01, ha='left', fontsize=11)
    with safe_io.replacing_path(path) as temporary:
      figure.savefig(temporary, format='png')


def _value(row: study_lib.Row) -> float | None:
  is_finite = row.value is not None and math.isfinite(row.value)
  has_value = is_finite and row.state in ('complete', 'pruned')
  return row.value if has_value else None


def _best(
  rows: Sequence[study_lib.Row], sweep: space_lib.Sweep
) -> study_lib.Row | None:
  first = board_lib.ranked(rows, sweep)[0]
  return first if first.state == 'complete' else None


def _best_label(best: study_lib.Row) -> str:
  return f'best: {_text(best)} (trial {best.number})'


def _draw_panels(
  figure: 'figure_lib.Figure',
  rows: Sequence[study_lib.Row],
  sweep: space_lib.Sweep,
) -> None:
  keys = sorted(sweep.space)
  columns = 2 if len(keys) in (2, 4) else min(len(keys), _COLUMNS)
  lines = -(-len(keys) // columns)
  width = max(columns * _WIDTH, 7.5)  # room for the title
  figure.set_size_inches(width, lines * _HEIGHT + 0.9)
  cells = figure.subplots(lines, columns, squeeze=False, sharey=True)
  # The worst value that the panels show: diverged runs would otherwise take all
  # of the space.
  sign = 1 if sweep.direction == 'maximize' else -1
  values = [sign * x for row in rows if (x := _value(row)) is not None]
  room = _ROOM * (max(values) - float(np.median(values)))
  edge = sign * min(values)
  if room:
    edge = sign * max(min(values), max(values) - room)
  for i, cell in enumerate(cells.flat):
    if i >= len(keys):
      cell.set_axis_off()
      continue
    _draw_panel(cell, rows, sweep, keys[i], edge)
    cell.set_xlabel(keys[i])
    if i % columns == 0:
      cell.set_ylabel(curves.title(sweep.metric))
  entries = charts.legend_entries(cells.flat)
  # Matplotlib puts entries with error bars last; they belong in front.
  names = sorted(entries, key=lambda name: name not in _COMPLETE)
  figure.legend(
    [entries[name] for name in names],
    names,
    loc='outside lower center',
    ncols=5,
    frameon=False,
  )


def _draw_panel(
  cell: 'axes.Axes',
  rows: Sequence[study_lib.Row],
  sweep: space_lib.Sweep,
  key: str,
  edge: float,
) -> None:
  place = _axis(cell, sweep.space[key])
  kinds = _kinds([row for row in rows if key in row.point], sweep, edge)

  def xs(kind_rows: Sequence[study_lib.Row]) -> list[float]:
    return [place(row.point[key], row.number) for row in kind_rows]

  complete = kinds.pop('complete')
  halves = [board_lib.spread(row) for row in complete]
  several = any(map(math.isfinite, halves))
  cell.errorbar(
    xs(complete),
    [row.value or 0.0 for row in complete],
    yerr=np.nan_to_num(halves) if several else None,
    fmt='o',
    color=style.BLUE,
    ecolor=style.BLUE + '80',
    markersize=5,
    capsize=2,
    label=_COMPLETE[several],
  )
  for kind, kind_rows in kinds.items():
    if kind_rows:
      ys = [edge if kind in _BEYOND else row.value or 0.0 for row in kind_rows]
      mark = dict(_MARKS[kind])
      if kind == 'failed':  # at the bottom of the axes
        ys, mark['transform'] = [0.03] * len(ys), cell.get_xaxis_transform()
      label = _best_label(kind_rows[0]) if kind == 'best' else kind
      cell.plot(xs(kind_rows), ys, linestyle='', label=label, **mark)


def _kinds(
  rows: Sequence[study_lib.Row], sweep: space_lib.Sweep, edge: float
) -> dict[str, list[study_lib.Row]]:
  names = ('complete', *_MARKS)
  kinds: dict[str, list[study_lib.Row]] = {name: [] for name in names}
  upwards = sweep.direction == 'maximize'
  best = _best(rows, sweep)
  for row in rows:
    value = _value(row)
    if value is None:
      if row.state == 'failed':
        kinds['failed'].append(row)
    elif (value < edge) if upwards else (value > edge):
      kinds[_BEYOND[not upwards]].append(row)
    else:
      kinds[row.state].append(row)
    if best is not None and row.number == best.number:
      kinds['best'].append(row)
  return kinds


def _axis(
  cell: 'axes.Axes', dimension: space_lib.Dimension
) -> Callable[[Any, int], float]:
  """Sets up the x axis; returns the place of a value of a trial on it."""
  from matplotlib import ticker

  if isinstance(dimension, space_lib.Range):
    if dimension.is_integer:
      cell.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    elif dimension.log:
      canvas.make_log(cell.xaxis)
      # The whole range: a part may contain no power of ten, and so no label.
      cell.set_xlim(dimension.low / 1.2, dimension.high * 1.2)
    return lambda value, _: float(value)
  values = dimension.values
  if all(type(x) in (int, float) and math.isfinite(x) for x in values):
    low, high = min(values), max(values)
    if low > 0 and high / low >= _LOG_RATIO:
      canvas.make_log(cell.xaxis)
    if len(values) < 8:
      cell.set_xticks(values, [f'{x:g}' for x in values], minor=False)
      cell.minorticks_off()
    return lambda value, _: float(value)
  texts = [space_lib.show_value(x) for x in values]
  turned = sum(map(len, texts)) > _LETTERS
  rotation, align = (20, 'right') if turned else (0, 'center')
  cell.set_xticks(range(len(texts)), texts, rotation=rotation, ha=align)
  cell.set_xlim(-0.5, len(texts) - 0.5)
  # Points are spread a little, by the golden ratio, so as not to overlap.
  return lambda value, number: (
    values.index(value) + 0.3 * ((0.618 * number + 0.5) % 1 - 0.5)
  )


def _draw_map(
  rows: Sequence[study_lib.Row],
  sweep: space_lib.Sweep,
  best: study_lib.Row | None,
) -> np.ndarray:
  """Returns a heat map of a grid over two keys, uint8 [H, W, 3]."""
  sides = ((key, space_lib.values(x)) for key, x in sweep.space.items())
  (y_key, ys), (x_key, xs) = sorted(sides, key=lambda side: len(side[1]))
  ys = ys[::-1]  # the first row is on top
  framed = None
  means = np.full((len(ys), len(xs)), np.nan)
  texts = np.full(means.shape, '', object)
  for row in rows:
    if not row.point.keys() >= sweep.space.keys():
      continue
    at = ys.index(row.point[y_key]), xs.index(row.point[x_key])
    value = _value(row)
    if row.state == 'complete' and value is not None:
      means[at] = value
    texts[at] = row.state if value is None else _text(row)
    if row.state == 'pruned' and value is not None:
      texts[at] += ', pruned'
    if row is best:
      framed = at
  names = (
    [space_lib.show_value(y) for y in ys],
    [*map(space_lib.show_value, xs)],
  )
  finite = means[np.isfinite(means)]
  limits = (float(finite.min()), float(finite.max())) if len(finite) else (0, 1)
  label = curves.title(sweep.metric)
  return scales.heat_map(
    means,
    texts,
    names,
    (y_key, x_key),
    limits,
    label,
    empty=_EMPTY,
    framed=framed,
  )


def _text(row: study_lib.Row) -> str:
  """Returns a trial's value, with its interval if there are several seeds."""
  half = board_lib.spread(row)
  interval = f' ± {half:.2g}' if math.isfinite(half) else ''
  return f'{row.value:.4g}{interval}'
