"""Pictures of maps of classes: labels, predictions and errors.

In comments: B images, (H, W) the size of the model's input, K classes.
"""

from typing import Any

import jax
import numpy as np

from vit_jax import objectives
from vit_jax.config import UserError
from vit_jax.data.device import views
from vit_jax.evaluation import rows as rows_lib
from vit_jax.evaluation import segments
from vit_jax.explore import subject as subject_lib
from vit_jax.objectives import trained
from vit_jax.plots import class_maps
from vit_jax.plots import tiles
from vit_jax.weights import batched

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_BATCH = 16  # maximum number of images at a time
_WORST = 12  # examples with the lowest mIoU that are shown
_KEY = (
  'Class colours are those of the legend. In the errors, wrong pixels are red'
  ' over the image in grey, and pixels that do not count are white.'
)


def overlays(subject: Subject) -> Drawn:
  """Draws the predicted classes of each image, and its labels if known."""
  objective, params = _objective(subject)
  names, images = _names(objective), subject.images
  has_labels = bool(images.rows) and subject.examples.maps is not None
  if has_labels:
    comparison = _compare(subject, np.array(images.rows))
    captions = [
      f'{name}\nmIoU {miou:.2f}'
      for name, miou in zip(images.names, comparison['miou'], strict=True)
    ]
  else:
    apply = jax.jit(
      lambda x: {
        'segments': objective.outputs(params, {'image': x})['segments']
      }
    )
    comparison = batched.in_batches(apply, [images.inputs], _BATCH)
    captions = list(subject.captions)
  caption = 'Each image, and the class that the model predicts for each pixel'
  caption += (
    ', with the ground truth before it. mIoU is the mean over the classes of an'
    f' image of the intersection over union. {_KEY}'
    if has_labels
    else '.'
  )
  shares = [
    np.bincount(x.ravel(), minlength=len(names)) / x.size
    for x in comparison['segments']
  ]
  numbers = {'images': list(images.names), 'classes': names, 'shares': shares}
  maps: dict[str, np.ndarray] = {
    name: comparison[name] for name in ('map', 'segments') if name in comparison
  }
  ignore = _ignored(objective)
  picture = class_maps.draw(names, ignore, subject.pixels, maps, captions)
  return Drawn(caption, [('', picture)], numbers)


def errors(subject: Subject) -> Drawn:
  """Draws the examples with the lowest mIoU, and their wrong pixels."""
  objective, _ = _objective(subject)
  examples, names = subject.examples, _names(objective)
  comparison = _compare(subject, np.arange(len(examples)))
  miou = comparison['miou']
  worst = np.argsort(miou, kind='stable')[:_WORST]
  pixels = tiles.pixels(subject.vit.preprocess, comparison['image'][worst])
  captions = [f'{examples.names[i]}\nmIoU {miou[i]:.2f}' for i in worst]
  label_maps = {name: comparison[name][worst] for name in ('map', 'segments')}
  names, ignore = _names(objective), _ignored(objective)
  picture = class_maps.draw(names, ignore, pixels, label_maps, captions)
  caption = (
    f'The {len(worst)} of {len(examples)} examples with the lowest mIoU: the'
    f' mean over the classes of an image of the intersection over union. {_KEY}'
  )
  overlaps = segments.overlaps(
    segments.confusion(
      comparison['map'], comparison['segments'], len(names), _ignored(objective)
    )
  )
  measured = [
    i for i in np.argsort(overlaps.iou) if np.isfinite(overlaps.iou[i])
  ]
  numbers = {
    'worst': [
      {'index': int(examples.index[i]), 'miou': float(miou[i])} for i in worst
    ],
    'examples': len(examples),
    'miou': overlaps.mean_iou,
    'classes_by_iou': [(names[i], float(overlaps.iou[i])) for i in measured],
  }
  return Drawn(caption, [('', picture)], numbers)


def _compare(subject: Subject, rows: np.ndarray) -> dict[str, np.ndarray]:
  """Applies the model to labelled examples.

  rows: Positions among the examples, int [B].
  image: Inputs of the model, float32 [B, H, W, C].
  map: Labels, int [B, H, W].
  segments: Predictions, int [B, H, W].
  miou: Mean intersection over union of each example, float32 [B].
  """
  objective, params = _objective(subject)
  examples = subject.examples
  if examples.maps is None:
    raise UserError(
      'needs images with maps of classes: give --data and --split'
    )
  features = {
    'image': examples.features['image'],
    'map': objective.features['map'],
  }
  if examples.classes != tuple(_names(objective)):
    raise UserError('the classes of the data are not those of the model')
  prepare = views.eval_batch(examples.config, features)
  assert isinstance(objective, rows_lib.MeasuresExamples)
  measure_examples = objective.example_measures

  def apply(image: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    batch = prepare({'image': image, 'map': labels})
    outputs = objective.outputs(params, batch)
    return {
      'image': batch['image'],
      'map': batch['map'],
      'segments': outputs['segments'],
      'miou': measure_examples(outputs, batch)['miou'],
    }

  inputs = [examples.image[rows], examples.maps[rows]]
  comparison: dict[str, np.ndarray] = batched.in_batches(
    jax.jit(apply), inputs, _BATCH
  )
  return comparison


def _objective(subject: Subject) -> tuple[objectives.Objective, Any]:
  """Returns the objective of the run, and its parameters."""
  if 'segments' not in subject.vit.preprocess.outputs:
    raise UserError('the model does not predict the class of each pixel')
  return trained.restored(subject.vit)


def _names(objective: objectives.Objective) -> list[str]:
  return list(objective.features['map'].names)


def _ignored(objective: objectives.Objective) -> int:
  """Returns the label of pixels that do not count."""
  return getattr(objective.features['map'], 'ignore', -1)
