"""Pictures for the trackers, which the loop imports when it writes the first.

The first images of a run are drawn as the model gets them. An evaluation has a
confusion matrix, and what the model makes of its first examples: images with
the predicted and the true class, masks of a segmentation beside the true ones,
or what a method draws itself, such as the reconstructions of MAE.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data import features as features_lib
from vit_jax.plots import matrix
from vit_jax.plots import paper
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.train import evaluations
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import model_inputs

if TYPE_CHECKING:
  from vit_jax.train.loop import Run

_FIRST = 16  # images of the first batch
EXAMPLES = 8  # of an evaluation
# By the name of a picture: what computes it of a batch, and what draws it.
_KINDS = {
  'predictions': (
    'vit_jax.train.pictures:first_outputs',
    'vit_jax.train.pictures:predictions',
  ),
  'masks': (
    'vit_jax.train.pictures:first_outputs',
    'vit_jax.train.method_pictures:masks',
  ),
  'pictures': (
    'vit_jax.train.method_pictures:columns',
    'vit_jax.train.method_pictures:pictures',
  ),
}


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
  part: experiment_lib.Experiment,
  params: Any,
  keys: Mapping[str, str],
  confusions: Mapping[str, np.ndarray],
) -> dict[str, bytes]:
  """Returns the pictures of the evaluations of a step, PNGs by their names.

  All processes call this, since all devices compute the outputs. What the model
  makes of examples is drawn for the first evaluation of a run of one task.

  Args:
    run: The run.
    part: Its experiment, or that of one of its tasks.
    params: The parameters that were evaluated.
    keys: The evaluations of `part`, by their names in results.
    confusions: Matrices int [K, K], by the evaluation's name in results.
  """
  pictures = {
    f'{name}/confusion': _confusion(
      part.source.classes, counts, f'{name}, step {run.step:,}'
    )
    for name, counts in confusions.items()
  }
  kind = _kind(part.program.objective)
  if kind and part is run.experiment:
    name, key = next(iter(keys.items()))
    pair = params, run.state.extra
    context = evaluations.TrainContext(
      part, part.program, pair, run.stop, run.watch
    )
    split = part.evaluators[key].spec.split
    compute, draw = map(config_lib.wing, _KINDS[kind])
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


def first_outputs(
  objective: objectives.Objective, pair: Any, batch: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the first examples of a batch, and their outputs."""
  batch = {name: x[:EXAMPLES] for name, x in batch.items()}
  return {**batch, **objective.outputs(pair[0], batch)}


def predictions(
  e: experiment_lib.Experiment, outputs: Mapping[str, np.ndarray]
) -> np.ndarray:
  """Returns images with their predicted and true classes, uint8 [H, W, 3]."""
  names = e.source.classes
  row = []
  for image, label, guess in zip(
    pixels(e, outputs['image']),
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


def pixels(e: experiment_lib.Experiment, images: np.ndarray) -> np.ndarray:
  """Returns the pixels of a model's inputs, uint8 [B, H, W, 3]."""
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(e.config)
  )
  return sheet.to_rgb(middle(images, 4) * std + mean)


def middle(x: np.ndarray, ndim: int) -> np.ndarray:
  """Returns images; of volumes and videos, the slice in the middle."""
  return x[:, x.shape[1] // 2] if x.ndim > ndim else x
