"""Pictures of tokens: norms, similarity, components, classification."""

from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

from vit_jax.config import counted
from vit_jax.config import UserError
from vit_jax.evaluation import report
from vit_jax.explore import model_pictures
from vit_jax.explore import neighbors as neighbors_lib
from vit_jax.explore import prediction_pictures
from vit_jax.explore import predictions as predictions_lib
from vit_jax.explore import similarity as similarity_lib
from vit_jax.explore import subject as subject_lib
from vit_jax.explore import tokens as tokens_lib
from vit_jax.plots import charts
from vit_jax.plots import matrix
from vit_jax.plots import paper
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles
from vit_jax.weights import features

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_COLUMNS = 10  # columns of a sheet with a group of tiles for each image
_LIMITS = (224, 288)  # pixels of a tile's longer side: its caption needs them
_MOST_DECODED = (
  1000  # examples that a linear classifier is trained and tested on
)
_LEAST_DECODED = 4


def norms(subject: Subject) -> Drawn:
  """Draws the norms of tokens, by layer and as maps."""
  vit, norms_by_layer = subject.vit, subject.captured.norms
  patches = norms_by_layer[:, :, features.prefix_length(vit) :]
  kinds = [kind for _, kind in model_pictures.prefix_names(vit)]
  token_norms = {}
  for kind in dict.fromkeys(kinds):
    tokens = [i for i, k in enumerate(kinds) if k == kind]
    token_norms[kind] = norms_by_layer[:, :, tokens].mean(axis=(1, 2))

  def figures() -> Iterator[tuple[str, Any]]:
    flat = patches.reshape(len(patches), -1)
    yield 'by layer', charts.norms_by_depth(flat, token_norms)
    yield 'of each patch', _norm_maps(subject, patches)

  caption = (
    'The L2 norm of each token in the residual stream after each layer. A few'
    ' patches with very large norms are outliers: large models store global'
    ' information in patches with little content; registers take over that'
    ' role (arXiv:2309.16588, section 2). The maps of all images and layers'
    ' have one scale.'
  )
  percentiles = np.percentile(patches, (5, 50, 95, 100), axis=(1, 2)).T
  numbers = {'patches_percentiles_5_50_95_100': percentiles, **token_norms}
  return Drawn(caption, figures(), numbers)


def _norm_maps(subject: Subject, patches: np.ndarray) -> np.ndarray:
  """Returns a sheet of the norms of patches [L, B, h * w]."""
  maps = patches.reshape(*patches.shape[:2], *features.patch_grid(subject.vit))
  values = maps[list(subject.options.layers)]
  low, high = float(values.min()), float(values.max())
  scale = sheet.Scale(low, high, 'L2 norm of the token')
  return _map_rows(subject, maps, scale)


def _map_rows(
  subject: Subject,
  maps: np.ndarray,
  scale: sheet.Scale,
  marked: tuple[int, int] | None = None,
) -> np.ndarray:
  """Returns a row for each image: itself, and its map in each layer shown.

  maps: [L, B, h, w].
  """
  layers, grid = subject.options.layers, features.patch_grid(subject.vit)
  shape = tiles.tile_shape(
    subject.vit.preprocess.image_size, grid, len(layers) + 1
  )
  images = tiles.fit_all(subject.pixels, shape)
  if marked is not None:
    images = [tiles.mark(image, marked, grid) for image in images]
  limits = scale.low, scale.high
  rows = [
    [
      sheet.Tile(image),
      *(
        sheet.Tile(tiles.color(maps[x, i], shape, limits, scale.colours))
        for x in layers
      ),
    ]
    for i, image in enumerate(images)
  ]
  return sheet.draw(
    rows,
    heads=['image', *(f'layer {layer}' for layer in layers)],
    names=subject.captions,
    scale=scale,
  )


def similarity(subject: Subject) -> Drawn:
  """Draws the cosine similarity of each patch to a chosen one, by layer."""
  similarity = subject.captured.similarity
  layers, patch = subject.options.layers, subject.options.query
  scale = sheet.Scale(0.0, 1.0, 'cosine similarity')
  if similarity[list(layers)].min() < 0:
    scale = scale._replace(low=-1.0, colours=style.SIGNED)
  drawn = _map_rows(subject, similarity, scale, patch)
  caption = (
    'Cosine similarity of the token of each patch to that of the patch in row'
    f' {patch[0]}, column {patch[1]}, after each layer (as in DINOv3,'
    ' arXiv:2508.10104). The patch is framed; choose another with'
    ' --query=ROW,COLUMN. Rows, columns and layers are counted from 0.'
  )
  return Drawn(caption, [('', drawn)], {'patch': patch})


def pca(subject: Subject) -> Drawn:
  """Draws the principal components of patch tokens as colours."""
  grid = features.patch_grid(subject.vit)
  components = {
    layer: tokens_lib.pca(subject.captured.layer_tokens(layer), grid)
    for layer in subject.options.some_layers
  }
  size = len(components) + 1
  columns = max(1, _COLUMNS // size) * size
  shape = tiles.tile_shape(
    subject.vit.preprocess.image_size, grid, columns, limits=_LIMITS
  )
  groups = [
    [
      sheet.Tile(image, caption),
      *(
        sheet.Tile(tiles.fit(tiles.to_rgb(x[i]), shape))
        for x in components.values()
      ),
    ]
    for i, (image, caption) in enumerate(
      zip(tiles.fit_all(subject.pixels, shape), subject.captions, strict=True)
    )
  ]
  drawn = sheet.draw(
    tiles.grouped(groups, columns),
    heads=['image', *(f'layer {layer}' for layer in components)],
    group=size,
  )
  caption = (
    'The first three principal components of the tokens of all patches of all'
    ' images together, as red, green and blue, from the 1st to the 99th'
    ' percentile of each (arXiv:2304.07193, figure 1). Similar colours in one'
    ' layer are similar tokens, also in different images.'
  )
  return Drawn(caption, [('', drawn)])


def foreground(subject: Subject) -> Drawn:
  """Draws the components of the foreground's patches as colours."""
  vit, grid = subject.vit, features.patch_grid(subject.vit)
  patches = tokens_lib.patch_features(vit, subject.images.inputs)
  predictions_lib.check_finite(patches)
  foreground = tokens_lib.foreground(patches, grid)
  columns = max(1, _COLUMNS // 3) * 3
  shape = tiles.tile_shape(
    vit.preprocess.image_size, grid, columns, limits=_LIMITS
  )
  limit = float(np.abs(foreground.score).max()) or 1.0
  images = tiles.fit_all(subject.pixels, shape)
  groups = [
    [
      sheet.Tile(image, caption),
      sheet.Tile(tiles.color(score, shape, (-limit, limit), style.SIGNED)),
      sheet.Tile(
        tiles.cover(tiles.fit(tiles.to_rgb(colors), shape), score <= 0)
      ),
    ]
    for image, caption, score, colors in zip(
      images, subject.captions, *foreground, strict=True
    )
  ]
  drawn = sheet.draw(
    tiles.grouped(groups, columns),
    heads=['image', 'first component', 'foreground'],
    group=3,
    scale=sheet.Scale(-limit, limit, 'first component', style.SIGNED),
  )
  caption = (
    f'Two PCAs of the patch features of {counted(len(images), "image")}'
    ' together, after the last norm (arXiv:2304.07193, figure 1). Patches whose'
    ' first component is positive are the foreground, and the others are'
    ' covered. The sign of the component is chosen so that fewer patches of the'
    ' foreground are at the borders of images. The second PCA is over the'
    ' foreground of all images. Its first three components are red, green and'
    ' blue, from the 1st to the 99th percentile of each. The picture is'
    ' meaningful for photos of objects before a background, and for large'
    ' models that are trained without labels. Elsewhere the first component'
    ' need not separate an object from its background.'
  )
  share = (foreground.score > 0).mean(axis=(1, 2))
  return Drawn(caption, [('', drawn)], {'foreground_share': share})


def neighbors(subject: Subject) -> Drawn:
  """Draws the nearest neighbours of each image, by the input of the head."""
  neighbors = _nearest(subject)
  if not neighbors.similarity.size:
    raise UserError(
      'one image has no neighbours: give more with --images, or with --data and'
      ' --split'
    )
  size = subject.vit.preprocess.image_size
  count = neighbors.similarity.shape[1]
  shape = tiles.tile_shape(size, size, count + 1, limits=(192, 224))
  rows = [
    [sheet.Tile(image), *_neighbor_tiles(neighbors, i, truth, shape)]
    for i, (image, truth) in enumerate(
      zip(
        tiles.fit_all(subject.pixels, shape),
        subject.images.truths,
        strict=True,
      )
    )
  ]
  drawn = sheet.draw(
    rows,
    heads=['image', *(f'neighbour {i + 1}' for i in range(count))],
    names=subject.captions,
  )
  caption = (
    f'The {count} nearest neighbours of each image among {neighbors.gallery},'
    " by the cosine similarity of the classifier's inputs, which is below each."
    ' Choose another number with --neighbors.'
  )
  if any(subject.images.truths) and any(map(any, neighbors.labels)):
    caption += ' Neighbours with another label than the image are framed.'
  numbers = {
    'images': subject.images.names,
    'neighbors': neighbors.names,
    'labels': neighbors.labels,
    'similarity': neighbors.similarity,
  }
  return Drawn(caption, [('', drawn)], numbers)


def _neighbor_tiles(
  neighbors: '_Neighbors', row: int, truth: str, shape: tuple[int, int]
) -> list[sheet.Tile]:
  """Returns the neighbours of an image whose label is `truth`, or ''."""
  result = []
  for i, pixels in enumerate(tiles.fit_all(neighbors.pixels[row], shape)):
    label = neighbors.labels[row][i]
    caption = (
      f'{label or neighbors.names[row][i]}\n{neighbors.similarity[row, i]:.3f}'
    )
    is_wrong = bool(truth and label) and label != truth
    result.append(sheet.Tile(pixels, caption, style.WRONG if is_wrong else ''))
  return result


class _Neighbors(NamedTuple):
  """Neighbours of B images, the nearest first.

  Attributes:
    similarity: float32 [B, k].
    names: Names of the neighbours, B times k.
    labels: Names of their labels, B times k; '' where unknown.
    pixels: uint8 [B, k, H, W, 3].
    gallery: Words for the images that were searched.
  """

  similarity: np.ndarray
  names: list[list[str]]
  labels: list[list[str]]
  pixels: np.ndarray
  gallery: str


def _nearest(subject: Subject) -> _Neighbors:
  """Returns neighbours among the labelled examples, else among the images."""
  images, count = subject.images, subject.options.neighbors
  x = features.embeddings(subject.vit, images.inputs)
  predictions_lib.check_finite(x)
  if subject.labelled is None:
    similarity, positions = neighbors_lib.nearest(
      x, x, np.arange(len(x)), count
    )
    names = [[images.names[i] for i in row] for row in positions]
    gallery = f'the other {counted(len(x) - 1, "image")}'
    labels = [['' for _ in row] for row in positions]
    return _Neighbors(
      similarity, names, labels, subject.pixels[positions], gallery
    )
  examples = subject.examples
  rows = np.asarray(images.rows) if images.rows else None
  similarity, positions = neighbors_lib.nearest(
    x, subject.embeddings, rows, count
  )
  names = [[examples.names[i] for i in row] for row in positions]
  labels = [
    [examples.classes[examples.label[i]] for i in row] for row in positions
  ]
  inputs = examples.inputs(positions.reshape(-1))
  pixels = tiles.pixels(subject.vit.preprocess, inputs)
  gallery = prediction_pictures.describe(examples)
  pixels = pixels.reshape(*positions.shape, *pixels.shape[1:])
  return _Neighbors(similarity, names, labels, pixels, gallery)


def cka(subject: Subject) -> Drawn:
  """Draws CKA between the layers of one model, or of two."""
  count = len(subject.images.inputs)
  similarity = _layer_cka(subject)
  other_similarity = None
  if subject.second_vit is not None:
    other_similarity = similarity_lib.layer_cka(
      subject.vit, subject.images.sources, subject.second_vit
    )

  def figures() -> Iterator[tuple[str, Any]]:
    label = subject.name if other_similarity is not None else ''
    yield label, _cka_matrix(similarity, subject.name, subject.name)
    if other_similarity is not None:
      label = f'{subject.name} and {subject.second_name}'
      yield (
        label,
        _cka_matrix(other_similarity, subject.name, subject.second_name),
      )

  caption = (
    f'How alike the tokens of {count} images are after any two layers, by'
    ' linear centred kernel alignment (arXiv:1905.00414) with the unbiased'
    ' estimate for few images (arXiv:2010.15327): 1 where one'
    ' is a rotation of the other, about 0 where they have nothing in common;'
    ' of few images it is noisy, and may be below 0.'
  )
  if other_similarity is None:
    caption += ' With --other=PATH, of two models.'
  numbers = {'layers': similarity}
  if other_similarity is not None:
    numbers['layers_and_other'] = other_similarity
  return Drawn(caption, figures(), numbers)


def _layer_cka(subject: Subject) -> np.ndarray:
  """Returns CKA of the model's own layers, float32 [L, L]."""
  captured, inputs = subject.captured, subject.images.inputs
  has_all = len(captured.layers) == features.depth(subject.vit)
  if has_all and len(inputs) >= similarity_lib.LEAST:
    return similarity_lib.layers_cka(captured.tokens, captured.tokens)
  # In batches, in another pass; raises an error if there are too few images.
  return similarity_lib.layer_cka(subject.vit, inputs)


def _cka_matrix(values: np.ndarray, row_model: str, column_model: str) -> Any:
  is_symmetric = row_model == column_model
  rows, columns = ([str(i) for i in range(n)] for n in values.shape)
  texts = np.vectorize(lambda x: '' if np.isnan(x) else f'{x:.2f}')(values)
  low = float(np.min(np.nan_to_num(values), initial=0.0))
  cells = matrix.draw(
    (values - low) / (1 - low),
    texts,
    (rows, columns),
    (
      'layer' if is_symmetric else f'layer of {row_model}',
      'layer' if is_symmetric else f'layer of {column_model}',
    ),
    style.HEAT,
  )
  scale = sheet.Scale(low, 1.0, 'CKA (1: equal but for rotation and scale)')
  return paper.stack([sheet.draw_scale(scale), cells])


def decodability(subject: Subject) -> Drawn:
  """Draws the accuracy of a linear classifier on each layer."""
  examples = subject.examples
  count = min(len(examples), _MOST_DECODED)
  described = prediction_pictures.describe(examples)
  if count < _LEAST_DECODED:
    raise UserError(
      f'{described} are too few: --split must have at least {_LEAST_DECODED}'
    )
  train, test = np.arange(0, count, 2), np.arange(1, count, 2)
  accuracy = similarity_lib.layer_decodability(
    subject.vit,
    examples.inputs(train),
    examples.label[train],
    examples.inputs(test),
    examples.label[test],
  )
  intervals = np.array(
    [report.wilson(round(float(a) * len(test)), len(test)) for a in accuracy]
  )
  most = np.bincount(examples.label[test]).max() / len(test)
  level = charts.Level(float(most), 'the most frequent class')
  figure = charts.accuracy_by_depth(accuracy, intervals, level)
  caption = (
    'Accuracy of a linear classifier on the mean patch token after each layer:'
    ' a ridge regression of standardised features, whose penalty is chosen by'
    f' leave-one-out, trained on {len(train)} and tested on {len(test)}'
    f' examples, every second one of {described} (at most {_MOST_DECODED}).'
    ' Bars are 95% intervals (Wilson).'
  )
  numbers = {'accuracy': accuracy, 'interval': intervals}
  return Drawn(caption, [('', figure)], numbers)
