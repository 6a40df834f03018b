"""Matrices in colours, such as confusion matrices, without matplotlib.

In comments: [R, C] the rows and columns of a matrix, K classes. Lengths are in
pixels of the file.
"""

from collections.abc import Sequence

import numpy as np

from vit_jax.plots import paper as paper_lib
from vit_jax.plots import style

LINE, GAP = paper_lib.LINE, paper_lib.GAP
MOST_CLASSES = 40  # of a confusion matrix
_SIDE = 1000  # approximate sides of a matrix
_CELL = LINE, 76  # minimum and maximum sides of a cell
_FRAME = 6  # width of the frame of a cell
_WRITTEN = 20  # maximum rows and columns of a matrix with texts in its cells
_NAMES = 260  # largest width of a name
_LEAST_SHADE = 0.1  # of a count that is not 0, so that single errors are seen
_DARK = 160  # the mean of a colour below which texts are white


def confusion(
  counts: np.ndarray, classes: Sequence[str], title: str = ''
) -> np.ndarray:
  """Returns a confusion matrix as a picture, uint8 [H, W, 3].

  A cell has the number of its examples, and the colour of their share of the
  true class; it is empty without examples. The margin is the share of a class
  that is classified correctly. Of many classes, it shows `most_confused`.

  Args:
    counts: Examples by label and prediction, int [K, K].
    classes: Names of the classes.
    title: A line above the matrix.
  """
  chosen = most_confused(counts)
  # The total of a row includes predictions of classes that are not shown.
  totals = counts.sum(axis=1)[chosen]
  chosen_counts = counts[np.ix_(chosen, chosen)]
  shares = chosen_counts / np.maximum(totals, 1)[:, None]
  names = [classes[i] for i in chosen]
  correct = np.diag(chosen_counts)
  accuracy = [
    f'{100 * n / total:.0f}%' if total else '–'
    for n, total in zip(correct, totals, strict=True)
  ]
  if len(chosen) < len(counts):
    part = f'{len(chosen)} of {len(counts)} classes, with the most errors'
    title = f'{title}: {part}' if title else part
  cells = draw(
    np.where(chosen_counts, _LEAST_SHADE + (1 - _LEAST_SHADE) * shares, np.nan),
    np.where(chosen_counts, chosen_counts.astype(str), ''),
    (names, names),
    ('true class', 'predicted class'),
    style.COUNTS,
    ('correct', accuracy),
  )
  return titled(title, cells) if title else cells


def titled(title: str, picture: np.ndarray) -> np.ndarray:
  """Returns a picture below its title."""
  head = paper_lib.Paper(paper_lib.width(title, bold=True) + 2 * GAP, LINE)
  head.write([title], GAP, 0, bold=True)
  return paper_lib.stack([head.pixels, picture])


def most_confused(counts: np.ndarray) -> np.ndarray:
  """Returns the classes with the most errors, ascending; all of a few.

  `counts` are examples by label and prediction, int [K, K].
  """
  if len(counts) <= MOST_CLASSES:
    return np.arange(len(counts))
  wrong = counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diag(counts)
  return np.sort(np.argsort(-wrong, kind='stable')[:MOST_CLASSES])


def draw(
  shades: np.ndarray,
  texts: np.ndarray,
  names: tuple[Sequence[str], Sequence[str]],
  axes: tuple[str, str],
  colours: str,
  margin: tuple[str, Sequence[str]] | None = None,
  *,
  empty: str = style.PAPER,
  framed: tuple[int, int] | None = None,
) -> np.ndarray:
  """Returns a matrix with its first row on top, uint8 [H, W, 3].

  Args:
    shades: Positions in the colour map, 0 to 1, float [R, C]; nan: `empty`.
    texts: Written into the cells of a matrix that has few, str [R, C].
    names: Names of the rows and of the columns.
    axes: Names of what the rows and the columns are.
    colours: Name of the colour map; see `style`.
    margin: Head and texts of a column on the right.
    empty: Colour of a cell without a shade.
    framed: Row and column of a cell with a red frame.
  """
  rows, columns = shades.shape
  head, margin_texts = margin or ('', ())
  widest = max(map(paper_lib.width, texts.ravel())) + GAP
  side = round(np.clip(_SIDE / max(rows, columns), *_CELL))
  if max(rows, columns) <= _WRITTEN:
    side = max(side, round(widest))
  left_names, below_names = (paper_lib.shorten(list(x), _NAMES) for x in names)
  # A name that is wider than its column is turned.
  below_images = [_line(name, side - GAP) for name in below_names]
  left = 2 * LINE + max(map(paper_lib.width, left_names)) + GAP
  top = GAP + (LINE if margin else 0)
  right = left + columns * side
  bottom = top + rows * side
  end = right + (GAP + paper_lib.width(head) if margin else 0)
  below = max(map(len, below_images))
  picture = paper_lib.Paper(end + 2 * GAP, bottom + below + LINE + 3 * GAP)
  _draw_cells(picture, (left, top), side, shades, texts, colours, empty, framed)
  step = -(-LINE // side)  # names that would touch are left out
  for i in range(0, rows, step):
    y = top + (i + 0.5) * side - LINE / 2
    picture.write([left_names[i]], left - GAP, y, align=1)
    if margin:
      picture.write([margin_texts[i]], end + GAP, y, align=1)
  for j in range(0, columns, step):
    image = below_images[j]
    x = left + (j + 0.5) * side - image.shape[1] / 2
    picture.paste(image, x, bottom + GAP)
  if margin:
    picture.write([head], end + GAP, 0, align=1)
  y_name, x_name = axes
  title = _line(y_name, 0)
  middle = (top + bottom - len(title)) / 2
  picture.paste(title, GAP, max(0, middle))
  y = bottom + below + 2 * GAP
  picture.write([x_name], (left + right) / 2, y, align=0.5)
  return picture.pixels


def _draw_cells(
  picture: paper_lib.Paper,
  corner: tuple[float, float],
  side: int,
  shades: np.ndarray,
  texts: np.ndarray,
  colours: str,
  empty: str,
  framed: tuple[int, int] | None,
) -> None:
  """Draws the cells and, if they are few, their texts."""
  left, top = corner
  rows, columns = shades.shape
  table = style.colour_table(colours)
  picture.fill(
    left - 1, top - 1, columns * side + 1, rows * side + 1, style.FAINT
  )
  for (i, j), shade in np.ndenumerate(shades):
    colour = np.array(style.rgb(empty))
    if not np.isnan(shade):
      colour = table[round(255 * shade)]
    x, y = left + j * side, top + i * side
    edge = _FRAME if (i, j) == framed else 0
    if edge:
      picture.fill(x, y, side - 1, side - 1, style.RED)
    inner = side - 1 - 2 * edge
    cell = np.tile(colour.astype(np.uint8), (inner, inner, 1))
    picture.paste(cell, x + edge, y + edge)
    if max(rows, columns) <= _WRITTEN:
      ink = style.PAPER if colour.mean() < _DARK else style.INK
      middle = y + (side - LINE) / 2
      picture.write(
        [str(texts[i, j])], x + side / 2, middle, align=0.5, colour=ink
      )


def _line(text: str, room: float) -> np.ndarray:
  """Returns a line, uint8 [h, w, 3]; turned if it is wider than `room`."""
  width = paper_lib.width(text)
  line = paper_lib.Paper(width + 1, LINE)
  line.write([text], 0, 0)
  return line.pixels if width <= room else np.rot90(line.pixels)
