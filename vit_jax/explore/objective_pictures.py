"""Pictures of what a training method makes of images, and of drawn images.

In comments: B images, (h, w) the grid of patches.
"""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.config import counted
from vit_jax.config import UserError
from vit_jax.data.device.rng import Rng
from vit_jax.explore import predictions as predictions_lib
from vit_jax.explore import sheets
from vit_jax.explore import subject as subject_lib
from vit_jax.objectives import base
from vit_jax.objectives import trained
from vit_jax.plots import sheet
from vit_jax.plots import tiles
from vit_jax.runs import restoring
from vit_jax.train import state as state_lib
from vit_jax.weights import batched
from vit_jax.weights import features
from vit_jax.weights import sampling

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_BATCH = 16  # maximum number of images at a time
_COLUMNS = 9  # columns of a sheet with a group of tiles for each image
_SAMPLES = 36  # images that are drawn
_COMPLETED = 8  # maximum number of images that are completed
_COMPLETIONS = 4  # completions of each image


def objective(subject: Subject) -> Drawn:
  """Draws what the method of the run makes of the images.

  `objectives.Objective.pictures` makes the columns. Each image has a group of
  tiles.
  """
  vit = subject.vit
  # A method's masks and decoder are for the grid of training.
  objective, params = trained.restored(vit, any_size=False)
  config = objective.config
  if not objective.pictures_caption:
    raise UserError(
      f'the objective of the run, {config.objective.name}, has no'
      ' pictures of its own'
    )
  trained_config = vit.trained_with
  assert trained_config is not None
  params, extra = jax.tree.map(
    jnp.asarray,
    (params, restoring.restore_extra(vit.origin.path, vit.origin.task)),
  )
  key = state_lib.step_key(trained_config.seed, vit.origin.step or 0)
  draw = jax.jit(objective.pictures)
  inputs = subject.images.inputs
  # A method may draw something for the whole batch at once.
  positions = np.arange(len(inputs), dtype=np.int32)
  columns: list[base.Column] = batched.in_batches(
    lambda images, rows: draw(params, extra, images, Rng(key, rows)),
    [inputs, positions % trained_config.train.batch_size],
    _BATCH,
  )
  for column in columns:
    predictions_lib.check_finite(np.asarray(column.images))
  grid = features.patch_grid(vit)
  most = sheets.whole_groups(len(columns), _COLUMNS)
  shape = tiles.tile_shape(
    vit.preprocess.image_size, grid, most, limits=sheets.LIMITS
  )
  column_tiles = []
  for column in columns:
    pixels = tiles.pixels(vit.preprocess, np.asarray(column.images))
    images = tiles.fit_all(pixels, shape)
    if column.hidden is not None:
      hidden = np.asarray(column.hidden).reshape(-1, *grid)
      images = [tiles.cover(*pair) for pair in zip(images, hidden, strict=True)]
    column_tiles.append(images)
  groups = [
    [*map(sheet.Tile, group[:-1]), sheet.Tile(group[-1], text)]
    for *group, text in zip(*column_tiles, subject.captions, strict=True)
  ]
  drawn = sheet.draw(
    sheet.grouped(groups, most),
    heads=[column.name for column in columns],
    group=len(columns),
  )
  caption = objective.pictures_caption
  if any(column.hidden is not None for column in columns):
    caption += (
      ' Masks are those of the step of training that follows this checkpoint,'
      f' number {vit.origin.step}, whose images are others.'
    )
  return Drawn(caption, [('', drawn)])


def samples(subject: Subject) -> Drawn:
  """Draws new images of a model that predicts pixels."""
  pixels = sampling.sample(subject.vit, _SAMPLES)
  images = _fitted(subject, pixels)
  rows = sheet.grouped([[sheet.Tile(tile)] for tile in images], _COLUMNS)
  caption = (
    f'{_SAMPLES} images that the model draws, one pixel after another, each'
    ' from its distribution of colours given those before it (Chen et al.,'
    ' 2020, Generative Pretraining from Pixels); with temperature 1 and seed 0,'
    ' as `predict --sample` draws them.'
  )
  return Drawn(caption, [('', sheet.draw(rows))])


def completions(subject: Subject) -> Drawn:
  """Draws lower halves of images, by a model that predicts pixels."""
  sampling.check(subject.vit)
  chosen = tiles.spread(len(subject.images.inputs), _COMPLETED)
  images, drawn = sampling.complete(
    subject.vit, subject.images.inputs[chosen], _COMPLETIONS
  )
  rows = []
  for image, lower_halves in zip(images, drawn, strict=True):
    *completed, original = _fitted(subject, np.stack([*lower_halves, image]))
    half = tiles.cover(
      original, np.arange(len(image))[:, None] >= len(image) // 2
    )
    rows.append([sheet.Tile(x) for x in (half, *completed, original)])
  picture = sheet.draw(
    rows,
    heads=['given', *['drawn'] * _COMPLETIONS, 'original'],
    names=[subject.captions[i] for i in chosen],
  )
  caption = (
    f'Lower halves of {counted(len(chosen), "image")} that the model draws'
    ' below the given upper ones (Chen et al., 2020, Generative Pretraining'
    ' from Pixels, figure 1), with temperature 1 and seed 0. Originals are in'
    ' the colours of the model.'
  )
  return Drawn(caption, [('', picture)])


def _fitted(subject: Subject, images: np.ndarray) -> list[np.ndarray]:
  """Returns tiles of images float32 [B, H, W, C], as the model takes them."""
  size = subject.vit.preprocess.image_size
  shape = tiles.tile_shape(size, size, _COLUMNS, limits=sheets.LIMITS)
  return tiles.fit_all(tiles.pixels(subject.vit.preprocess, images), shape)
