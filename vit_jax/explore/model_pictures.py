"""Pictures of the parameters of a model, and of an image as its patches."""

from collections.abc import Sequence

import numpy as np

from vit_jax import models
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.explore import positions
from vit_jax.explore import subject as subject_lib
from vit_jax.models import vit as vit_lib
from vit_jax.models.parts import positions as positions_lib
from vit_jax.plots import paper as paper_lib
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles
from vit_jax.weights import features

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_SIDE = 68  # pixels of a token
_TOKEN = '#EDEDED'  # the colour of tokens that are not patches
_MOST = 20  # maximum number of tokens to show of a sequence
_LAST = 3  # number of these that are from its end
_WIDE, _NARROW = 8, 4  # pixels between patches
_MANY = 16  # patches in a row or a column above which they are near
_FILTERS = 28  # as in the figure of the ViT paper
_FILTER_COLUMNS = 14
_STEM_COLUMNS = 16
_WITH_COLOURS = (3, 4)  # channels of images with colours
_MOST_QUERIES = 14  # along each side of a grid of grids
_PREFIX = {
  'class_token': 'class',
  'distillation_token': 'distil',
  'register_tokens': 'reg',
}


def patches(subject: Subject) -> Drawn:
  """Draws the first image as its sequence of patches."""
  vit = subject.vit
  grid, size = features.patch_grid(vit), vit.preprocess.image_size
  shape = tiles.tile_shape(size, grid, 1, limits=(192, 560))
  image = sheet.fit(subject.pixels[0], shape)
  caption = (
    f'The image {subject.images.names[0]}, {size[0]} × {size[1]} pixels, cut'
    f' into {grid[0]} × {grid[1]} patches that do not overlap. A linear map'
    ' turns each patch into a token. The sequence has the tokens in this order'
    ' (arXiv:2010.11929, section 3.1).'
  )
  if subject.images.naming:
    caption += f' {subject.images.naming}'
  names = prefix_names(vit)
  if names:
    caption += ' Grey boxes are learned tokens before the patches.'
  if 'stem' in vit.params and isinstance(vit.model, vit_lib.ViT):
    caption += (
      ' This hybrid embeds the features of a ResNet at the patch, which depend'
      ' on pixels around the patch, too.'
    )
  elif not isinstance(vit.model, vit_lib.ViT):
    caption += (
      ' A Mixer (arXiv:2105.01601) mixes them by their place in the sequence.'
    )
  figure = draw_sequence(image, grid, [name for name, _ in names])
  return Drawn(caption, [('', figure)], {'grid': grid})


def prefix_names(vit: weights.Loaded) -> list[tuple[str, str]]:
  """Returns short names and kinds of the tokens before the patches."""
  names = []
  for kind in getattr(vit.model, 'prefix', ()):
    short = _PREFIX[kind]
    if kind == 'register_tokens':
      count = vit.model.registers  # type: ignore[union-attr]
      names += [(f'{short} {i}', 'registers') for i in range(count)]
    else:
      names.append((short, kind.replace('_', ' ')))
  return names


def draw_sequence(
  image: np.ndarray, grid: tuple[int, int], prefix: Sequence[str]
) -> np.ndarray:
  """Draws an image, its patches with gaps, and the sequence of tokens.

  Args:
    image: uint8 [h * a, w * b, 3], so that patches are whole pixels.
    grid: (h, w).
    prefix: Names of the tokens before the patches.

  Returns:
    The picture, uint8 [height, width, 3].
  """
  h, w = grid
  a, b = image.shape[0] // h, image.shape[1] // w
  patches = image.reshape(h, a, w, b, 3).swapaxes(1, 2).reshape(-1, a, b, 3)
  ruled = image.copy()  # with borders, visible on black and on white
  ruled[np.arange(1, h) * a] = style.rgb(style.FAINT)
  ruled[:, np.arange(1, w) * b] = style.rgb(style.FAINT)
  picture = sheet.draw(
    [[sheet.Tile(ruled), sheet.Tile(_spread(patches, grid))]],
    heads=[f'{h} × {w} patches', 'in the order of reading'],
  )
  tokens = [sheet.Tile(_box(_TOKEN), name) for name in prefix]
  for patch in shown_patches(h * w, _MOST - len(prefix)):
    if patch is None:
      tokens.append(sheet.Tile(_box(style.PAPER, '…')))
      continue
    token = sheet.fit(patches[patch], (_SIDE, _SIDE))
    tokens.append(sheet.Tile(token, str(patch)))
  title = f'The sequence of {len(prefix) + h * w} tokens'
  return paper_lib.stack([picture, sheet.draw([tokens], title=title)])


def shown_patches(count: int, most: int) -> list[int | None]:
  """Returns the first and the last of all patches, None standing for others.

  The list is at most `most` long.
  """
  if count <= most:
    return list(range(count))
  first = range(most - _LAST - 1)
  return [*first, None, *range(count - _LAST, count)]


def _spread(patches: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
  """Returns the patches [h * w, a, b, 3] in their places, in frames."""
  gap = _NARROW if max(grid) > _MANY else _WIDE
  spaced = patches
  for margins, colour in (((1, 1), style.FAINT), ((0, gap), style.PAPER)):
    sides = [(0, 0), margins, margins, (0, 0)]
    spaced = np.pad(spaced, sides, constant_values=style.rgb(colour)[0])
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


def filters(subject: Subject) -> Drawn:
  """Draws the principal components of the patch embedding's filters."""
  components, shares = positions.filter_components(subject.vit, count=_FILTERS)
  captions = [f'{i + 1}\n{share:.1%}' for i, share in enumerate(shares)]
  caption = (
    f'The first {len(components)} principal components of the filters of the'
    ' patch embedding (arXiv:2010.11929, figure 7, left), with the share of the'
    f' variance that each explains; together {shares.sum():.1%}. The sign of a'
    f' component has no meaning. {_filter_colours(components)}'
  )
  drawn = _filter_sheet(components, _FILTER_COLUMNS, (120, 128), captions)
  return Drawn(caption, [('', drawn)], {'explained_variance': shares})


def stem(subject: Subject) -> Drawn:
  """Draws the first filters of a ResNet."""
  filters = positions.stem_filters(subject.vit)
  name = 'this ResNet (arXiv:1912.11370)'
  if isinstance(subject.vit.model, vit_lib.ViT):
    name = (
      'the ResNet that comes before the encoder (the hybrid of'
      ' arXiv:2010.11929, section 3.1)'
    )
  caption = (
    f'The {len(filters)} filters of the first convolution of {name},'
    f' standardised as the model uses them. {_filter_colours(filters)}'
  )
  captions = [str(i) for i in range(len(filters))]
  drawn = _filter_sheet(filters, _STEM_COLUMNS, (80, 112), captions)
  return Drawn(caption, [('', drawn)])


def _filter_colours(filters: np.ndarray) -> str:
  """Returns a sentence on the colours of filters [F, p, q, C]."""
  if filters.shape[-1] in _WITH_COLOURS:
    return 'Colours are weights of red, green and blue; grey is 0.'
  return 'Colours are weights relative to the largest of each filter.'


def _filter_sheet(
  filters: np.ndarray,
  columns: int,
  limits: tuple[int, int],
  captions: Sequence[str],
) -> np.ndarray:
  """Returns a sheet of filters [F, p, q, C], each scaled by its largest weight.

  `limits` are the minimum and maximum of a tile's longer side, in pixels.
  Captions are below the filters.
  """
  size = filters.shape[1:3]
  shape = tiles.tile_shape(size, size, columns, limits=limits)
  largest = np.abs(filters).max(axis=(1, 2, 3), keepdims=True)
  scaled = filters / np.where(largest > 0, largest, 1)
  if filters.shape[-1] in _WITH_COLOURS:
    images = tiles.fit_all(sheet.to_rgb((scaled[..., :3] + 1) / 2), shape)
    scale = None
  else:
    ends = -1.0, 1.0
    images = [tiles.color(x[..., 0], shape, ends, style.SIGNED) for x in scaled]
    scale = sheet.Scale(*ends, 'weight / largest weight', style.SIGNED)
  groups = [[sheet.Tile(*pair)] for pair in zip(images, captions, strict=True)]
  return sheet.draw(sheet.grouped(groups, columns), scale=scale)


def positions_grid(subject: Subject) -> Drawn:
  """Draws the similarity of position embeddings, before and after a resize."""
  vit = subject.vit
  size = vit.preprocess.image_size
  resized = subject.options.position_size
  if resized is None:  # 1.5 times as large, in whole patches
    patch = models.pixels_per_token(vit.model)
    if patch is None:
      raise UserError('the model has no patches, and so no positions')
    height, width = (
      max(round(1.5 * n / p), n // p + 1) * p
      for n, p in zip(size, patch, strict=True)
    )
    resized = height, width
  figures, sides = [], [*features.patch_grid(vit)]
  for image_size in (size, resized):
    similarity = positions.position_similarity(
      vit, None if image_size == size else image_size
    )
    h, w = similarity.shape[:2]
    sides += [h, w]
    label = (
      f'{h} × {w} patches: images of {image_size[0]} × {image_size[1]} pixels'
    )
    if image_size != size:
      label += ', resized'
    figures.append((label, _grid_of_grids(similarity)))
  spread = (
    f' Where there are more than {_MOST_QUERIES} rows or columns, evenly spread'
    ' ones are shown.'
  )
  explanation = (
    'after the embeddings have been resized for another image size, as for'
    f' fine-tuning (method {vit.resize!r})'
  )
  parts = getattr(vit.model, 'positions', ())
  if any(isinstance(part, positions_lib.SinCos) for part in parts):
    explanation = 'for another image size: sines and cosines are computed anew'
  caption = (
    'The map in row i, column j is the cosine similarity of the position'
    ' embedding of the patch in row i, column j of the image to the embeddings'
    ' of all patches (arXiv:2010.11929, figure 7, centre).'
    f'{spread if max(sides) > _MOST_QUERIES else ""} The second picture is the'
    f' same {explanation}. --position_size sets another size.'
  )
  return Drawn(caption, figures)


def _grid_of_grids(similarity: np.ndarray) -> np.ndarray:
  """Returns a sheet of similarity [h, w, h, w], for evenly spread patches."""
  h, w = similarity.shape[:2]
  rows, columns = (tiles.spread(n, _MOST_QUERIES) for n in (h, w))
  limits = -1.0, 1.0
  shape = tiles.tile_shape((h, w), (h, w), len(columns), width=1720)
  return sheet.draw(
    [
      [
        sheet.Tile(tiles.color(similarity[i, j], shape, limits, style.SIGNED))
        for j in columns
      ]
      for i in rows
    ],
    heads=[f'column {j}' for j in columns],
    names=[f'row {i}' for i in rows],
    scale=sheet.Scale(*limits, 'cosine similarity', style.SIGNED),
  )
