"""Pictures of where a model looks, and what its output owes to it."""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax import weights
from vit_jax.explore import attention as attention_lib
from vit_jax.explore import gradients
from vit_jax.explore import seen as seen_lib
from vit_jax.explore import subject as subject_lib
from vit_jax.plots import canvas
from vit_jax.plots import charts
from vit_jax.plots import tiles
from vit_jax.weights import features

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_BESIDE = 8  # tiles of a sheet with a group of them for each image
_OVERLAID = (
  ' Each map is laid in colours over the contours of its image. They go from 0'
  ' to the number below the map: its largest value, or four times its mean'
  ' where that is more, so that a nearly even map has nearly one colour.'
)

# Of maps that have a scale each.
_SCALE = canvas.Scale(
  0.0,
  1.0,
  'of the number below each map',
  tiles.HEAT,
  ('0', '25%', '50%', '75%', '100%'),
)


def maps(subject: Subject) -> Drawn:
  """Where the class token looks, in each layer and head."""
  seen = _attention(subject)
  layers = subject.options.layers
  vit = subject.vit
  grid = features.patch_grid(vit)
  columns = len(layers) + 1
  shape = tiles.tile_shape(vit.preprocess.image_size, grid, columns)
  images = tiles.fit_all(subject.pixels, shape)

  def figures() -> Iterator[tuple[str, Any]]:
    for i, name in enumerate(subject.images.names):
      yield name, _map_sheet(images[i], seen.maps[:, i], layers)

  caption = (
    f'Where {_who(vit)} looks: its attention to each patch, a column for each'
    ' layer from the first to the last and a row for each head, the mean over'
    ' the heads on top. Attention is the softmax of the products of queries'
    ' and keys (arXiv:2010.11929, appendix A).' + _OVERLAID
  )
  return Drawn(caption, figures())


def _map_sheet(
  image: np.ndarray, found: np.ndarray, layers: tuple[int, ...]
) -> Any:
  """Returns a sheet of maps [L, H, h, w] of one image."""
  heads = found.shape[1]
  rows = [[found[i].mean(axis=0) for i in layers]]
  rows += [[found[i, head] for i in layers] for head in range(heads)]
  first: list[np.ndarray | None] = [image, *[None] * heads]
  return canvas.sheet(
    [
      [before, *(tiles.overlay(image, one) for one in row)]
      for before, row in zip(first, rows, strict=True)
    ],
    columns=['layer', *map(str, layers)],
    rows=['mean', *(f'head {head}' for head in range(heads))],
    captions=_tops(rows),
    scale=_SCALE,
  )


def _tops(rows: Sequence[Sequence[np.ndarray]]) -> list[str]:
  """Returns what is written below a column of images and rows of attention."""
  return [text for row in rows for text in ('', *map(_percent, row))]


def _percent(found: np.ndarray) -> str:
  """Returns what the last colour of a map of attention stands for."""
  share = tiles.top(found)
  return f'{share:.1%}' if share >= 0.1 else f'{share:.2%}'


def rollout(subject: Subject) -> Drawn:
  """What reaches the output of each patch."""
  found = _attention(subject).rollout
  caption = (
    'How much of each patch reaches what the head reads, by attention rollout:'
    ' the mean attention of the heads and the identity in equal parts, for the'
    ' residual, multiplied through all layers (arXiv:2005.00928, section 3).'
    + _read(subject.vit)
    + _OVERLAID
  )
  captions = [_percent(one) for one in found]
  figure = _overlays(subject, found[:, None], captions)
  return Drawn(caption, [('', figure)], {'rollout': found})


def relevance(subject: Subject) -> Drawn:
  """What speaks for a class."""
  features.check_attention(subject.vit)
  names, inputs = subject.names, subject.images.inputs
  chosen = subject.options.classes
  if chosen:
    found = [
      gradients.class_relevance(subject.vit, inputs, number)
      for number in chosen
    ]
    what = [names[number] for number in chosen]
    captions = what * len(inputs)
  else:
    best = subject.probabilities.argmax(axis=1)
    found = [gradients.class_relevance(subject.vit, inputs, best.tolist())]
    captions = [
      f'{names[i]}, {row[i]:.0%}'
      for i, row in zip(best, subject.probabilities, strict=True)
    ]
  caption = (
    'What speaks for a class, here'
    f' {"those of --classes" if chosen else "the most probable one"}:'
    " attention weighted with the gradient of the class's logit, where that is"
    ' positive, mean over the heads, followed through all layers to what the'
    ' head reads (arXiv:2103.15679, equations 5 and 6).'
    + _read(subject.vit)
    + _OVERLAID
  )
  stacked = np.stack(found, axis=1)
  maps_of = stacked.reshape(-1, *stacked.shape[2:])
  texts = [
    f'{text}\n{tiles.top(one):.2g}'
    for text, one in zip(captions, maps_of, strict=True)
  ]
  figure = _overlays(subject, stacked, texts)
  numbers = {'classes': what if chosen else captions, 'relevance': stacked}
  return Drawn(caption, [('', figure)], numbers)


def query(subject: Subject) -> Drawn:
  """Where a chosen patch looks."""
  found = _attention(subject).query
  layers, patch = subject.options.layers, subject.options.query
  caption = (
    f'Where the patch in row {patch[0]}, column {patch[1]} (framed; another'
    ' with --query=ROW,COLUMN) looks in each layer: its attention to all'
    ' patches, mean over the heads.' + _OVERLAID
  )
  grid = features.patch_grid(subject.vit)
  size = subject.vit.preprocess.image_size
  images = tiles.fit_all(
    subject.pixels, tiles.tile_shape(size, grid, len(layers) + 1)
  )
  maps_of = [[found[layer, i] for layer in layers] for i in range(len(images))]
  rows: list[list[np.ndarray | None]] = []
  for image, row in zip(images, maps_of, strict=True):
    overlaid = [tiles.overlay(image, one) for one in row]
    rows.append([tiles.mark(x, patch, grid) for x in (image, *overlaid)])
  figure = canvas.sheet(
    rows,
    columns=['layer', *map(str, layers)],
    rows=subject.images.names,
    captions=_tops(maps_of),
    scale=_SCALE,
  )
  return Drawn(caption, [('', figure)], {'patch': patch})


def distance(subject: Subject) -> Drawn:
  """How far the heads look, and how spread."""
  seen = _attention(subject)
  vit = subject.vit
  prefix = features.prefix_length(vit)
  grid = features.patch_grid(vit)
  tokens = features.num_tokens(vit)
  uniform = jnp.full((1, 1, 1, tokens, tokens), 1 / tokens)
  far = attention_lib.mean_distance(
    uniform, grid, attention_lib.patch_size(vit), prefix
  )
  spread = attention_lib.entropy(uniform)
  figure = charts.heads_by_depth(
    [
      charts.Panel(
        seen.distance,
        'mean attention distance (pixels)',
        charts.Level(float(far[0, 0]), 'uniform attention'),
      ),
      charts.Panel(
        seen.entropy,
        'attention entropy (nats)',
        charts.Level(float(spread[0, 0]), 'uniform attention'),
      ),
    ]
  )
  caption = (
    f'A point for each head of each layer, over {len(subject.pixels)} images.'
    ' Left, how far it looks: the distance between the centres of two patches,'
    ' weighted by attention, mean over all patches that look'
    ' (arXiv:2010.11929, figure 7 right and appendix D.7); other tokens are'
    " left out. Right, how spread each head's attention is: its entropy over"
    ' all tokens, mean over all tokens that look.'
  )
  numbers = {'distance_pixels': seen.distance, 'entropy_nats': seen.entropy}
  return Drawn(caption, [('', figure)], numbers)


def _attention(subject: Subject) -> seen_lib.Attention:
  """Returns what is seen of attention.

  Raises:
    UserError: The model has none.
  """
  features.check_attention(subject.vit)
  found = subject.seen.attention
  assert found is not None
  return found


def _who(vit: weights.Loaded) -> str:
  """Returns whose attention the maps show, in words."""
  if 'class_token' in attention_lib.attentive(vit).prefix:
    return 'the class token'
  return 'the mean patch (there is no class token)'


def _read(vit: weights.Loaded) -> str:
  """Returns what to say of a head that attends to the patches itself."""
  if attention_lib.attentive(vit).pool != 'map':
    return ''
  return (
    ' The attention pooling of the head is taken for a mean of all patches.'
  )


def _overlays(
  subject: Subject,
  found: np.ndarray,
  captions: Sequence[str],
) -> Any:
  """Returns a sheet with each image and maps over it.

  Args:
    subject: Whose images they are.
    found: [B, K, h, w].
    captions: Of each of the B x K maps, in this order, written below it; the
      last line is what its last colour stands for.
  """
  vit = subject.vit
  size = found.shape[1] + 1
  beside = max(1, _BESIDE // size) * size
  grid = features.patch_grid(vit)
  shape = tiles.tile_shape(vit.preprocess.image_size, grid, max(beside, 6))
  images = tiles.fit_all(subject.pixels, shape)
  groups = [
    [image, *(tiles.overlay(image, one) for one in maps_of)]
    for image, maps_of in zip(images, found, strict=True)
  ]
  texts: list[str] = []
  for i, name in enumerate(subject.images.names):
    texts += [name, *captions[i * (size - 1) : (i + 1) * (size - 1)]]
  return canvas.sheet(
    tiles.grouped(groups, beside), captions=texts, scale=_SCALE
  )
