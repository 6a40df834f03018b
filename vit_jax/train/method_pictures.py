"""Pictures of evaluations, of masks and of what a method draws itself."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax import models
from vit_jax import objectives
from vit_jax.data import features as features_lib
from vit_jax.data.device.rng import Rng
from vit_jax.objectives import base as objective_base
from vit_jax.plots import class_maps
from vit_jax.plots import sheet
from vit_jax.plots import tiles
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import pictures as pictures_lib
from vit_jax.train import state as state_lib

_COLUMNS = 8  # at most


def columns(
  objective: objectives.Objective, pair: Any, batch: Mapping[str, Any]
) -> list[objective_base.Column]:
  """Returns what a method draws, with the same masks at every evaluation."""
  images = batch['image'][: pictures_lib.EXAMPLES]
  key = state_lib.step_key(objective.config.seed, 0)
  rng = Rng(key, jnp.arange(len(images), dtype=jnp.int32))
  params, extra = pair
  return objective.pictures(params, extra, images, rng)


def masks(
  e: experiment_lib.Experiment, outputs: Mapping[str, np.ndarray]
) -> np.ndarray:
  """Returns images with their true and predicted masks, uint8 [H, W, 3]."""
  feature = e.program.features['map']
  assert isinstance(feature, features_lib.Map)
  maps = {
    name: pictures_lib.middle(outputs[name], 3) for name in ('map', 'segments')
  }
  images = pictures_lib.pixels(e, outputs['image'])
  captions = [''] * len(images)
  return class_maps.draw(feature.names, feature.ignore, images, maps, captions)


def pictures(
  e: experiment_lib.Experiment, columns: Sequence[objective_base.Column]
) -> np.ndarray:
  """Returns the columns side by side, uint8 [H, W, 3]."""
  groups = zip(*(_column(e, column) for column in columns), strict=True)
  return sheet.draw(
    sheet.grouped([list(group) for group in groups], _COLUMNS),
    heads=[column.name for column in columns],
    group=len(columns),
  )


def _column(
  e: experiment_lib.Experiment, column: objective_base.Column
) -> list[sheet.Tile]:
  images = list(
    map(sheet.readable, pictures_lib.pixels(e, np.asarray(column.images)))
  )
  if column.hidden is not None:
    rows = _rows(e, column.hidden.shape[1], *images[0].shape[:2])
    grids = np.asarray(column.hidden).reshape(len(images), rows, -1)
    images = list(map(tiles.cover, images, grids))
  return [sheet.Tile(image) for image in images]


def _rows(
  e: experiment_lib.Experiment, count: int, height: int, width: int
) -> int:
  """Returns the rows of a number of patches in an image of a size.

  Patches have the shape of the model's. They may be of another size, as those
  of a small view that is drawn larger.
  """
  patch = models.patch_of_images(e.program.objective.model)
  ratio = height / patch[0] / (width / patch[1])
  return round(math.sqrt(count * ratio))
