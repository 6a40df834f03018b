"""Charts of numbers by layer.

In comments: L layers, H heads. Each function returns a figure of matplotlib,
made within `canvas.style`.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.plots import canvas
from vit_jax.plots import style

if TYPE_CHECKING:
  from matplotlib import axes as axes_lib
  from matplotlib import figure as figure_lib

_PANEL = 460, 330  # pixels
_NARROW = 5  # a logarithmic axis below this ratio has few powers of ten
_LEAST_SPAN = 10  # percent of accuracy; less would magnify noise


class Level(NamedTuple):
  """A horizontal line for comparison."""

  value: float
  label: str


class Panel(NamedTuple):
  """Values of all heads by layer."""

  values: np.ndarray  # float [L, H]
  label: str  # label of the axis, with the unit
  level: Level  # a line for comparison


def heads_by_depth(panels: Sequence[Panel]) -> 'figure_lib.Figure':
  """Draws the panels next to each other, with a point for each head."""
  figure = canvas.figure(_PANEL[0] * len(panels), _PANEL[1])
  cells = figure.subplots(1, len(panels), squeeze=False)[0]
  for cell, panel in zip(cells, panels, strict=True):
    layers = np.arange(len(panel.values))
    marks: Any = {'color': style.BLUE, 'alpha': 0.5, 'markersize': 4}
    for i, values in enumerate(panel.values.T):
      label = '' if i else 'a head'  # one entry of the legend
      cell.plot(layers, values, 'o', label=label, **marks)
    mean = panel.values.mean(axis=1)
    cell.plot(layers, mean, color=style.RED, label='mean of the heads')
    _draw_level(cell, panel.level)
    cell.set_ylabel(panel.label)
    _count_layers(cell, len(layers))
    cell.set_ylim(0, 1.08 * max(float(panel.values.max()), panel.level.value))
  _add_legend(figure, cells[0])
  return figure


def _add_legend(figure: 'figure_lib.Figure', cell: 'axes_lib.Axes') -> None:
  """Puts the legend of a panel above all panels, where no data are."""
  place: Any = {'loc': 'outside upper left', 'ncols': 3, 'frameon': False}
  figure.legend(*cell.get_legend_handles_labels(), **place)


def legend_entries(cells: 'Iterable[axes_lib.Axes]') -> dict[str, Any]:
  """Returns the handles of several panels by their labels, each label once."""
  entries: dict[str, Any] = {}
  for cell in cells:
    handles, labels = cell.get_legend_handles_labels()
    entries |= dict(zip(labels, handles, strict=True))
  return entries


def _draw_level(cell: 'axes_lib.Axes', level: Level) -> None:
  cell.axhline(
    level.value,
    color=style.PALE,
    linestyle='--',
    linewidth=1,
    label=level.label,
  )


def _count_layers(cell: 'axes_lib.Axes', count: int) -> None:
  """Labels the layers below a panel; every layer if they are few."""
  from matplotlib import ticker

  cell.set_xlabel('layer')
  cell.set_xlim(-0.5, count - 0.5)
  cell.xaxis.set_major_locator(ticker.MaxNLocator(12, integer=True))


def norms_by_depth(
  patches: np.ndarray, prefix_tokens: Mapping[str, np.ndarray]
) -> 'figure_lib.Figure':
  """Draws the norms of tokens by layer, on a logarithmic axis.

  Args:
    patches: Norms of patch tokens, float [L, M], M over images and patches.
    prefix_tokens: Mean norms of other tokens by their name, float [L].
  """
  from matplotlib import ticker

  figure = canvas.figure(_PANEL[0] * 1.5, _PANEL[1])
  cell = figure.subplots()
  layers = np.arange(len(patches))
  low, middle, high = np.percentile(patches, (5, 50, 95), axis=1)
  band: Any = {'color': style.BLUE, 'alpha': 0.25, 'linewidth': 0}
  cell.fill_between(layers, low, high, label='patches, 5% to 95%', **band)
  cell.plot(layers, middle, color=style.BLUE, label='patches, median')
  top = patches.max(axis=1)
  cell.plot(layers, top, '.:', color=style.BLUE, label='patches, largest')
  colors = (style.RED, style.PURPLE, style.GREEN)
  for i, (name, norms) in enumerate(prefix_tokens.items()):
    cell.plot(layers, norms, '.-', color=colors[i % len(colors)], label=name)
  # Plain numbers as labels, also for some values between powers of ten.
  canvas.make_log(cell.yaxis)
  span = top.max() / low.min()
  if span < _NARROW:
    cell.yaxis.set_major_locator(ticker.MaxNLocator(6))
    cell.yaxis.set_minor_locator(ticker.NullLocator())
  else:
    subticks = '235' if span < 4 * _NARROW else '25'
    cell.yaxis.set_minor_formatter(
      ticker.FuncFormatter(
        lambda x, _: f'{x:g}' if f'{x:e}'.startswith((*subticks,)) else ''
      )
    )
  cell.set_ylabel('norm of the token')
  _count_layers(cell, len(layers))
  figure.legend(loc='outside right center', frameon=False)
  return figure


def accuracy_by_depth(
  accuracy: np.ndarray, intervals: np.ndarray, chance: Level
) -> 'figure_lib.Figure':
  """Draws the accuracy of each layer.

  Args:
    accuracy: Float [L], 0 to 1.
    intervals: Confidence intervals, float [L, 2].
    chance: The accuracy of guessing.
  """
  figure = canvas.figure(_PANEL[0] * 1.5, _PANEL[1])
  cell = figure.subplots()
  layers = np.arange(len(accuracy))
  # Rounding may give a side of an interval the wrong sign.
  sides = np.abs(intervals.T - accuracy)
  line: Any = {
    'color': style.BLUE,
    'capsize': 3,
    'label': 'accuracy, 95% interval',
  }
  cell.errorbar(layers, accuracy, sides, fmt='.-', **line)
  _draw_level(cell, chance)
  cell.set_ylabel('accuracy')
  cell.set_ylim(0, 1.02)
  _count_layers(cell, len(layers))
  _add_legend(figure, cell)
  return figure


def accuracy_by_speed(
  speed: np.ndarray,
  accuracy: np.ndarray,
  intervals: np.ndarray | None,
  names: Sequence[str],
  knee: int | None,
) -> 'figure_lib.Figure':
  """Draws the accuracy of a model at several speeds.

  Args:
    speed: Images per second, float [N].
    accuracy: Float [N], 0 to 1.
    intervals: 95% confidence intervals, float [N, 2]; None: not known.
    names: Names of the points.
    knee: Index of a point that is marked; None: none is.
  """
  figure = canvas.figure(_PANEL[0] * 1.5, _PANEL[1])
  cell = figure.subplots()
  order = np.argsort(speed)
  line: Any = {'color': style.BLUE, 'capsize': 3, 'label': 'accuracy'}
  sides = None
  if intervals is not None:
    sides = 100 * np.abs(intervals.T - accuracy)[:, order]
    line['label'] = 'accuracy, 95% interval'
  percent = 100 * accuracy
  cell.errorbar(speed[order], percent[order], sides, fmt='.-', **line)
  if knee is not None:
    label = f'the knee: {names[knee]}'
    at = speed[knee], percent[knee]
    cell.plot(*at, 'o', color=style.RED, markersize=8, label=label)
  for x, y, name in zip(speed, percent, names, strict=True):
    cell.annotate(
      name, (x, y), textcoords='offset points', xytext=(4, 6), fontsize=8
    )
  low, high = 100 * min(accuracy), 100 * max(accuracy)
  middle, half = (low + high) / 2, max((high - low) * 0.75, _LEAST_SPAN / 2)
  cell.set_ylim(middle - half, middle + half)
  cell.set_xlabel('images per second, on one device')
  cell.set_ylabel('accuracy (%)')
  _add_legend(figure, cell)
  return figure
