"""Pictures of tokens: norms, similarity, components, classification."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax.config import counted
from vit_jax.config import UserError
from vit_jax.evaluation import intervals
from vit_jax.evaluation import knn
from vit_jax.explore import model_pictures
from vit_jax.explore import predictions as predictions_lib
from vit_jax.explore import sheets
from vit_jax.explore import similarity as similarity_lib
from vit_jax.explore import subject as subject_lib
from vit_jax.explore import tokens as tokens_lib
from vit_jax.plots import charts
from vit_jax.plots import scales
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles
from vit_jax.weights import features

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_COLUMNS = 10  # columns of a sheet with a group of tiles for each image
# Examples that a linear classifier is trained and tested on.
_LEAST_DECODED, _MOST_DECODED = 4, 1000


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
    maps = patches.reshape(*patches.shape[:2], *features.patch_grid(vit))
    values = maps[list(subject.options.layers)]
    low, high = float(values.min()), float(values.max())
    scale = sheet.Scale(low, high, 'L2 norm of the token')
    yield 'of each patch', sheets.layer_rows(subject, maps, scale)

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


def similarity(subject: Subject) -> Drawn:
  """Draws the cosine similarity of each patch to a chosen one, by layer."""
  similarity = subject.captured.similarity
  layers, patch = subject.options.layers, subject.options.query
  scale = sheet.Scale(0.0, 1.0, 'cosine similarity')
  if similarity[list(layers)].min() < 0:
    scale = scale._replace(low=-1.0, colours=style.SIGNED)
  drawn = sheets.layer_rows(subject, similarity, scale, patch)
  caption = (
    'Cosine similarity of the token of each patch to that of the patch in row'
    f' {patch[0]}, column {patch[1]}, after each layer (as in DINOv3,'
    ' arXiv:2508.10104). The patch is framed; choose another with'
    ' --query=ROW,COLUMN. Rows, columns and layers are counted from 0.'
  )
  return Drawn(caption, [('', drawn)], {'patch': patch})


def pca(subject: Subject) -> Drawn:
  """Draws the principal components of patch tokens as colours."""
  grid, layers = features.patch_grid(subject.vit), subject.options.some_layers
  captured = subject.captured
  components = [
    tokens_lib.pca(captured.tokens[captured.layers.index(layer)], grid)
    for layer in layers
  ]
  columns = sheets.whole_groups(len(components) + 1, _COLUMNS)
  images = sheets.image_tiles(subject, columns, sheets.LIMITS)
  shape = images[0].shape[:2]
  maps = [
    [sheet.Tile(sheet.fit(sheet.to_rgb(x), shape)) for x in by_layer]
    for by_layer in zip(*components, strict=True)
  ]
  heads = [f'layer {layer}' for layer in layers]
  drawn = sheets.groups(subject, images, maps, heads, columns)
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
  limit = float(np.abs(foreground.score).max()) or 1.0
  scale = sheet.Scale(-limit, limit, 'first component', style.SIGNED)
  columns = sheets.whole_groups(3, _COLUMNS)
  images = sheets.image_tiles(subject, columns, sheets.LIMITS)
  maps = []
  for score, colors in zip(*foreground, strict=True):
    fitted = sheet.fit(sheet.to_rgb(colors), images[0].shape[:2])
    covered = sheet.Tile(tiles.cover(fitted, score <= 0))
    maps.append([*sheets.colored([score], images, scale), covered])
  heads = ['first component', 'foreground']
  drawn = sheets.groups(subject, images, maps, heads, columns, scale)
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
  """Draws the nearest neighbours of each image, by the input of the head.

  The neighbours are labelled examples if there are any, else other images.
  """
  images, count = subject.images, subject.options.neighbors
  x = features.embeddings(subject.vit, images.inputs)
  predictions_lib.check_finite(x)
  if subject.labelled is None:
    similarity, positions = knn.nearest_others(x, x, np.arange(len(x)), count)
    names = [[images.names[i] for i in row] for row in positions]
    labels = [['' for _ in row] for row in positions]
    pixels = subject.pixels[positions]
    gallery = f'the other {counted(len(x) - 1, "image")}'
  else:
    examples = subject.examples
    rows = np.asarray(images.rows) if images.rows else None
    similarity, positions = knn.nearest_others(
      x, subject.embeddings, rows, count
    )
    names = [[examples.names[i] for i in row] for row in positions]
    labels = [
      [examples.classes[examples.label[i]] for i in row] for row in positions
    ]
    inputs = examples.inputs(positions.reshape(-1))
    flat = tiles.pixels(subject.vit.preprocess, inputs)
    pixels = flat.reshape(*positions.shape, *flat.shape[1:])
    gallery = examples.described
  if not similarity.size:
    raise UserError(
      'one image has no neighbours: give more with --images, or with --data and'
      ' --split'
    )
  size, count = subject.vit.preprocess.image_size, similarity.shape[1]
  shape = tiles.tile_shape(size, size, count + 1, limits=(192, 224))
  tile_rows = []
  for i, image in enumerate(tiles.fit_all(subject.pixels, shape)):
    row = [sheet.Tile(image)]
    truth = images.truths[i]
    for j, neighbor in enumerate(tiles.fit_all(pixels[i], shape)):
      label = labels[i][j]
      text = f'{label or names[i][j]}\n{similarity[i, j]:.3f}'
      is_wrong = bool(truth and label) and label != truth
      row.append(sheet.Tile(neighbor, text, style.WRONG if is_wrong else ''))
    tile_rows.append(row)
  drawn = sheet.draw(
    tile_rows,
    heads=['image', *(f'neighbour {i + 1}' for i in range(count))],
    names=subject.captions,
  )
  caption = (
    f'The {count} nearest neighbours of each image among {gallery},'
    " by the cosine similarity of the classifier's inputs, which is below each."
    ' Choose another number with --neighbors.'
  )
  if any(images.truths) and any(map(any, labels)):
    caption += ' Neighbours with another label than the image are framed.'
  numbers = {
    'images': images.names,
    'neighbors': names,
    'labels': labels,
    'similarity': similarity,
  }
  return Drawn(caption, [('', drawn)], numbers)


def cka(subject: Subject) -> Drawn:
  """Draws CKA between the layers of one model, or of two."""
  captured, inputs = subject.captured, subject.images.inputs
  name, other_name = subject.name, subject.second_name
  has_all = len(captured.layers) == features.depth(subject.vit)
  if has_all and len(inputs) >= similarity_lib.LEAST:
    values = similarity_lib.layers_cka(captured.tokens, captured.tokens)
  else:  # in batches, in another pass; refuses too few images
    values = similarity_lib.layer_cka(subject.vit, inputs)
  caption = (
    f'How alike the tokens of {len(inputs)} images are after any two layers, by'
    ' linear centred kernel alignment (arXiv:1905.00414) with the unbiased'
    ' estimate for few images (arXiv:2010.15327): 1 where one'
    ' is a rotation of the other, about 0 where they have nothing in common;'
    ' of few images it is noisy, and may be below 0.'
  )
  numbers = {'layers': values}
  if subject.second_vit is None:
    caption += ' With --other=PATH, of two models.'
    return Drawn(caption, [('', _cka_matrix(values, name, name))], numbers)
  other_values = similarity_lib.layer_cka(
    subject.vit, subject.images.sources, subject.second_vit
  )
  figures = [
    (name, _cka_matrix(values, name, name)),
    (f'{name} and {other_name}', _cka_matrix(other_values, name, other_name)),
  ]
  return Drawn(caption, figures, numbers | {'layers_and_other': other_values})


def _cka_matrix(values: np.ndarray, row_model: str, column_model: str) -> Any:
  rows, columns = ([str(i) for i in range(n)] for n in values.shape)
  texts = np.vectorize(lambda x: '' if np.isnan(x) else f'{x:.2f}')(values)
  low = float(np.min(np.nan_to_num(values), initial=0.0))
  axes = 'layer', 'layer'
  if row_model != column_model:
    axes = f'layer of {row_model}', f'layer of {column_model}'
  label = 'CKA (1: equal but for rotation and scale)'
  return scales.heat_map(values, texts, (rows, columns), axes, (low, 1), label)


def decodability(subject: Subject) -> Drawn:
  """Draws the accuracy of a linear classifier on each layer."""
  examples = subject.examples
  count = min(len(examples), _MOST_DECODED)
  if count < _LEAST_DECODED:
    raise UserError(
      f'{examples.described} are too few: --split must have at least'
      f' {_LEAST_DECODED}'
    )
  train, test = np.arange(0, count, 2), np.arange(1, count, 2)
  accuracy = similarity_lib.layer_decodability(
    subject.vit,
    examples.inputs(train),
    examples.label[train],
    examples.inputs(test),
    examples.label[test],
  )
  bounds = np.array(
    [intervals.wilson(round(float(a) * len(test)), len(test)) for a in accuracy]
  )
  most = np.bincount(examples.label[test]).max() / len(test)
  level = charts.Level(float(most), 'the most frequent class')
  figure = charts.accuracy_by_depth(accuracy, bounds, level)
  caption = (
    'Accuracy of a linear classifier on the mean patch token after each layer:'
    ' a ridge regression of standardised features, whose penalty is chosen by'
    f' leave-one-out, trained on {len(train)} and tested on {len(test)}'
    f' examples, every second one of {examples.described} (at most'
    f' {_MOST_DECODED}). Bars are 95% intervals (Wilson).'
  )
  numbers = {'accuracy': accuracy, 'interval': bounds}
  return Drawn(caption, [('', figure)], numbers)
