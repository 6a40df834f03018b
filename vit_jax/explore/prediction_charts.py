"""Charts of predictions: probabilities, reliability, maps of embeddings.

Functions return figures of matplotlib, made within `canvas.style`, but for
`bars`, which needs no matplotlib.
"""

from collections.abc import Sequence
import functools
import math
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.explore import predictions
from vit_jax.plots import canvas
from vit_jax.plots import paper as paper_lib
from vit_jax.plots import style
from vit_jax.plots import texts
from vit_jax.plots import tiles as tiles_lib

if TYPE_CHECKING:
  from matplotlib import axes as axes_lib
  from matplotlib import figure as figure_lib

_THUMBNAIL = 216  # pixels of the file, as the lengths of bars
_ROW, _NAME, _LONGEST, _NUMBER = 42, 300, 300, 88
_COLUMNS = 2  # of images with their bars
_MAP = 1030, 600  # pixels of the two panels together
_PANEL = 400, 520  # approximate pixels of a panel for points
_ON_MAP = 22  # pixels of a thumbnail on a map
_DISTANCE = 28  # minimum pixels between the centres of two thumbnails
_NEIGHBOURS = 10  # number of neighbours whose labels are compared
_MOST_THUMBNAILS = 90
_LISTED = 20  # largest number of classes that a legend names
_RELIABILITY = 480, 540  # pixels of both panels together
LEAST_IN_BAR = 5  # examples; the accuracy of fewer says nothing
_FULL = 30  # examples of a bar that does not fade
_GAP: Any = {
  'facecolor': 'none',
  'edgecolor': style.RED,
  'hatch': '////',
  'linewidth': 0.8,
}


class ClassBar(NamedTuple):
  """A class with its probability, and whether it is the label."""

  name: str
  probability: float
  right: bool = False


def bars(
  images: np.ndarray,
  captions: Sequence[str],
  classes: Sequence[Sequence[ClassBar]],
) -> np.ndarray:
  """Returns images with the probabilities of a few classes, uint8 [h, w, 3].

  images: uint8 [B, H, W, 3].
  """
  gap, line = paper_lib.GAP, paper_lib.LINE
  scale = _THUMBNAIL / max(images.shape[1:3])
  high, wide = (max(1, round(n * scale)) for n in images.shape[1:3])
  names = [prediction.name for row in classes for prediction in row]
  room = min(_NAME, math.ceil(max(map(paper_lib.width, names))))
  pitch = _THUMBNAIL + room + _LONGEST + _NUMBER + 6 * gap
  down = line + max(high, max(map(len, classes)) * _ROW) + 3 * gap
  columns = min(_COLUMNS, len(images))
  bold = functools.partial(paper_lib.width, bold=True)
  short = texts.shorten(captions, pitch - 3 * gap, bold)
  paper = paper_lib.Paper(
    columns * pitch, gap + -(-len(images) // columns) * down
  )
  for i, (image, text, row) in enumerate(
    zip(images, short, classes, strict=True)
  ):
    left, top = gap + i % columns * pitch, gap + i // columns * down
    paper.write([text], left, top, bold=True)
    top += line + gap // 2
    paper.paste(tiles_lib.fit(image, (high, wide)), left, top)
    _draw_bars(paper, left + _THUMBNAIL + room + 2 * gap, top, row, room)
  return paper.pixels


def _draw_bars(
  paper: paper_lib.Paper,
  start: float,
  top: float,
  classes: Sequence[ClassBar],
  room: float,
) -> None:
  names = texts.shorten(
    [prediction.name for prediction in classes], room, paper_lib.width
  )
  gap = paper_lib.GAP
  for i, (_, probability, right) in enumerate(classes):
    y = top + i * _ROW
    paper.write([names[i]], start - gap, y, align=1)
    colour = style.GREEN if right else style.BLUE
    width = max(probability * _LONGEST, 2)
    paper.fill(start, y + 4, width, _ROW - 10, colour)
    paper.write([f'{probability:.1%}'], start + width + gap, y)


def reliability(
  bins: Sequence[predictions.Bin], error: float
) -> 'figure_lib.Figure':
  """Returns a reliability diagram, with the share of examples below.

  A bar is the accuracy in a range of confidence. It fades with the number of
  examples, and is left out below `LEAST_IN_BAR`.
  """
  figure = canvas.figure(*_RELIABILITY)
  above, below = figure.subplots(
    2, 1, sharex=True, gridspec_kw={'height_ratios': [3, 1]}
  )
  above.plot([0, 1], [0, 1], '--', color=style.PALE, label='calibrated')
  wide = 0.9 / predictions.BINS
  for bin_ in bins:
    if bin_.examples < LEAST_IN_BAR:
      continue
    x = _middle(bin_)
    alpha = float(np.clip(bin_.examples / _FULL, 0.25, 1))
    above.bar(x, bin_.accuracy, wide, color=style.BLUE, alpha=alpha)
    gap = bin_.confidence - bin_.accuracy
    above.bar(x, gap, wide, bin_.accuracy, alpha=alpha, **_GAP)
    above.vlines(x, *bin_.interval, color=style.INK, linewidth=1)
  # Empty marks, since bars of the legend must not fade.
  above.bar(0, 0, 0, color=style.BLUE, label='accuracy')
  above.bar(0, 0, 0, label='gap to the confidence', **_GAP)
  above.plot([], [], color=style.INK, linewidth=1, label='95% interval')
  above.text(0.03, 0.94, f'ECE {error:.3f}', va='center', weight='bold')
  above.set_ylabel('accuracy')
  above.set_xlim(0, 1)
  above.set_ylim(0, 1)
  figure.legend(loc='outside upper left', frameon=False, ncols=2)
  total = sum(b.examples for b in bins)
  shares = [100 * b.examples / total for b in bins]
  below.bar([_middle(b) for b in bins], shares, wide, color=style.BLUE)
  below.set_ylabel('examples (%)')
  below.set_xlabel('confidence (probability of the predicted class)')
  return figure


def _middle(bin_: predictions.Bin) -> float:
  """Returns the middle of a bin's range of confidence."""
  number = predictions.bin_numbers(np.array(bin_.confidence))
  return float(number + 0.5) / predictions.BINS


def embedding_map(
  points: np.ndarray,
  labels: np.ndarray,
  names: Sequence[str],
  images: np.ndarray,
  title: str,
  axes_names: tuple[str, str] | None,
) -> 'figure_lib.Figure':
  """Returns a map of points coloured by class, and one of thumbnails.

  Points whose neighbours have other labels are drawn last, to be visible.

  points: Float [N, 2].
  labels: Positions in `names`, int [N].
  images: Thumbnails, uint8 [N, h, w, 3].
  axes_names: Labels of the two axes; None: coordinates mean nothing.
  """
  figure = canvas.figure(*_MAP)
  left, right = figure.subplots(1, 2, sharex=True, sharey=True)
  colours = style.class_colours(len(names)) / 255
  order = strays_last(points, labels)
  x, y = points[order].T
  left.scatter(x, y, s=9, c=colours[labels[order]], linewidths=0)
  right.scatter(x, y, s=3, c=style.FAINT, linewidths=0)
  for i in separate_points(points, _PANEL):
    _draw_thumbnail(right, images[i], points[i], colours[labels[i]])
  left.set_title(title)
  if axes_names is None:
    left.tick_params(length=0, labelcolor='none')
    right.tick_params(length=0, labelcolor='none')
  else:
    left.set(xlabel=axes_names[0], ylabel=axes_names[1])
    right.set_xlabel(axes_names[0])
  if len(names) <= _LISTED:
    for i in np.unique(labels):
      left.scatter([], [], s=24, color=colours[i], label=names[i])
    figure.legend(loc='outside right upper', frameon=False, title='label')
  return figure


def _draw_thumbnail(
  cell: 'axes_lib.Axes',
  image: np.ndarray,
  point: np.ndarray,
  color: np.ndarray,
) -> None:
  from matplotlib import offsetbox

  zoom = 0.72 * _ON_MAP / max(image.shape[:2])  # in points
  thumbnail = offsetbox.OffsetImage(image, zoom=zoom)
  frame: Any = {'edgecolor': color, 'linewidth': 1.2}
  box = offsetbox.AnnotationBbox(
    thumbnail, tuple(point), pad=0.1, bboxprops=frame
  )
  cell.add_artist(box)


def strays_last(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Returns an order of points; those among other labels come last.

  points: Float [N, 2].
  labels: int [N].
  Positions, int64 [N].
  """
  from sklearn import neighbors  # here: it takes a second to import

  count = min(_NEIGHBOURS, len(points) - 1)
  search = neighbors.NearestNeighbors(n_neighbors=count).fit(points)
  alike = labels[search.kneighbors(return_distance=False)] == labels[:, None]
  return np.argsort(-alike.mean(axis=1), kind='stable')


def separate_points(points: np.ndarray, size: tuple[int, int]) -> list[int]:
  """Chooses points whose thumbnails do not overlap; returns their positions.

  points: Float [N, 2].
  size: (width, height) of the map, in pixels.
  """
  low = points.min(axis=0)
  span = np.maximum(points.max(axis=0) - low, 1e-12)
  places = (points - low) / span * size
  chosen: list[int] = []
  for i, place in enumerate(places):
    distances = np.abs(places[chosen] - place).max(axis=1)
    if (distances > _DISTANCE).all():
      chosen.append(i)
    if len(chosen) == _MOST_THUMBNAILS:
      break
  return chosen
