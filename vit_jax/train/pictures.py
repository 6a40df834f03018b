"""Pictures for the trackers, which the loop imports when it writes the first.

The first images of a run are drawn as the model gets them. An evaluation has a
confusion matrix, and what the model makes of its first examples: images with
the predicted and the true class, masks of a segmentation beside the true ones,
or what a method draws itself, such as the reconstructions of MAE.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import objectives
from vit_jax.data import features as features_lib
from vit_jax.data.device.rng import Rng
from vit_jax.objectives import base as objective_base
from vit_jax.plots import matrix
from vit_jax.plots import paper
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles
from vit_jax.train import evaluations
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import model_inputs
from vit_jax.train import state as state_lib

if TYPE_CHECKING:
  from vit_jax.train.loop import Run

_FIRST = 16  # images of the first batch
_EXAMPLES = 8  # of an evaluation
_COLUMNS = 8  # at most


def first_batch(experiment: experiment_lib.Experiment) -> dict[str, bytes]:
  """Returns the first images of a run, PNGs by their names in the trackers.

  The result is {} if an image cannot be read: the loop reports the error.
  """
  pictures = {}
  for name, part in experiment.parts.items():
    try:
      inputs = model_inputs.draw(
        part.config, part.source, part.program.objective, 0, _FIRST
      )
    except config_lib.UserError:
      return {}
    pixels = model_inputs.sheet(
      inputs, 'The first images, as the model gets them'
    )
    key = f'train/{name}/images' if name else 'train/images'
    pictures[key] = paper.encode(pixels)
  return pictures


def evaluation(
  run: 'Run',
  measured: experiment_lib.Measured,
  confusions: Mapping[str, np.ndarray],
) -> dict[str, bytes]:
  """Returns the pictures of the evaluations of a step, PNGs by their names.

  All processes call this, since all devices compute the outputs. What the model
  makes of examples is drawn for the first evaluation of a run of one task.
  `confusions` are matrices int [K, K] by the evaluation's name.
  """
  part = measured.experiment
  pictures = {
    f'{name}/confusion': _confusion(
      part.source.classes, counts, f'{name}, step {run.step:,}'
    )
    for name, counts in confusions.items()
  }
  kind = _kind(part.program.objective)
  if kind and measured.names and part is run.experiment:
    name, key = next(iter(measured.names.items()))
    pair = measured.params, run.state.extra
    context = evaluations.TrainContext(
      part, part.program, pair, run.stop, run.watch
    )
    split = part.evaluators[key].spec.split
    compute, draw = _KINDS[kind]
    outputs = next(context.apply(compute, split))
    pictures[f'{name}/{kind}'] = paper.encode(draw(part, outputs))
  return pictures


def _confusion(classes: Sequence[str], counts: np.ndarray, title: str) -> bytes:
  if len(classes) != len(counts):  # the objective has classes of its own
    classes = tuple(map(str, range(len(counts))))
  return paper.encode(matrix.confusion(np.asarray(counts), classes, title))


def _kind(objective: objectives.Objective) -> str:
  """Returns the name of the picture of an objective; '': it has none."""
  if 'segments' in objective.output_facts():
    return 'masks'
  if objective.pictures_caption:
    return 'pictures'
  target = objective.target
  is_classifier = target is not None and target[1] is features_lib.Label
  return 'predictions' if is_classifier else ''


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
  draw = config_lib.wing('vit_jax.plots.class_maps:draw')
  pixels: np.ndarray = draw(
    feature.names, feature.ignore, images, maps, captions
  )
  return pixels


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
