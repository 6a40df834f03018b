"""Sheets of tiles: images and maps with heads, captions, a scale and a legend.

A sheet needs OpenCV alone, no matplotlib. Lengths are in pixels of the file.
"""

from collections.abc import Sequence
import itertools
import math
from typing import NamedTuple
from typing import TypeVar

import cv2
import numpy as np

from vit_jax import config as config_lib
from vit_jax.plots import paper as paper_lib
from vit_jax.plots import style

LINE, GAP = paper_lib.LINE, paper_lib.GAP
_FRAME = 2 * style.DENSITY  # of a marked tile
_GROUP_GAP = 28  # more between groups of tiles
_BEFORE = 360  # largest width of the names of rows
_HEAD_LINES, _BEFORE_LINES, _CAPTION_LINES = 3, 6, 2
_READABLE = 192, 448  # limits of the longer side of an image

T = TypeVar('T')


class Tile(NamedTuple):
  """A tile of a sheet."""

  image: np.ndarray  # uint8 [h, w, 3]
  caption: str = ''  # text below it, of one or more lines
  frame: str = ''  # colour of its frame and its caption; '': a thin grey frame


class Scale(NamedTuple):
  """The values that the colours of a sheet's maps stand for."""

  low: float  # value of the first colour
  high: float  # value of the last colour
  label: str  # name of the values, with their unit
  colours: str = style.HEAT  # name of the colour map; see `style`
  exceeded: bool = False  # whether some values are above `high`


def draw(
  rows: Sequence[Sequence[Tile | None]],
  *,
  title: str = '',
  heads: Sequence[str] = (),
  names: Sequence[str] = (),
  group: int = 0,
  scale: Scale | None = None,
  legend: Sequence[tuple[str, np.ndarray]] = (),
) -> np.ndarray:
  """Returns a sheet of tiles in rows, uint8 [H, W, 3].

  Texts may have several lines. Names of rows and captions are wrapped where
  they are too wide, and only then shortened, so that different ones stay
  different.

  Args:
    rows: Tiles in rows of equal length; None leaves a place empty. Tiles that
      are smaller than others are centred.
    title: A line above all.
    heads: Names of the columns of a group, which are repeated for each group.
    names: Names of the rows.
    group: Number of tiles of a row that belong together; 0: all of them.
    scale: Scale of the maps.
    legend: Names and colours, uint8 [3], of classes.
  """
  table = _table(rows, heads, names, group or max(map(len, rows), default=1))
  widths = [table.shape[1], 2 * GAP + paper_lib.width(title, bold=True)]
  blocks = []
  if scale:
    blocks.append(config_lib.wing('vit_jax.plots.scales:draw')(scale))
  right = max(*widths, *(block.shape[1] for block in blocks))
  if title:
    paper = paper_lib.Paper(right, GAP + LINE)
    paper.write([title], GAP, GAP, bold=True)
    blocks.insert(0, paper.pixels)
  if legend:
    swatches = config_lib.wing('vit_jax.plots.class_maps:swatches')
    blocks.append(swatches(legend, right))
  return paper_lib.stack([*blocks, table])


def _table(
  rows: Sequence[Sequence[Tile | None]],
  heads: Sequence[str],
  names: Sequence[str],
  group: int,
) -> np.ndarray:
  """Returns the tiles with their texts; see `draw`."""
  cells = [tile for row in rows for tile in row]
  wide = max((tile.image.shape[1] for tile in cells if tile), default=0)
  above = _wrap(heads, wide + GAP, _HEAD_LINES)
  before = _wrap(names, _BEFORE, _BEFORE_LINES)
  captions = [tile.caption if tile else '' for tile in cells]
  below = iter(_wrap(captions, wide, _CAPTION_LINES))
  widths = [paper_lib.width(line) for lines in before for line in lines]
  left = GAP + (GAP + math.ceil(max(widths, default=0)) if before else 0)
  count = max(map(len, rows), default=0)
  lefts = [
    left + j * (wide + GAP) + j // group * _GROUP_GAP for j in range(count)
  ]
  top = LINE * max(map(len, above), default=0) + GAP
  header = paper_lib.Paper(lefts[-1] + wide + GAP if lefts else left, top)
  for j, x in enumerate(lefts):
    lines = above[j % group] if above else []
    y = top - LINE * len(lines) - _FRAME
    header.write(lines, x + wide / 2, y, align=0.5)
  blocks = [header.pixels]
  for row, name in zip(rows, before or [[]] * len(rows), strict=True):
    high = max((tile.image.shape[0] for tile in row if tile), default=0)
    texts = [next(below) for _ in row]
    most = max(map(len, texts), default=0)
    tall = max(high + _FRAME + LINE * most, LINE * len(name))
    strip = paper_lib.Paper(header.pixels.shape[1], _FRAME + tall + GAP)
    start = max(0, (high - LINE * len(name)) / 2)
    strip.write(name, left - GAP, _FRAME + start, align=1)
    for left_side, tile, lines in zip(lefts, row, texts, strict=False):
      if tile is None:
        continue
      h, w = tile.image.shape[:2]
      x, y = left_side + (wide - w) // 2, _FRAME + (high - h) // 2
      edge = _FRAME if tile.frame else 1  # a tile may be as white as the paper
      colour, ink = tile.frame or style.FAINT, tile.frame or style.INK
      strip.fill(x - edge, y - edge, w + 2 * edge, h + 2 * edge, colour)
      strip.paste(tile.image, x, y)
      middle, bottom = left_side + wide / 2, _FRAME + high + _FRAME
      strip.write(lines, middle, bottom, align=0.5, colour=ink)
    blocks.append(strip.pixels)
  return paper_lib.stack(blocks)


def _wrap(texts: Sequence[str], most: float, limit: int) -> list[list[str]]:
  """Wraps each line of texts to at most `limit` lines of a width."""
  lines = [text.split('\n') if text else [] for text in texts]
  flat = list(itertools.chain.from_iterable(lines))
  wrapped = iter(paper_lib.wrap(flat, most, limit))
  return [
    [part for _ in text_lines for part in next(wrapped)] for text_lines in lines
  ]


def readable(image: np.ndarray) -> np.ndarray:
  """Resizes an image to a tile that is easily seen, uint8 [H, W, 3].

  `image` is [h, w, C], with C as for `to_rgb`. It is uint8, or float from
  0 to 1. Values that are not finite become magenta.
  """
  scale = 255 if image.dtype == np.uint8 else 1
  values = image.astype(np.float32) / scale
  finite = np.isfinite(values).all(axis=-1, keepdims=True)
  rgb = to_rgb(np.nan_to_num(values))
  rgb = np.where(finite, rgb, style.rgb(style.NOT_FINITE)).astype(np.uint8)
  longest = max(rgb.shape[:2])
  if longest < _READABLE[0]:
    factor = -(-_READABLE[0] // longest)
    return rgb.repeat(factor, axis=0).repeat(factor, axis=1)
  small = min(1.0, _READABLE[1] / longest)
  h, w = (max(1, round(n * small)) for n in rgb.shape[:2])
  return fit(rgb, (h, w))


def to_rgb(image: np.ndarray) -> np.ndarray:
  """Returns colours, uint8 [..., 3].

  `image` is float [..., C], 0 to 1; C is 1 (grey), 3 (RGB) or 4 (RGB and alpha,
  which is shown on white). Of another number the first is shown as grey.
  """
  if image.shape[-1] not in (3, 4):
    image = image[..., :1]
  if image.shape[-1] == 4:
    alpha = image[..., 3:]
    image = image[..., :3] * alpha + (1 - alpha)
  image = np.broadcast_to(image[..., :3], (*image.shape[:-1], 3))
  return np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)


def fit(
  image: np.ndarray, shape: tuple[int, int], mixes: bool = True
) -> np.ndarray:
  """Resizes an image uint8 [H, W, 3]; enlarged pixels stay visible.

  If it shrinks, it `mixes` the colours of its pixels, or else drops pixels.
  """
  h, w = shape
  shrinks = mixes and h * w < image.shape[0] * image.shape[1]
  interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_NEAREST
  return cv2.resize(
    np.ascontiguousarray(image), (w, h), interpolation=interpolation
  )


def grouped(groups: Sequence[Sequence[T]], most: int) -> list[list[T | None]]:
  """Puts groups of equally many tiles into rows of at most `most` tiles.

  A row has at least one group; the last row is filled up with None.
  """
  size = len(groups[0])
  per_row = max(1, min(most // size, len(groups)))
  rows: list[list[T | None]] = []
  for start in range(0, len(groups), per_row):
    row = [tile for group in groups[start : start + per_row] for tile in group]
    rows.append([*row, *[None] * (per_row * size - len(row))])
  return rows
