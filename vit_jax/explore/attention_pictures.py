"""Pictures of attention and of its contribution to the output."""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax import weights
from vit_jax.config import counted
from vit_jax.explore import attention as attention_lib
from vit_jax.explore import captured as captured_lib
from vit_jax.explore import gradients
from vit_jax.explore import subject as subject_lib
from vit_jax.plots import canvas
from vit_jax.plots import charts
from vit_jax.plots import tiles
from vit_jax.weights import features

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_VEIL = 0.8  # opacity of the cover of patches outside of a segment
_COLUMNS = 8  # columns of a sheet with a group of tiles for each image
_OVERLAID = (
  ' Each map is laid in colours over the contours of its image. The scale of'
  ' the colours begins at 0 and ends at the number below the map. This number'
  ' is the largest value of the map, or four times its mean if that is larger:'
  ' a map that is nearly even then has nearly one colour.'
)

# For maps that each have their own scale.
_SCALE = canvas.Scale(
  0.0,
  1.0,
  'of the number below each map',
  tiles.HEAT,
  ('0', '25%', '50%', '75%', '100%'),
)


def maps(subject: Subject) -> Drawn:
  """Draws the attention of the class token, by layer and head."""
  attention = _attention(subject)
  layers = subject.options.layers
  vit = subject.vit
  grid = features.patch_grid(vit)
  columns = len(layers) + 1
  shape = tiles.tile_shape(vit.preprocess.image_size, grid, columns)
  images = tiles.fit_all(subject.pixels, shape)

  def figures() -> Iterator[tuple[str, Any]]:
    for i, caption in enumerate(subject.captions):
      title = subject_lib.one_line(caption)
      yield title, _map_sheet(images[i], attention.maps[:, i], layers, title)

  caption = (
    f'The attention of {_who(vit)} to each patch: a column for each layer, from'
    ' the first to the last, and a row for each head, with the mean over the'
    ' heads on top. Attention is the softmax of the products of queries'
    ' and keys (arXiv:2010.11929, appendix A).' + _OVERLAID
  )
  return Drawn(caption, figures())


def _map_sheet(
  image: np.ndarray, found: np.ndarray, layers: tuple[int, ...], title: str
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
    title=title,
    columns=['image', *map(str, layers)],
    corner='layer',
    rows=['mean', *(f'head {head}' for head in range(heads))],
    captions=_tops(rows),
    scale=_SCALE,
  )


def _tops(rows: Sequence[Sequence[np.ndarray]]) -> list[str]:
  """Returns the captions of a column of images and rows of attention."""
  return [text for row in rows for text in ('', *map(_percent, row))]


def _percent(found: np.ndarray) -> str:
  """Returns the value of the last colour of an attention map, in percent."""
  share = tiles.top(found)
  return f'{share:.1%}' if share >= 0.1 else f'{share:.2%}'


def segments(subject: Subject) -> Drawn:
  """Draws the patches that hold most of the class token's attention."""
  attention_lib.check_class_token(subject.vit)
  mass = subject.options.mass
  # The last layer, whichever layers --layers shows.
  found = attention_lib.segments(_attention(subject).maps[-1], mass)
  grid = features.patch_grid(subject.vit)
  heads = found.shape[1]
  size = subject.vit.preprocess.image_size
  images = tiles.fit_all(
    subject.pixels, tiles.tile_shape(size, grid, heads + 1, limits=(64, 112))
  )
  figure = canvas.sheet(
    [
      [image, *(tiles.cover(image, ~one, _VEIL) for one in of_heads)]
      for image, of_heads in zip(images, found, strict=True)
    ],
    columns=['image', *(f'head {head}' for head in range(heads))],
    rows=subject.captions,
    captions=[
      text
      for of_heads in found
      for text in ('', *(f'{x.sum()} of {x.size}' for x in of_heads))
    ],
  )
  caption = (
    f'The smallest set of patches that holds {mass:.0%} of the attention of the'
    ' class token to all patches (another share with --mass), in each head of'
    ' the last layer (arXiv:2104.14294, section 4.2.2 and figure 4); the others'
    ' are covered. Below each image is the number of patches in the set.'
  )
  numbers = {'mass': mass, 'patches': found.sum(axis=(2, 3))}
  return Drawn(caption, [('', figure)], numbers)


def rollout(subject: Subject) -> Drawn:
  """Draws attention rollout."""
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
  """Draws class relevance."""
  attention_lib.attentive(subject.vit)
  found, classes, captions = _class_relevance(subject)
  which = (
    'those of --classes' if subject.options.classes else 'the most probable'
  )
  caption = (
    f'The relevance of each patch for a class, here {which}: attention weighted'
    " by the positive part of the gradient of the class's logit, mean over the"
    ' heads, followed through all layers to the tokens that the head reads'
    ' (arXiv:2103.15679, equations 5 and 6).' + _read(subject.vit) + _OVERLAID
  )
  texts = [
    f'{text}\n{tiles.top(one):.2g}'
    for text, one in zip(
      captions, found.reshape(-1, *found.shape[2:]), strict=True
    )
  ]
  figure = _overlays(subject, found, texts)
  return Drawn(
    caption, [('', figure)], {'classes': classes, 'relevance': found}
  )


def _class_relevance(
  subject: Subject,
) -> tuple[np.ndarray, list[str], list[str]]:
  """Returns maps [B, K, h, w], names of the classes, and B x K captions."""
  vit, names, inputs = subject.vit, subject.names, subject.images.inputs
  if chosen := subject.options.classes:
    found = [gradients.class_relevance(vit, inputs, i) for i in chosen]
    classes = [names[i] for i in chosen]
    return np.stack(found, axis=1), classes, classes * len(inputs)
  best = subject.probabilities.argmax(axis=1)
  captions = [names[i] for i in best]
  maps_of = gradients.class_relevance(vit, inputs, best.tolist())
  return maps_of[:, None], captions, captions


def query(subject: Subject) -> Drawn:
  """Draws the attention of a chosen patch."""
  found = _attention(subject).query
  layers, patch = subject.options.layers, subject.options.query
  caption = (
    f'The attention of the patch in row {patch[0]}, column {patch[1]}, counted'
    ' from 0 (framed; another with --query=ROW,COLUMN), to all patches in each'
    ' layer, mean over the heads.' + _OVERLAID
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
    columns=['image', *map(str, layers)],
    corner='layer',
    rows=subject.captions,
    captions=_tops(maps_of),
    scale=_SCALE,
  )
  return Drawn(caption, [('', figure)], {'patch': patch})


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
  """Returns the captured attention.

  Raises:
    UserError: The model has no attention.
  """
  attention_lib.attentive(subject.vit)
  found = subject.captured.attention
  assert found is not None
  return found


def _who(vit: weights.Loaded) -> str:
  """Returns words for the token whose attention the maps show."""
  if 'class_token' in attention_lib.attentive(vit).prefix:
    return 'the class token'
  return 'the mean patch (there is no class token)'


def _read(vit: weights.Loaded) -> str:
  """Returns a note for a head with attention pooling."""
  if attention_lib.attentive(vit).pool != 'map':
    return ''
  return (
    ' The attention pooling of the head is replaced by the mean of all patches.'
  )


def _overlays(
  subject: Subject,
  found: np.ndarray,
  captions: Sequence[str],
) -> Any:
  """Returns a sheet with each image and maps over it.

  Args:
    subject: The model and the images.
    found: K maps for each image, [B, K, h, w].
    captions: Texts below the B x K maps, in this order; the last line is the
      value of the last colour.
  """
  vit = subject.vit
  size = found.shape[1] + 1
  beside = max(1, _COLUMNS // size) * size
  grid = features.patch_grid(vit)
  shape = tiles.tile_shape(vit.preprocess.image_size, grid, max(beside, 6))
  images = tiles.fit_all(subject.pixels, shape)
  groups = [
    [image, *(tiles.overlay(image, one) for one in maps_of)]
    for image, maps_of in zip(images, found, strict=True)
  ]
  texts: list[str] = []
  for i, caption in enumerate(subject.captions):
    texts += [caption, *captions[i * (size - 1) : (i + 1) * (size - 1)]]
  return canvas.sheet(
    tiles.grouped(groups, beside), captions=texts, group=size, scale=_SCALE
  )
