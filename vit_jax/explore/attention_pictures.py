"""Pictures of attention and of its contribution to the output."""

from collections.abc import Iterator
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax import weights
from vit_jax.config import counted
from vit_jax.explore import attention as attention_lib
from vit_jax.explore import sheets
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


def _attention(subject: Subject) -> subject_lib.Captured:
  """Returns what is captured; refuses a model that has no attention."""
  attention_lib.attentive(subject.vit)
  return subject.captured


def _scale(values: np.ndarray, label: str) -> sheet.Scale:
  """Returns one scale for all maps, from 0 to nearly their largest value.

  A few very large values would make all others dark. They are above the scale
  and have the last colour.
  """
  high = max(float(np.percentile(values, _TOP)), _LEAST_TOP)
  step = 10.0 ** (math.floor(math.log10(high)) - 1)
  high = math.ceil(high / step) * step
  return sheet.Scale(0.0, high, label, exceeded=bool(values.max() > high))


def _scale_numbers(scale: sheet.Scale, vit: weights.Loaded) -> dict[str, float]:
  """Returns what a reader of numbers.json needs to read the colours."""
  uniform = 1 / features.num_tokens(vit)
  return {'uniform_attention': uniform, 'last_colour': scale.high}


def _head_names(count: int) -> list[str]:
  return [f'head {head}' for head in range(count)]


def maps(subject: Subject) -> Drawn:
  """Draws the attention of the class token, by layer and head."""
  attention, vit = _attention(subject), subject.vit
  layers, tokens = subject.options.layers, features.num_tokens(vit)
  values = attention.maps[list(layers)] * tokens
  scale = _scale(values, _UNIFORM)
  heads = values.shape[2]
  images = sheets.image_tiles(subject, heads + 2)

  def figures() -> Iterator[tuple[str, Any]]:
    for i, caption in enumerate(subject.captions):
      title = subject_lib.one_line(caption)
      rows = []
      for by_head in values[:, i]:
        mean_first = [by_head.mean(axis=0), *by_head]
        row = sheets.colored(mean_first, images, scale)
        rows.append([sheet.Tile(images[i]), *row])
      drawn = sheet.draw(
        rows,
        title=title,
        heads=['image', 'mean', *_head_names(heads)],
        names=[f'layer {layer}' for layer in layers],
        scale=scale,
      )
      yield title, drawn

  query = 'the mean patch (there is no class token)'
  if 'class_token' in attention_lib.attentive(vit).prefix:
    query = 'the class token'
  caption = (
    f'Attention of {query} to each patch (arXiv:2010.11929, appendix A), by'
    ' layer and head, and its mean over the heads. All pictures of this'
    f' section have one scale: multiples of uniform attention, 1/{tokens} for'
    f' each of {tokens} tokens. Layers and heads are counted from 0.'
  )
  return Drawn(caption, figures(), _scale_numbers(scale, vit))


def segments(subject: Subject) -> Drawn:
  """Draws the patches that hold most of the class token's attention."""
  attention_lib.check_class_token(subject.vit)
  mass = subject.options.mass
  # The last layer, whichever layers --layers shows.
  patches = attention_lib.segments(_attention(subject).maps[-1], mass)
  heads = patches.shape[1]
  rows = []
  images = sheets.image_tiles(subject, heads + 1)
  for image, by_head in zip(images, patches, strict=True):
    covered = [
      sheet.Tile(tiles.cover(image, ~x, _VEIL), f'{x.sum()} of {x.size}')
      for x in by_head
    ]
    rows.append([sheet.Tile(image), *covered])
  drawn = sheet.draw(
    rows, heads=['image', *_head_names(heads)], names=subject.captions
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
    ' layers.' + _pooling_note(vit)
  )
  drawn = _beside_images(subject, values[:, None], ['rollout'], scale)
  numbers = {'rollout': shares, **_scale_numbers(scale, vit)}
  return Drawn(caption, [('', drawn)], numbers)


def relevance(subject: Subject) -> Drawn:
  """Draws class relevance."""
  vit = subject.vit
  attention_lib.attentive(vit)
  names, inputs = subject.names, subject.images.inputs
  chosen = subject.options.classes
  class_rows = [[i] * len(inputs) for i in chosen]
  if not chosen:
    class_rows = [subject.probabilities.argmax(axis=1).tolist()]
  relevance = np.stack(
    [attention_lib.class_relevance(vit, inputs, row) for row in class_rows],
    axis=1,
  )
  captions = [
    names[i] for image in zip(*class_rows, strict=True) for i in image
  ]
  heads = [names[i] for i in chosen] or ['relevance']
  mean = relevance.mean(axis=(-2, -1), keepdims=True)
  values = np.divide(
    relevance, mean, out=np.zeros_like(relevance), where=mean > 0
  )
  scale = _scale(values, 'relevance / mean of the map (1 = all patches alike)')
  caption = (
    'The relevance of each patch for a class, here'
    f' {"those of --classes" if chosen else "the most probable"}: attention'
    " weighted by the positive part of the gradient of the class's logit, mean"
    ' over the heads, followed through all layers to the tokens that the'
    ' classifier'
    ' reads (arXiv:2103.15679, equations 5 and 6).' + _pooling_note(vit)
  )
  drawn = _beside_images(subject, values, heads, scale, captions)
  numbers = {
    'classes': heads if chosen else captions,
    'relevance': relevance,
    'last_colour': scale.high,
  }
  return Drawn(caption, [('', drawn)], numbers)


def _pooling_note(vit: weights.Loaded) -> str:
  if not isinstance(attention_lib.attentive(vit).pool, pooling.Map):
    return ''
  return (
    ' The attention pooling of the head is replaced by the mean of all patches.'
  )


def _beside_images(
  subject: Subject,
  values: np.ndarray,
  heads: list[str],
  scale: sheet.Scale,
  captions: list[str] | None = None,
) -> np.ndarray:
  """Returns a sheet with each image beside its maps.

  Args:
    subject: The model and the images.
    values: K maps for each image, [B, K, h, w].
    heads: Names of the K maps.
    scale: Scale of all maps.
    captions: Texts below the B x K maps, in this order.
  """
  columns = sheets.whole_groups(len(heads) + 1, _COLUMNS)
  images = sheets.image_tiles(subject, max(columns, 6))
  below = iter(captions or ())
  rows = [
    [
      tile._replace(caption=next(below, ''))
      for tile in sheets.colored(row, images, scale)
    ]
    for row in values
  ]
  return sheets.groups(subject, images, rows, heads, columns, scale)


def query(subject: Subject) -> Drawn:
  """Draws the attention of a chosen patch."""
  vit, options = subject.vit, subject.options
  values = _attention(subject).query * features.num_tokens(vit)
  scale = _scale(values[list(options.layers)], _UNIFORM)
  patch = options.query
  caption = (
    f'Attention of the patch in row {patch[0]}, column {patch[1]}, to all'
    ' patches in each layer, mean over the heads. The patch is framed; choose'
    ' another with --query=ROW,COLUMN. Rows, columns and layers are counted'
    ' from 0.'
  )
  drawn = sheets.layer_rows(subject, values, scale, patch, marks_maps=True)
  numbers = {'patch': patch, **_scale_numbers(scale, vit)}
  return Drawn(caption, [('', drawn)], numbers)


def distance(subject: Subject) -> Drawn:
  """Draws attention distance and entropy, by layer and head."""
  attention, vit = _attention(subject), subject.vit
  tokens, grid = features.num_tokens(vit), features.patch_grid(vit)
  geometry = grid, attention_lib.patch_size(vit), features.prefix_length(vit)
  uniform = jnp.full((1, 1, 1, tokens, tokens), 1 / tokens)
  measures = (
    (
      'mean attention distance (pixels)',
      attention.distance,
      attention_lib.mean_distance(uniform, *geometry),
    ),
    (
      'attention entropy (nats)',
      attention.entropy,
      attention_lib.entropy(uniform),
    ),
  )
  panels = []
  for label, values, reference in measures:
    level = charts.Level(float(reference[0, 0]), 'uniform attention')
    panels.append(charts.Panel(values, label, level))
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
