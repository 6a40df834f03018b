"""An image as the sequence of tokens of a Vision Transformer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax import weights
from vit_jax.plots import paper as paper_lib
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles as tiles_lib
from vit_jax.weights import features

_SIDE = 68  # pixels of a token
_TOKEN = '#EDEDED'  # the colour of tokens that are not patches
_MOST = 20  # maximum number of tokens to show of a sequence
_LAST = 3  # number of these that are from its end
_WIDE, _NARROW = 8, 4  # pixels between patches
_MANY = 16  # patches in a row or a column above which they are near


def image_patches(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Cuts images into the sequence of patches that a model reads.

  Patches of p x q pixels, row by row, in the units of `vit.preprocess`: float32
  [B, h * w, p, q, C].
  """
  h, w = features.patch_grid(vit)
  x = features.prepared(vit, images)
  b, height, width, channels = x.shape
  x = x.reshape(b, h, height // h, w, width // w, channels)
  return x.swapaxes(2, 3).reshape(b, h * w, height // h, width // w, channels)


def draw(
  image: np.ndarray, grid: tuple[int, int], prefix: Sequence[str]
) -> np.ndarray:
  """Draws an image, its patches with gaps, and the sequence of tokens.

  image: uint8 [h * a, w * b, 3], so that patches are whole pixels.
  uint8 [height, width, 3].
  """
  h, w = grid
  a, b = image.shape[0] // h, image.shape[1] // w
  patches = image.reshape(h, a, w, b, 3).swapaxes(1, 2).reshape(-1, a, b, 3)
  picture = sheet.draw(
    [[sheet.Tile(_ruled(image, grid)), sheet.Tile(_spread(patches, grid))]],
    heads=[f'{h} × {w} patches', 'in the order of reading'],
  )
  tokens = [sheet.Tile(_box(_TOKEN), name) for name in prefix]
  for patch in shown_patches(h * w, _MOST - len(prefix)):
    if patch is None:
      tokens.append(sheet.Tile(_box(style.PAPER, '…')))
      continue
    token = tiles_lib.fit(patches[patch], (_SIDE, _SIDE))
    tokens.append(sheet.Tile(token, str(patch)))
  title = f'The sequence of {len(prefix) + h * w} tokens'
  return paper_lib.stack([picture, sheet.draw([tokens], title=title)])


def shown_patches(count: int, most: int) -> list[int | None]:
  """Returns the first and the last patches, with None for those in between."""
  if count <= most:
    return list(range(count))
  first = range(most - _LAST - 1)
  return [*first, None, *range(count - _LAST, count)]


def _ruled(image: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
  """Returns an image with the borders of its patches."""
  ruled = image.copy()
  for axis, count in enumerate(grid):
    borders = np.arange(1, count) * (image.shape[axis] // count)
    # Visible on black and on white.
    np.moveaxis(ruled, axis, 0)[borders] = style.rgb(style.FAINT)
  return ruled


def _spread(patches: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
  """Returns the patches [h * w, a, b, 3] in their places, in frames."""
  gap = _NARROW if max(grid) > _MANY else _WIDE
  framed = np.pad(
    patches,
    [(0, 0), (1, 1), (1, 1), (0, 0)],
    constant_values=style.rgb(style.FAINT)[0],
  )
  spaced = np.pad(
    framed,
    [(0, 0), (0, gap), (0, gap), (0, 0)],
    constant_values=style.rgb(style.PAPER)[0],
  )
  rows = spaced.reshape(*grid, *spaced.shape[1:])
  joined = np.concatenate([np.concatenate(row, axis=1) for row in rows])
  return joined[:-gap, :-gap]


def _box(colour: str, text: str = '') -> np.ndarray:
  """Returns a token that is no patch."""
  paper = paper_lib.Paper(_SIDE, _SIDE)
  paper.fill(0, 0, _SIDE, _SIDE, colour)
  middle = _SIDE / 2, (_SIDE - paper_lib.LINE) / 2
  paper.write([text], *middle, align=0.5)
  return paper.pixels
