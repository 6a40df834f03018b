"""Pictures of maps of classes: labels, predictions and errors.

In comments: B images, (H, W) the size of the model's input, K classes.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from vit_jax.config import UserError
from vit_jax.data.device import views
from vit_jax.evaluation import metrics
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
  names, images = list(objective.features['map'].names), subject.images
  caption = 'Each image, and the class that the model predicts for each pixel'
  captions: Sequence[str] = subject.captions
  if images.rows and subject.examples.maps is not None:
    comparison = _compare(subject, np.array(images.rows))
    captions = _captions(images.names, comparison['miou'])
    caption += (
      ', with the ground truth before it. mIoU is the mean over the classes of'
      f' an image of the intersection over union. {_KEY}'
    )
  else:
    apply = jax.jit(
      lambda x: {
        'segments': objective.outputs(params, {'image': x})['segments']
      }
    )
    comparison = batched.in_batches(apply, [images.inputs], _BATCH)
    caption += '.'
  shares = [
    np.bincount(x.ravel(), minlength=len(names)) / x.size
    for x in comparison['segments']
  ]
  numbers = {'images': list(images.names), 'classes': names, 'shares': shares}
  drawn = _draw(objective, subject.pixels, comparison, captions)
  return Drawn(caption, [('', drawn)], numbers)


def errors(subject: Subject) -> Drawn:
  """Draws the examples with the lowest mIoU, and their wrong pixels."""
  objective, _ = _objective(subject)
  examples, feature = subject.examples, objective.features['map']
  names = feature.names
  comparison = _compare(subject, np.arange(len(examples)))
  miou = comparison['miou']
  worst = np.argsort(miou, kind='stable')[:_WORST]
  chosen = {name: x[worst] for name, x in comparison.items()}
  pixels = tiles.pixels(subject.vit.preprocess, chosen['image'])
  captions = _captions([examples.names[i] for i in worst], chosen['miou'])
  drawn = _draw(objective, pixels, chosen, captions)
  caption = (
    f'The {len(worst)} of {len(examples)} examples with the lowest mIoU: the'
    f' mean over the classes of an image of the intersection over union. {_KEY}'
  )
  labels, predicted = comparison['map'], comparison['segments']
  counts = labels != getattr(feature, 'ignore', -1)
  overlaps = segments.overlaps(
    metrics.confusion(labels, predicted, len(names), counts)
  )
  ascending = [
    i for i in np.argsort(overlaps.iou) if np.isfinite(overlaps.iou[i])
  ]
  numbers = {
    'worst': [
      {'index': int(examples.index[i]), 'miou': float(miou[i])} for i in worst
    ],
    'examples': len(examples),
    'miou': overlaps.mean_iou,
    'classes_by_iou': [(names[i], float(overlaps.iou[i])) for i in ascending],
  }
  return Drawn(caption, [('', drawn)], numbers)


def _captions(names: Sequence[str], miou: np.ndarray) -> list[str]:
  return [f'{name}\nmIoU {x:.2f}' for name, x in zip(names, miou, strict=True)]


def _draw(
  objective: Any,
  pixels: np.ndarray,
  arrays: Mapping[str, np.ndarray],
  captions: Sequence[str],
) -> np.ndarray:
  feature = objective.features['map']
  maps = {name: arrays[name] for name in ('map', 'segments') if name in arrays}
  ignore = getattr(feature, 'ignore', -1)
  return class_maps.draw(feature.names, ignore, pixels, maps, captions)


def _compare(subject: Subject, rows: np.ndarray) -> dict[str, np.ndarray]:
  """Applies the model to labelled examples.

  `rows` are positions among the examples, int [B].

  Returns:
    image: Inputs of the model, float32 [B, H, W, C].
    map: Labels, int [B, H, W].
    segments: Predictions, int [B, H, W].
    miou: Mean intersection over union of each example, float32 [B].
  """
  objective, params = _objective(subject)
  examples, feature = subject.examples, objective.features['map']
  if examples.maps is None:
    raise UserError(
      'needs images with maps of classes: give --data and --split'
    )
  if examples.classes != tuple(feature.names):
    raise UserError('the classes of the data are not those of the model')
  features = {'image': examples.features['image'], 'map': feature}
  prepare = views.eval_batch(examples.config, features)

  @jax.jit
  def apply(image: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    batch = prepare({'image': image, 'map': labels})
    outputs = objective.outputs(params, batch)
    return {
      'image': batch['image'],
      'map': batch['map'],
      'segments': outputs['segments'],
      'miou': objective.example_measures(outputs, batch)['miou'],
    }

  inputs = [examples.image[rows], examples.maps[rows]]
  comparison: dict[str, np.ndarray] = batched.in_batches(apply, inputs, _BATCH)
  return comparison


def _objective(subject: Subject) -> tuple[Any, Any]:
  """Returns the objective of a run of segmentation, and its parameters."""
  if 'segments' not in subject.vit.preprocess.outputs:
    raise UserError('the model does not predict the class of each pixel')
  return trained.restored(subject.vit)
