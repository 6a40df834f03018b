"""Pictures of the parameters of a model, and of an image as its patches."""

from collections.abc import Sequence

import numpy as np

from vit_jax import models
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.explore import patch_sequence
from vit_jax.explore import positions
from vit_jax.explore import subject as subject_lib
from vit_jax.models import vit as vit_lib
from vit_jax.models.parts import positions as positions_lib
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles
from vit_jax.weights import features

Drawn = subject_lib.Drawn

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


def patches(subject: subject_lib.Subject) -> Drawn:
  """Draws the first image as its sequence of patches."""
  vit = subject.vit
  grid = features.patch_grid(vit)
  size = vit.preprocess.image_size
  shape = tiles.tile_shape(size, grid, 1, limits=(192, 560))
  image = tiles.fit(subject.pixels[0], shape)
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
  figure = patch_sequence.draw(image, grid, [name for name, _ in names])
  return Drawn(caption, [('', figure)], {'grid': grid})


def prefix_names(vit: weights.Loaded) -> list[tuple[str, str]]:
  """Returns short names and kinds of the tokens before the patches."""
  result = []
  for kind in getattr(vit.model, 'prefix', ()):
    short = _PREFIX[kind]
    if kind == 'register_tokens':
      count = vit.model.registers  # type: ignore[union-attr]
      result += [(f'{short} {i}', 'registers') for i in range(count)]
    else:
      result.append((short, kind.replace('_', ' ')))
  return result


def filters(subject: subject_lib.Subject) -> Drawn:
  """Draws the principal components of the patch embedding's filters."""
  components, shares = positions.filter_components(subject.vit, count=_FILTERS)
  p, q = components.shape[1:3]
  shape = tiles.tile_shape((p, q), (p, q), _FILTER_COLUMNS, limits=(120, 128))
  captions = [f'{i + 1}\n{share:.1%}' for i, share in enumerate(shares)]
  caption = (
    f'The first {len(components)} principal components of the filters of the'
    ' patch embedding (arXiv:2010.11929, figure 7, left), with the share of the'
    f' variance that each explains; together {shares.sum():.1%}. The sign of a'
    f' component has no meaning. {_filter_colours(components)}'
  )
  numbers = {'explained_variance': shares}
  drawn = _filter_sheet(components, shape, _FILTER_COLUMNS, captions)
  return Drawn(caption, [('', drawn)], numbers)


def stem(subject: subject_lib.Subject) -> Drawn:
  """Draws the first filters of a ResNet."""
  filters = positions.stem_filters(subject.vit)
  shape = tiles.tile_shape(
    filters.shape[1:3], filters.shape[1:3], _STEM_COLUMNS, limits=(80, 112)
  )
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
  drawn = _filter_sheet(filters, shape, _STEM_COLUMNS, captions)
  return Drawn(caption, [('', drawn)])


def _filter_colours(filters: np.ndarray) -> str:
  """Returns a sentence on the colours of filters [F, p, q, C]."""
  if filters.shape[-1] in _WITH_COLOURS:
    return 'Colours are weights of red, green and blue; grey is 0.'
  return 'Colours are weights relative to the largest of each filter.'


def _filter_sheet(
  filters: np.ndarray,
  shape: tuple[int, int],
  columns: int,
  captions: Sequence[str],
) -> np.ndarray:
  """Returns a sheet of filters [F, p, q, C], each scaled by its largest."""
  largest = np.abs(filters).max(axis=(1, 2, 3), keepdims=True)
  scaled = filters / np.where(largest > 0, largest, 1)
  if filters.shape[-1] in _WITH_COLOURS:
    images = tiles.fit_all(tiles.to_rgb((scaled[..., :3] + 1) / 2), shape)
    scale = None
  else:
    limits = -1.0, 1.0
    images = [
      tiles.color(x[..., 0], shape, limits, style.SIGNED) for x in scaled
    ]
    scale = sheet.Scale(*limits, 'weight / largest weight', style.SIGNED)
  groups = [
    [sheet.Tile(x, caption)]
    for x, caption in zip(images, captions, strict=True)
  ]
  return sheet.draw(tiles.grouped(groups, columns), scale=scale)


def positions_grid(subject: subject_lib.Subject) -> Drawn:
  """Draws the similarity of position embeddings, before and after a resize."""
  vit = subject.vit
  size = vit.preprocess.image_size
  resized = subject.options.position_size or _larger(vit)
  figures = []
  for image_size in (size, resized):
    similarity = positions.position_similarity(
      vit, None if image_size == size else image_size
    )
    h, w = resized_grid = similarity.shape[:2]
    label = (
      f'{h} × {w} patches: images of {image_size[0]} × {image_size[1]} pixels'
    )
    if image_size != size:
      label += ', resized'
    figures.append((label, _grid_of_grids(similarity)))
  caption = (
    'The map in row i, column j is the cosine similarity of the position'
    ' embedding of the patch in row i, column j of the image to the embeddings'
    ' of all patches (arXiv:2010.11929, figure 7, centre).'
    f'{_which_rows(features.patch_grid(vit), resized_grid)} {_resize(vit)}'
  )
  return Drawn(caption, figures)


def _which_rows(*grids: tuple[int, int]) -> str:
  if max(max(grid) for grid in grids) <= _MOST_QUERIES:
    return ''
  return (
    f' Where there are more than {_MOST_QUERIES} rows or columns, evenly spread'
    ' ones are shown.'
  )


def _resize(vit: weights.Loaded) -> str:
  """Describes how the second picture was computed."""
  parts = getattr(vit.model, 'positions', ())
  if any(isinstance(part, positions_lib.SinCos) for part in parts):
    explanation = 'for another image size: sines and cosines are computed anew'
  else:
    explanation = (
      'after the embeddings have been resized for another image size, as for'
      f' fine-tuning (method {vit.resize!r})'
    )
  return (
    f'The second picture is the same {explanation}. --position_size sets'
    ' another size.'
  )


def _larger(vit: weights.Loaded) -> tuple[int, int]:
  """Returns the image size times 1.5, in whole patches."""
  patch = models.pixels_per_token(vit.model)
  if patch is None:
    raise UserError('the model has no patches, and so no positions')
  h, w = (
    max(round(1.5 * n / p), n // p + 1) * p
    for n, p in zip(vit.preprocess.image_size, patch, strict=True)
  )
  return h, w


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
