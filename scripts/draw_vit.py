r"""Draws the diagram of a Vision Transformer.

  python scripts/draw_vit.py docs/pictures/vit.svg

The upper row is the forward pass: image, patches, tokens, blocks, head, logits.
The lower row is one block. Numbers in parentheses name the equations in
the ViT paper (arXiv:2010.11929, section 3.1). Needs the extra [notebooks].
"""

import pathlib

from absl import flags
import matplotlib
from matplotlib import axes
from matplotlib import figure
from matplotlib import patches
import numpy as np
from sklearn import datasets

from vit_jax import cli
from vit_jax.config import UserError

FLAGS = flags.FlagValues()

Point = tuple[float, float]

_WIDTH, _HEIGHT = 12.0, 6.3  # inches, and units of the drawing
_INK, _LINE = '#222222', '#555555'
_TOKEN, _POSITION = '#DCEBF7', '#F4E3F1'
_ATTENTION, _MLP, _NORM = '#FBE3C4', '#D9F0E6', '#EEEEEE'
_TOP, _BOTTOM = 4.6, 1.35  # heights of the two rows' centres


def main(argv: list[str]) -> None:
  """Writes the diagram to the path that is given."""
  if len(argv) != 2:
    raise UserError(
      'give the path of the SVG file: python scripts/draw_vit.py FILE'
    )
  draw(pathlib.Path(argv[1]))


def draw(path: pathlib.Path) -> None:
  """Writes the diagram as an SVG file; equal calls write equal bytes."""
  with matplotlib.rc_context(
    {'svg.hashsalt': 'vit', 'svg.fonttype': 'path', 'font.size': 12}
  ):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), facecolor='white')
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, _WIDTH), ylim=(0, _HEIGHT))
    ax.set_axis_off()
    _forward_pass(ax)
    _block(ax)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, metadata={'Date': None, 'Creator': None})


def _forward_pass(ax: axes.Axes) -> None:
  """Draws the upper row, from the image to the logits."""
  digit = datasets.load_digits().images[0]
  _picture(ax, digit, (0.35, _TOP - 0.6), 1.2)
  _caption(ax, 0.95, 'image', r'$h \times w \times C$')
  _arrow(ax, 1.6, 2.0)

  grid = digit.reshape(4, 2, 4, 2).transpose(0, 2, 1, 3)
  for row, column in np.ndindex(4, 4):
    corner = 2.05 + 0.36 * column, _TOP + 0.4 - 0.36 * row
    _picture(ax, grid[row, column], corner, 0.3)
  _caption(ax, 2.75, 'N patches', r'$N \times P^2 C$')
  _arrow(ax, 3.55, 4.55, r'$\cdot\,\mathbf{E}$')

  for i, index in enumerate('0123 N'):
    y = _TOP + 0.85 - 0.36 * i
    if index == ' ':
      for x in (5.05, 6.3):
        ax.text(x, y + 0.15, r'$\vdots$', ha='center', va='center')
      continue
    token = 'class' if index == '0' else index
    _box(ax, (4.65, y), (0.8, 0.3), token, _TOKEN, size=10)
    _box(ax, (6.0, y), (0.6, 0.3), index, _POSITION, size=10)
  ax.text(5.72, _TOP, '+', ha='center', va='center', size=18, color=_INK)
  _caption(ax, 5.05, 'tokens', r'$(1 + N) \times D$')
  _caption(ax, 6.3, 'positions', r'$\mathbf{E}_\mathrm{pos}$')
  ax.text(5.65, _TOP + 1.32, r'$\mathbf{z}_0$  (1)', ha='center', color=_INK)
  _arrow(ax, 6.7, 7.1)

  for i in (2, 1, 0):
    corner = 7.15 + 0.1 * i, _TOP - 0.75 + 0.1 * i
    _box(ax, corner, (1.35, 1.5), 'block' if i == 0 else '', '#FFFFFF', size=13)
  _caption(ax, 7.95, 'L blocks', '(2), (3)')
  _arrow(ax, 8.8, 9.2)
  _box(ax, (9.25, _TOP - 0.3), (0.75, 0.6), 'LN', _NORM)
  _caption(ax, 9.62, 'class token', r'$\mathbf{y}$  (4)')
  _arrow(ax, 10.05, 10.35)
  _box(ax, (10.4, _TOP - 0.3), (0.75, 0.6), 'head', _TOKEN)
  _arrow(ax, 11.2, 11.45)
  for i, length in enumerate((0.42, 0.06, 0.1, 0.04, 0.05)):
    bar = patches.Rectangle(
      (11.5, _TOP + 0.3 - 0.17 * i), length, 0.1, color='#0072B2', linewidth=0
    )
    ax.add_patch(bar)
  _caption(ax, 11.55, 'classes', '')


def _block(ax: axes.Axes) -> None:
  """Draws the lower row, the content of one block."""
  frame = patches.FancyBboxPatch(
    (1.55, 0.35),
    9.0,
    2.3,
    boxstyle='round,pad=0,rounding_size=0.1',
    facecolor='none',
    edgecolor=_LINE,
    linestyle='--',
  )
  ax.add_patch(frame)
  top, bottom = _TOP - 0.75, 2.65
  corners = [(7.15, top), (8.5, top), (10.55, bottom), (1.55, bottom)]
  ax.add_patch(patches.Polygon(corners, color='#F3F3F3', zorder=0))
  y = _BOTTOM
  ax.text(0.8, y, r'$\mathbf{z}_{\ell-1}$', ha='center', va='center', size=15)
  _arrow(ax, 1.1, 2.3, y=y)
  _box(ax, (2.35, y - 0.3), (0.8, 0.6), 'LN', _NORM)
  _arrow(ax, 3.2, 3.5, y=y)
  _box(ax, (3.55, y - 0.45), (1.7, 0.9), 'multi-head\nattention', _ATTENTION)
  _arrow(ax, 5.3, 5.62, y=y)
  _sum(ax, 5.8, y)
  _skip(ax, 1.85, 5.8, y)
  ax.text(6.3, y - 0.42, r"$\mathbf{z}'_\ell$", ha='center', size=14)
  _arrow(ax, 5.98, 6.8, y=y)
  _box(ax, (6.85, y - 0.3), (0.8, 0.6), 'LN', _NORM)
  _arrow(ax, 7.7, 8.0, y=y)
  _box(ax, (8.05, y - 0.45), (1.3, 0.9), 'MLP', _MLP)
  _arrow(ax, 9.4, 9.77, y=y)
  _sum(ax, 9.95, y)
  _skip(ax, 6.3, 9.95, y)
  _arrow(ax, 10.13, 10.95, y=y)
  ax.text(11.2, y, r'$\mathbf{z}_\ell$', ha='center', va='center', size=15)
  ax.text(4.4, 0.55, 'between tokens  (2)', ha='center', va='center')
  ax.text(8.7, 0.55, 'token by token  (3)', ha='center', va='center')


def _picture(
  ax: axes.Axes, pixels: np.ndarray, corner: Point, side: float
) -> None:
  """Draws grey pixels, [n, n], as a square with this lower left corner."""
  x, y = corner
  pixel = side / len(pixels)
  for row, column in np.ndindex(pixels.shape):
    square = patches.Rectangle(
      (x + pixel * column, y + side - pixel * (row + 1)),
      pixel,
      pixel,
      color=str(pixels[row, column] / 16),
      linewidth=0.3,
    )
    ax.add_patch(square)


def _box(
  ax: axes.Axes,
  corner: Point,
  sides: Point,
  text: str,
  color: str,
  size: int = 12,
) -> None:
  ax.add_patch(
    patches.FancyBboxPatch(
      corner,
      *sides,
      boxstyle='round,pad=0,rounding_size=0.06',
      facecolor=color,
      edgecolor=_LINE,
      linewidth=1,
    )
  )
  x, y = corner
  width, height = sides
  ax.text(
    x + width / 2,
    y + height / 2,
    text,
    ha='center',
    va='center',
    size=size,
    color=_INK,
  )


def _caption(ax: axes.Axes, x: float, text: str, shape: str) -> None:
  ax.text(x, _TOP - 1.2, text, ha='center', va='center', color=_INK)
  ax.text(x, _TOP - 1.5, shape, ha='center', va='center', color=_LINE)


def _arrow(
  ax: axes.Axes, start: float, end: float, text: str = '', y: float = _TOP
) -> None:
  ax.annotate(
    '',
    (end, y),
    (start, y),
    arrowprops={
      'arrowstyle': '-|>',
      'color': _LINE,
      'shrinkA': 0,
      'shrinkB': 0,
    },
  )
  ax.text((start + end) / 2, y + 0.12, text, ha='center', color=_INK)


def _sum(ax: axes.Axes, x: float, y: float) -> None:
  ax.add_patch(patches.Circle((x, y), 0.18, facecolor='white', edgecolor=_LINE))
  ax.text(x, y, '+', ha='center', va='center_baseline', size=14, color=_INK)


def _skip(ax: axes.Axes, start: float, end: float, y: float) -> None:
  """Draws a residual connection above a row."""
  top = y + 0.85
  ax.plot([start, start, end], [y, top, top], color=_LINE, linewidth=1)
  ax.annotate(
    '',
    (end, y + 0.18),
    (end, top + 0.01),
    arrowprops={
      'arrowstyle': '-|>',
      'color': _LINE,
      'shrinkA': 0,
      'shrinkB': 0,
    },
  )


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
