"""Draws many small images with captions in one picture."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import math
import pathlib
import textwrap
import unicodedata

import cv2
import numpy as np

from vit_jax.config import some
from vit_jax.data import features as features_lib
from vit_jax.plots import tiles as tiles_lib
from vit_jax.runs import safe_io

_SMALLEST, _LARGEST = 96, 224  # pixels that images are enlarged or shrunk to
_MARGIN, _FRAME, _LINE = 4, 3, 16  # pixels
_COLUMNS = 8
_LETTERS = 20  # of a line of a caption
# OpenCV's own font for all scripts, including Chinese, Japanese and Korean.
_FONT, _FONT_SIZE = 'uni', 12
# Red, green, blue.
_PAPER, _INK, _RED, _NO_NUMBER = (
  (255, 255, 255),
  (40, 40, 40),
  (220, 0, 0),
  (255, 0, 255),
)


def choose(
  count: int, marked: Collection[int] = (), most: int = 64
) -> list[int]:
  """Returns which of `count` images to draw: marked ones first if not all fit.

  Images are given by their positions, at most `most` of them.
  """
  if count <= most:
    return list(range(count))
  others = [i for i in range(count) if i not in set(marked)]
  return [*sorted(marked), *others][:most]


def captions(
  targets: Mapping[str, np.ndarray], features: features_lib.Features, count: int
) -> list[str]:
  """Describes the targets of examples.

  Args:
    targets: Arrays [B, ...] by the name of the feature, mixed or not.
    features: Features of the examples.
    count: Number of examples, B.
  """
  lines: list[list[str]] = [[] for _ in range(count)]
  for name, feature in features_lib.targets(features).items():
    for line, value in zip(lines, targets[name], strict=True):
      if isinstance(feature, features_lib.Label):
        line.append(caption(value, feature.names))
      elif isinstance(feature, features_lib.MultiLabel):
        present = np.flatnonzero(value).tolist()
        line.append(some([feature.names[i] for i in present], 3) or 'none')
      elif isinstance(feature, features_lib.Text):
        line += textwrap.wrap(feature.decode(value), _LETTERS)[:2]
      else:
        pairs = zip(feature.names, value.tolist(), strict=True)
        line += [f'{k} {x:.4g}' for k, x in list(pairs)[:2]]
  return ['\n'.join(line) for line in lines]


def caption(label: np.ndarray, classes: Sequence[str]) -> str:
  """Returns the caption of a label; that of a mixed image has two lines.

  If the font lacks letters of a name, the number of the class precedes it.

  Args:
    label: int scalar, or fractions of the classes, float [classes].
    classes: Names of the classes.
  """
  if not label.ndim:
    return _class_name(classes, int(label))
  largest = np.argsort(-label, kind='stable')[:2].tolist()
  shown = [
    (_class_name(classes, i), label[i]) for i in largest if label[i] >= 0.005
  ]
  if len(shown) == 1:
    return shown[0][0]
  return '\n'.join(f'{share:.2f} {name}'.lstrip('0') for name, share in shown)


def _class_name(classes: Sequence[str], number: int) -> str:
  name = classes[number]
  return name if _drawable(name) == _composed(name) else f'{number}: {name}'


def draw(
  images: Sequence[np.ndarray],
  captions: Sequence[str],
  path: pathlib.Path,
  *,
  marked: Collection[int] = (),
  title: str = '',
  rows: Sequence[str] = (),
  columns: int = _COLUMNS,
) -> None:
  """Writes the PNG of `encode` to a path, whose directory is created.

  Raises:
    UserError: The file cannot be written.
  """
  png = encode(
    *(images, captions), marked=marked, title=title, rows=rows, columns=columns
  )
  with safe_io.writing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png)


def encode(
  images: Sequence[np.ndarray],
  captions: Sequence[str],
  *,
  marked: Collection[int] = (),
  title: str = '',
  rows: Sequence[str] = (),
  columns: int = _COLUMNS,
) -> bytes:
  """Returns a PNG with images in rows, from left to right.

  Small images are enlarged by whole factors, so that their pixels stay visible;
  large ones are shrunk.

  Args:
    images: Images [h, w, C] with 1 (grey), 3 (RGB) or 4 (RGB and alpha, shown
      on white) channels: uint8, or floats from 0 (black) to 1 (white). Pixels
      that are not finite are magenta. An array [N, h, w, C] works, too. Of a
      volume [d, h, w, C] the slice in the middle is shown.
    captions: A caption of one or more lines for each image; cut if too long.
    marked: Positions of images that get a red frame.
    title: Title above all images.
    rows: Title above each row; none by default.
    columns: Most images in a row.
  """
  flat = (x[len(x) // 2] if x.ndim == 4 else x for x in images)
  tiles = [_fit(_to_rgb(image)) for image in flat]
  width = max((tile.shape[1] for tile in tiles), default=_SMALLEST)
  height = max((tile.shape[0] for tile in tiles), default=_SMALLEST)
  texts = [text.split('\n') for text in captions]
  most = max(map(len, texts), default=0)
  cells = []
  for i, (tile, lines) in enumerate(zip(tiles, texts, strict=True)):
    frame = _RED if i in marked else None
    lines += [''] * (most - len(lines))
    cells.append(_cell(tile, lines, (height, width), frame))
  sheet = _grid(cells, columns)
  wide, parts = sheet.shape[1], [sheet]
  if rows:
    parts = []
    for i, text in enumerate(rows):
      row = _grid(cells[i * columns : (i + 1) * columns], columns)
      parts += [write_line(text, wide), row]
  if title:
    parts.insert(0, write_line(title, wide))
  sheet = np.concatenate(parts)
  return cv2.imencode('.png', sheet[..., ::-1])[1].tobytes()


def _to_rgb(image: np.ndarray) -> np.ndarray:
  """Returns uint8 [h, w, 3]."""
  if image.dtype == np.uint8:
    rgb = image.astype(np.float32) / 255
  else:
    rgb = image.astype(np.float32)
  finite = np.isfinite(rgb).all(axis=-1, keepdims=True)
  rgb = tiles_lib.to_rgb(np.clip(np.nan_to_num(rgb), 0, 1))
  return np.where(finite, rgb, _NO_NUMBER).astype(np.uint8)


def _fit(image: np.ndarray) -> np.ndarray:
  """Enlarges or shrinks an image [h, w, 3] to a readable size."""
  longest = max(image.shape[:2])
  if longest < _SMALLEST:
    factor = math.ceil(_SMALLEST / longest)
    return image.repeat(factor, axis=0).repeat(factor, axis=1)
  if longest <= _LARGEST:
    return image
  h, w = (max(1, n * _LARGEST // longest) for n in image.shape[:2])
  return cv2.resize(image, (w, h), interpolation=cv2.INTER_AREA)


def _cell(
  tile: np.ndarray,
  lines: Sequence[str],
  size: tuple[int, int],
  frame: tuple[int, int, int] | None,
) -> np.ndarray:
  """Centres an image in `size`, and adds a frame and lines of text."""
  height, width = (n + 2 * _FRAME for n in size)
  cell = np.full((height, width, 3), _PAPER, np.uint8)
  h, w = tile.shape[:2]
  top, left = (height - h) // 2, (width - w) // 2
  if frame is not None:
    cell[top - _FRAME : top + h + _FRAME, left - _FRAME : left + w + _FRAME] = (
      frame
    )
  cell[top : top + h, left : left + w] = tile
  texts = [write_line(line, width, frame or _INK) for line in lines]
  return np.concatenate([cell, *texts])


def write_line(
  text: str, width: int, colour: tuple[int, int, int] = _INK
) -> np.ndarray:
  """Draws a line of text, uint8 [_LINE, width, 3], cut if it is too long.

  Args:
    text: Text in any script.
    width: Width in pixels.
    colour: Red, green, blue.
  """
  line = np.full((_LINE, width, 3), _PAPER, np.uint8)
  text = shown = _drawable(text)
  while shown and _text_width(shown) > width - 2 * _FRAME:
    text = text[:-1]
    shown = f'{text}..' if text else ''
  cv2.putText(line, shown, (_FRAME, _LINE - 4), colour, _font(), _FONT_SIZE)
  return line


def _text_width(text: str) -> int:
  image_size, origin = (0, 0), (0, 0)  # the width does not depend on them
  _, _, width, _ = cv2.getTextSize(
    image_size, text, origin, _font(), _FONT_SIZE
  )
  return int(width)


def _drawable(text: str) -> str:
  r"""Escapes letters that the font does not have, as \u0928."""
  return ''.join(
    c if _has_glyph(c) else c.encode('unicode_escape').decode()
    for c in _composed(text)
  )


def _composed(text: str) -> str:
  """Returns text with composed accents, which macOS stores separately."""
  return unicodedata.normalize('NFC', text)


@functools.cache
def _has_glyph(letter: str) -> bool:
  """Whether the font has a letter; it draws a '?' for others."""
  if letter.isascii():
    return letter.isprintable()
  if not letter.isprintable():
    return False
  drawn, unknown = (_letter(c) for c in (letter, '?'))
  return not np.array_equal(drawn, unknown)


def _letter(letter: str) -> np.ndarray:
  """Returns the picture of a letter, [_LINE, 2 * _LINE, 3]."""
  image = np.full((_LINE, 2 * _LINE, 3), _PAPER, np.uint8)
  where = (_LINE // 2, _LINE - 4)
  return cv2.putText(image, letter, where, _INK, _font(), _FONT_SIZE)[1]


@functools.cache
def _font() -> cv2.FontFace:
  return cv2.FontFace(_FONT)


def _grid(cells: Sequence[np.ndarray], columns: int) -> np.ndarray:
  """Puts cells of one size into rows of at most `columns`."""
  columns = min(columns, max(len(cells), 1))
  h, w = (n + _MARGIN for n in cells[0].shape[:2]) if cells else (0, 0)
  rows = math.ceil(len(cells) / columns)
  sheet = np.full((rows * h + _MARGIN, columns * w + _MARGIN, 3), _PAPER)
  for i, cell in enumerate(cells):
    top, left = _MARGIN + i // columns * h, _MARGIN + i % columns * w
    sheet[top : top + cell.shape[0], left : left + cell.shape[1]] = cell
  return sheet.astype(np.uint8)
