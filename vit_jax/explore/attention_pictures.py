"""Pictures of attention and of its contribution to the output."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax import weights
from vit_jax.config import counted
from vit_jax.explore import attention as attention_lib
from vit_jax.explore import captured as captured_lib
from vit_jax.explore import gradients
from vit_jax.explore import subject as subject_lib
from vit_jax.models.parts import pooling
from vit_jax.plots import charts
from vit_jax.plots import sheet
from vit_jax.plots import tiles
from vit_jax.weights import features

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_VEIL = 0.8  # opacity of the cover of patches outside of a segment
_COLUMNS = 8  # columns of a sheet with a group of tiles for each image
_TOP = 97  # percentile of the values that has the last colour, if it is high
_LEAST_TOP = 2.0  # so that nearly uniform attention is nearly one colour
_UNIFORM = 'attention / uniform attention (1 = all tokens alike)'


def maps(subject: Subject) -> Drawn:
  """Draws the attention of the class token, by layer and head."""
  attention = _attention(subject)
  layers = subject.options.layers
  vit = subject.vit
  values = attention.maps[list(layers)] * features.num_tokens(vit)
  scale = _scale(values, _UNIFORM)
  heads = values.shape[2]
  images = _images(subject, heads + 2)

  def figures() -> Iterator[tuple[str, Any]]:
    for i, caption in enumerate(subject.captions):
      title = subject_lib.one_line(caption)
      rows = [
        [sheet.Tile(images[i]), *_tiles([x.mean(axis=0), *x], images, scale)]
        for x in values[:, i]
      ]
      drawn = sheet.draw(
        rows,
        title=title,
        heads=['image', 'mean', *(f'head {head}' for head in range(heads))],
        names=[f'layer {layer}' for layer in layers],
        scale=scale,
      )
      yield title, drawn

  caption = (
    f'Attention of {_query_token(vit)} to each patch (arXiv:2010.11929,'
    ' appendix A), by layer and head, and its mean over the heads. All pictures'
    ' of this section have one scale: multiples of uniform attention,'
    f' 1/{features.num_tokens(vit)} for each of {features.num_tokens(vit)}'
    ' tokens. Layers and heads are counted from 0.'
  )
  return Drawn(caption, figures(), _scale_numbers(scale, vit))


def _scale(values: np.ndarray, label: str) -> sheet.Scale:
  """Returns one scale for all maps, from 0 to nearly their largest value.

  A few very large values would make all others dark, and have the last colour.
  """
  high = max(float(np.percentile(values, _TOP)), _LEAST_TOP)
  step = 10.0 ** (math.floor(math.log10(high)) - 1)
  high = math.ceil(high / step) * step
  return sheet.Scale(0.0, high, label, exceeded=bool(values.max() > high))


def _scale_numbers(scale: sheet.Scale, vit: weights.Loaded) -> dict[str, float]:
  """Returns what a reader of numbers.json needs to read the colours."""
  uniform = 1 / features.num_tokens(vit)
  return {'uniform_attention': uniform, 'last_colour': scale.high}


def _images(subject: Subject, columns: int) -> list[np.ndarray]:
  """Returns the images as tiles for a sheet with some columns."""
  vit = subject.vit
  grid = features.patch_grid(vit)
  shape = tiles.tile_shape(vit.preprocess.image_size, grid, columns)
  return tiles.fit_all(subject.pixels, shape)


def _tiles(
  values: Iterable[np.ndarray], images: list[np.ndarray], scale: sheet.Scale
) -> list[sheet.Tile]:
  """Returns maps [h, w] in colours, as large as the images."""
  height, width = images[0].shape[:2]
  limits = scale.low, scale.high
  return [sheet.Tile(tiles.color(x, (height, width), limits)) for x in values]


def segments(subject: Subject) -> Drawn:
  """Draws the patches that hold most of the class token's attention."""
  attention_lib.check_class_token(subject.vit)
  mass = subject.options.mass
  # The last layer, whichever layers --layers shows.
  patches = attention_lib.segments(_attention(subject).maps[-1], mass)
  heads = patches.shape[1]
  images = _images(subject, heads + 1)
  rows = [
    [
      sheet.Tile(image),
      *(
        sheet.Tile(tiles.cover(image, ~x, _VEIL), f'{x.sum()} of {x.size}')
        for x in by_head
      ),
    ]
    for image, by_head in zip(images, patches, strict=True)
  ]
  drawn = sheet.draw(
    rows,
    heads=['image', *(f'head {head}' for head in range(heads))],
    names=subject.captions,
  )
  caption = (
    f'The smallest set of patches that holds {mass:.0%} of the attention of the'
    ' class token to all patches (another share with --mass), in each head of'
    ' the last layer (arXiv:2104.14294, section 4.2.2 and figure 4). Other'
    ' patches are covered. Below each image is the number of patches in the'
    ' set.'
  )
  numbers = {'mass': mass, 'patches': patches.sum(axis=(2, 3))}
  return Drawn(caption, [('', drawn)], numbers)


def rollout(subject: Subject) -> Drawn:
  """Draws attention rollout."""
  vit, shares = subject.vit, _attention(subject).rollout
  values = shares * features.num_tokens(vit)
  scale = _scale(values, 'share / equal share (1 = all tokens alike)')
  caption = (
    'The share of each patch in the input of the classifier, by attention'
    ' rollout (arXiv:2005.00928, section 3): the mean attention of the heads'
    ' and the identity in equal parts, for the residual, multiplied through all'
    ' layers.' + _read(vit)
  )
  drawn = _sheet(subject, values[:, None], ['rollout'], scale)
  numbers = {'rollout': shares, **_scale_numbers(scale, vit)}
  return Drawn(caption, [('', drawn)], numbers)


def relevance(subject: Subject) -> Drawn:
  """Draws class relevance."""
  attention_lib.attentive(subject.vit)
  relevance, classes, captions = _class_relevance(subject)
  chosen_classes = (
    'those of --classes' if subject.options.classes else 'the most probable'
  )
  mean = relevance.mean(axis=(-2, -1), keepdims=True)
  values = np.divide(
    relevance, mean, out=np.zeros_like(relevance), where=mean > 0
  )
  scale = _scale(values, 'relevance / mean of the map (1 = all patches alike)')
  caption = (
    f'The relevance of each patch for a class, here {chosen_classes}: attention'
    " weighted by the positive part of the gradient of the class's logit, mean"
    ' over the heads, followed through all layers to the tokens that the'
    ' classifier'
    ' reads (arXiv:2103.15679, equations 5 and 6).' + _read(subject.vit)
  )
  heads = classes if subject.options.classes else ['relevance']
  drawn = _sheet(subject, values, heads, scale, captions)
  numbers = {
    'classes': classes,
    'relevance': relevance,
    'last_colour': scale.high,
  }
  return Drawn(caption, [('', drawn)], numbers)


def _class_relevance(
  subject: Subject,
) -> tuple[np.ndarray, list[str], list[str]]:
  """Returns maps [B, K, h, w], names of the classes, and B x K captions."""
  vit, names, inputs = subject.vit, subject.names, subject.images.inputs
  if chosen := subject.options.classes:
    relevance = [gradients.class_relevance(vit, inputs, i) for i in chosen]
    classes = [names[i] for i in chosen]
    return np.stack(relevance, axis=1), classes, classes * len(inputs)
  best = subject.probabilities.argmax(axis=1)
  captions = [names[i] for i in best]
  maps_of = gradients.class_relevance(vit, inputs, best.tolist())
  return maps_of[:, None], captions, captions


def query(subject: Subject) -> Drawn:
  """Draws the attention of a chosen patch."""
  layers, patch = subject.options.layers, subject.options.query
  vit = subject.vit
  values = _attention(subject).query[list(layers)] * features.num_tokens(vit)
  scale = _scale(values, _UNIFORM)
  caption = (
    f'Attention of the patch in row {patch[0]}, column {patch[1]}, to all'
    ' patches in each layer, mean over the heads. The patch is framed; choose'
    ' another with --query=ROW,COLUMN. Rows, columns and layers are counted'
    ' from 0.'
  )
  images = _images(subject, len(layers) + 1)
  grid = features.patch_grid(vit)
  rows = [
    [
      sheet.Tile(tiles.mark(tile.image, patch, grid))
      for tile in (sheet.Tile(image), *_tiles(values[:, i], images, scale))
    ]
    for i, image in enumerate(images)
  ]
  drawn = sheet.draw(
    rows,
    heads=['image', *(f'layer {layer}' for layer in layers)],
    names=subject.captions,
    scale=scale,
  )
  numbers = {'patch': patch, **_scale_numbers(scale, vit)}
  return Drawn(caption, [('', drawn)], numbers)


def distance(subject: Subject) -> Drawn:
  """Draws attention distance and entropy, by layer and head."""
  attention = _attention(subject)
  levels = _uniform_levels(subject.vit)
  panels = [
    charts.Panel(values, label, charts.Level(level, 'uniform attention'))
    for values, label, level in (
      (attention.distance, 'mean attention distance (pixels)', levels[0]),
      (attention.entropy, 'attention entropy (nats)', levels[1]),
    )
  ]
  caption = (
    'A point for each head of each layer, over'
    f' {counted(len(subject.pixels), "image")}.'
    ' Left, the attention distance: the distance between the centres of two'
    ' patches, weighted by attention, mean over all queries'
    ' (arXiv:2010.11929, figure 7 right and appendix D.7); other tokens are'
    ' left out. Right, the entropy of the attention over all tokens, mean over'
    ' all queries.'
  )
  numbers = {
    'distance_pixels': attention.distance,
    'entropy_nats': attention.entropy,
  }
  return Drawn(caption, [('', charts.heads_by_depth(panels))], numbers)


def _uniform_levels(vit: weights.Loaded) -> tuple[float, float]:
  """Returns distance and entropy of uniform attention, in pixels and nats."""
  tokens = features.num_tokens(vit)
  uniform = jnp.full((1, 1, 1, tokens, tokens), 1 / tokens)
  distance_of = attention_lib.mean_distance(
    uniform,
    features.patch_grid(vit),
    attention_lib.patch_size(vit),
    features.prefix_length(vit),
  )
  return float(distance_of[0, 0]), float(attention_lib.entropy(uniform)[0, 0])


def _attention(subject: Subject) -> captured_lib.Attention:
  """Returns the captured attention."""
  attention_lib.attentive(subject.vit)
  attention = subject.captured.attention
  assert attention is not None
  return attention


def _query_token(vit: weights.Loaded) -> str:
  """Returns words for the token whose attention the maps show."""
  if 'class_token' in attention_lib.attentive(vit).prefix:
    return 'the class token'
  return 'the mean patch (there is no class token)'


def _read(vit: weights.Loaded) -> str:
  """Returns a note for a head with attention pooling."""
  if not isinstance(attention_lib.attentive(vit).pool, pooling.Map):
    return ''
  return (
    ' The attention pooling of the head is replaced by the mean of all patches.'
  )


def _sheet(
  subject: Subject,
  values: np.ndarray,
  heads: Sequence[str],
  scale: sheet.Scale,
  captions: Sequence[str] = (),
) -> np.ndarray:
  """Returns a sheet with each image beside its maps.

  values: K maps for each image, [B, K, h, w].
  """
  size = values.shape[1] + 1
  columns = max(1, _COLUMNS // size) * size
  images = _images(subject, max(columns, 6))
  below = iter(captions)
  groups = [
    [
      sheet.Tile(image, caption),
      *(
        x._replace(caption=next(below, '')) for x in _tiles(row, images, scale)
      ),
    ]
    for image, row, caption in zip(
      images, values, subject.captions, strict=True
    )
  ]
  rows = tiles.grouped(groups, columns)
  return sheet.draw(rows, heads=['image', *heads], group=size, scale=scale)
