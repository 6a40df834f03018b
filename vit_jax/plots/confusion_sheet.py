"""A confusion matrix as a small picture, drawn without matplotlib."""

from collections.abc import Sequence

import cv2
import numpy as np

from vit_jax.plots import contact_sheet

_SIDE = 480  # approximate pixels of the matrix
_CELL = 8, 40  # minimum and maximum pixels of a field
_NAMES = 120  # pixels for the names of the classes
_NUMBERED = 20  # maximum number of classes with counts in the fields


def encode(counts: np.ndarray, classes: Sequence[str], title: str) -> bytes:
  """Returns a PNG with a row for each label, a column for each prediction.

  Colours are shares of a row, from 0 (violet) to 1 (yellow).

  Args:
    counts: Number of examples by label and prediction, int [K, K].
    classes: Names of the K classes; the columns show their numbers.
    title: Title above the matrix.
  """
  count = len(counts)
  side = int(np.clip(_SIDE // count, *_CELL))
  shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  grey = np.round(255 * shares).astype(np.uint8)
  colors = cv2.applyColorMap(grey, cv2.COLORMAP_VIRIDIS)[..., ::-1]
  matrix = colors.repeat(side, axis=0).repeat(side, axis=1)
  height = max(side, len(contact_sheet.write_line('', 1)))
  step = -(-height // side)  # every step-th row has room for its name
  names = np.full((count * side, _NAMES, 3), 255, np.uint8)
  for i in range(0, count, step):
    line = contact_sheet.write_line(f'{i}: {classes[i]}', _NAMES)
    top = i * side + max(0, (side - len(line)) // 2)
    names[top : top + len(line)] = line[: len(names) - top]
  if count <= _NUMBERED:
    _write_counts(matrix, counts, shares, side)
  sheet = np.concatenate([names, matrix], axis=1)
  sheet = np.concatenate([_header(count, side, step), sheet])
  width = max(sheet.shape[1], 360)
  sheet = np.pad(
    sheet,
    ((0, 8), (0, width + 8 - sheet.shape[1]), (0, 0)),
    constant_values=255,
  )
  lines = (
    title,
    'rows: labels; columns: predictions; colours: shares of a row',
  )
  above = [contact_sheet.write_line(line, sheet.shape[1]) for line in lines]
  picture = np.concatenate([*above, sheet])
  return cv2.imencode('.png', picture[..., ::-1])[1].tobytes()


def _header(count: int, side: int, step: int) -> np.ndarray:
  """Draws as many numbers of the columns as have room."""
  blank = contact_sheet.write_line('', _NAMES)
  cells = []
  for i in range(0, count, step):
    width = min(step, count - i) * side
    cells.append(contact_sheet.write_line(str(i), width))
  return np.concatenate([blank, *cells], axis=1)


def _write_counts(
  matrix: np.ndarray, counts: np.ndarray, shares: np.ndarray, side: int
) -> None:
  """Writes the counts that are not 0 into their fields."""
  for (i, j), number in np.ndenumerate(counts):
    if not number:
      continue
    ink = (0, 0, 0) if shares[i, j] > 0.6 else (255, 255, 255)
    text = contact_sheet.write_line(str(number), side, (0, 0, 0))
    darkness = 1 - text.astype(np.float32) / 255
    top = i * side + (side - len(text)) // 2
    place = matrix[top : top + len(text), j * side : (j + 1) * side]
    place[:] = np.round(place * (1 - darkness) + np.array(ink) * darkness)
