"""An image as the sequence of tokens of a Vision Transformer."""

from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from vit_jax import weights
from vit_jax.plots import canvas
from vit_jax.plots import style
from vit_jax.plots import tiles as tiles_lib
from vit_jax.weights import features

if TYPE_CHECKING:
  from matplotlib import axes as axes_lib
  from matplotlib import figure as figure_lib

_SIDE, _PITCH = 34, 40  # pixels of a token, and from one token to the next
_MOST = 20  # maximum number of tokens to show of a sequence
_LAST = 3  # number of these that are from its end
_BETWEEN = 40  # pixels between the image and its patches


def image_patches(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Cuts images into the sequence of patches that a model reads.

  Args:
    vit: A ViT, hybrid or Mixer.
    images: Images that `vit.preprocess` accepts, or its output.

  Returns:
    Patches of p x q pixels, row by row, in the units of `vit.preprocess`:
    float32 [B, h * w, p, q, C].

  Raises:
    UserError: The model has no patches, or an image cannot be read.
  """
  h, w = features.patch_grid(vit)
  x = features.prepared(vit, images)
  b, height, width, channels = x.shape
  x = x.reshape(b, h, height // h, w, width // w, channels)
  return x.swapaxes(2, 3).reshape(b, h * w, height // h, width // w, channels)


def draw(
  image: np.ndarray, grid: tuple[int, int], prefix: Sequence[str]
) -> 'figure_lib.Figure':
  """Draws an image, its patches with gaps, and the sequence of tokens.

  Args:
    image: uint8 [h * a, w * b, 3], so that patches are whole pixels.
    grid: (h, w).
    prefix: Names of the tokens before the patches.
  """
  height, width = image.shape[:2]
  h, w = grid
  apart = _apart(image, grid, gap=2 if max(grid) > 16 else 4)
  patches = shown_patches(h * w, _MOST - len(prefix))
  left, top = canvas.GAP, canvas.GAP + canvas.LINE
  right = left + width + _BETWEEN
  below = top + apart.shape[0] + 2 * canvas.LINE
  strip = (len(prefix) + len(patches)) * _PITCH
  figure, axes = canvas.pixel_figure(
    left + max(right + apart.shape[1], strip),
    below + _SIDE + 1.5 * canvas.LINE,
  )
  for x, y, text in (
    (left, top, f'{h} × {w} patches'),
    (right, top, 'in the order of reading'),
    (left, below, f'the sequence of {len(prefix) + h * w} tokens'),
  ):
    axes.text(x, y - 0.6 * canvas.LINE, text, va='center')
  canvas.place(axes, canvas.framed(image), left - 1, top - 1)
  _draw_lines(axes, (left, top, width, height), grid)
  canvas.place(axes, apart, right - 1, top - 1)
  for i, name in enumerate(prefix):
    _draw_other(axes, left + i * _PITCH, below, name)
  for i, patch in enumerate(patches, len(prefix)):
    token = None if patch is None else _patch(image, grid, patch)
    _draw_patch(axes, left + i * _PITCH, below, token, patch)
  return figure


def shown_patches(count: int, most: int) -> list[int | None]:
  """Returns the first and the last patches, with None for those in between.

  Args:
    count: Number of all patches.
    most: Largest length of the list.
  """
  if count <= most:
    return list(range(count))
  first = range(most - _LAST - 1)
  return [*first, None, *range(count - _LAST, count)]


def _draw_lines(
  axes: 'axes_lib.Axes',
  box: tuple[float, float, float, float],
  grid: tuple[int, int],
) -> None:
  """Draws the borders of the patches over an image in (left, top, w, h)."""
  left, top, width, height = box
  # Visible on black and on white.
  line: Any = {'color': style.FAINT, 'linewidth': 0.8}
  for i in range(1, grid[0]):
    y = top + i * height / grid[0]
    axes.plot([left, left + width], [y, y], **line)
  for i in range(1, grid[1]):
    x = left + i * width / grid[1]
    axes.plot([x, x], [top, top + height], **line)


def _draw_other(axes: 'axes_lib.Axes', x: float, y: float, name: str) -> None:
  """Draws a token that is not a patch."""
  from matplotlib import patches

  box: Any = {'facecolor': '#EDEDED', 'edgecolor': style.PALE}
  axes.add_patch(patches.Rectangle((x, y), _SIDE, _SIDE, **box))
  middle = x + _SIDE / 2, y + _SIDE / 2
  axes.text(*middle, name, ha='center', va='center', fontsize=7)


def _draw_patch(
  axes: 'axes_lib.Axes',
  x: float,
  y: float,
  token: np.ndarray | None,
  number: int | None,
) -> None:
  if token is None:
    middle = x + _SIDE / 2, y + _SIDE / 2
    axes.text(*middle, '…', ha='center', va='center')
    return
  token = canvas.framed(tiles_lib.fit(token, (_SIDE, _SIDE)))
  canvas.place(axes, token, x - 1, y - 1)
  where = x + _SIDE / 2, y + _SIDE + 0.6 * canvas.LINE
  axes.text(*where, str(number), ha='center', va='center')


def _patch(image: np.ndarray, grid: tuple[int, int], patch: int) -> np.ndarray:
  a, b = image.shape[0] // grid[0], image.shape[1] // grid[1]
  i, j = divmod(patch, grid[1])
  return image[i * a : (i + 1) * a, j * b : (j + 1) * b]


def _apart(image: np.ndarray, grid: tuple[int, int], gap: int) -> np.ndarray:
  """Returns the patches in their frames, with gaps between them."""
  h, w = grid
  a, b = image.shape[0] // h, image.shape[1] // w
  shape = h * (a + gap) - gap + 2, w * (b + gap) - gap + 2, 3
  result = np.full(shape, 255, np.uint8)
  for patch in range(h * w):
    i, j = divmod(patch, w)
    top, left = i * (a + gap), j * (b + gap)
    framed = canvas.framed(_patch(image, grid, patch))
    result[top : top + a + 2, left : left + b + 2] = framed
  return result
