"""Pictures of what a model makes of the first examples of an evaluation.

For the trackers: images with the predicted and the true class, masks of a
segmentation beside the true ones, or what a method draws itself, such as the
reconstructions of MAE.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data import features as features_lib
from vit_jax.data.device.rng import Rng
from vit_jax.evaluation import base
from vit_jax.objectives import base as objective_base
from vit_jax.plots import class_maps
from vit_jax.plots import paper
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import state as state_lib

_EXAMPLES = 8  # of a picture
_COLUMNS = 8  # at most


def kind(objective: objectives.Objective) -> str:
  """Returns the name of the picture of an objective; '': it has none."""
  if 'segments' in objective.output_facts():
    return 'masks'
  if objective.pictures_caption:
    return 'pictures'
  target = objective.target
  is_classifier = target is not None and target[1] is features_lib.Label
  return 'predictions' if is_classifier else ''


def encode(
  e: experiment_lib.Experiment, context: base.Context, split: str
) -> bytes:
  """Returns a PNG; all processes call this, since all devices compute it.

  Args:
    e: The experiment of one task, whose objective has a `kind`.
    context: Has the parameters and the extra of the objective, as a pair.
    split: The split of the evaluation.
  """
  compute, draw = _KINDS[kind(e.program.objective)]
  return paper.encode(draw(e, next(context.apply(compute, split))))


def _first(
  objective: objectives.Objective, pair: Any, batch: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the first examples of a batch, and their outputs."""
  batch = {name: x[:_EXAMPLES] for name, x in batch.items()}
  return {**batch, **objective.outputs(pair[0], batch)}


def _columns(
  objective: objectives.Objective, pair: Any, batch: Mapping[str, Any]
) -> list[objective_base.Column]:
  """Returns what a method draws, with the same masks at every evaluation."""
  images = batch['image'][:_EXAMPLES]
  key = state_lib.step_key(objective.config.seed, 0)
  rng = Rng(key, jnp.arange(len(images), dtype=jnp.int32))
  params, extra = pair
  return objective.pictures(params, extra, images, rng)


def _predictions(
  e: experiment_lib.Experiment, outputs: Mapping[str, np.ndarray]
) -> np.ndarray:
  names = e.source.classes
  row = []
  for image, label, guess in zip(
    _pixels(e, outputs['image']),
    outputs['label'],
    outputs['logits'].argmax(axis=-1),
    strict=True,
  ):
    is_wrong = bool(label != guess)
    caption = names[guess] if guess < len(names) else f'class {guess}'
    caption += f'\nnot {names[label]}' * is_wrong
    frame = style.WRONG if is_wrong else ''
    row.append(sheet.Tile(sheet.readable(image), caption, frame))
  return sheet.draw([row])


def _masks(
  e: experiment_lib.Experiment, outputs: Mapping[str, np.ndarray]
) -> np.ndarray:
  feature = e.program.features['map']
  assert isinstance(feature, features_lib.Map)
  maps = {name: _middle(outputs[name], 3) for name in ('map', 'segments')}
  images = _pixels(e, outputs['image'])
  captions = [''] * len(images)
  return class_maps.draw(feature.names, feature.ignore, images, maps, captions)


def _pictures(
  e: experiment_lib.Experiment, columns: Sequence[objective_base.Column]
) -> np.ndarray:
  groups = zip(*(_column(e, column) for column in columns), strict=True)
  return sheet.draw(
    tiles.grouped([list(group) for group in groups], _COLUMNS),
    heads=[column.name for column in columns],
    group=len(columns),
  )


def _column(
  e: experiment_lib.Experiment, column: objective_base.Column
) -> list[sheet.Tile]:
  images = list(map(sheet.readable, _pixels(e, np.asarray(column.images))))
  if column.hidden is not None:
    height, width = images[0].shape[:2]
    # Patches are square.
    rows = round(math.sqrt(column.hidden.shape[1] * height / width))
    grids = np.asarray(column.hidden).reshape(len(images), rows, -1)
    images = list(map(tiles.cover, images, grids))
  return [sheet.Tile(image) for image in images]


def _pixels(e: experiment_lib.Experiment, images: np.ndarray) -> np.ndarray:
  """Returns the pixels of a model's inputs, uint8 [B, H, W, 3]."""
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(e.config)
  )
  return tiles.to_rgb(_middle(images, 4) * std + mean)


def _middle(x: np.ndarray, ndim: int) -> np.ndarray:
  """Returns images; of volumes and videos, the slice in the middle."""
  return x[:, x.shape[1] // 2] if x.ndim > ndim else x


_Kind = tuple[Callable[..., Any], Callable[..., np.ndarray]]
_KINDS: dict[str, _Kind] = {
  'predictions': (_first, _predictions),
  'masks': (_first, _masks),
  'pictures': (_columns, _pictures),
}
