"""Pictures of maps of classes: overlays, and where they are wrong.

In comments: B images, (H, W) the size of the model's input.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from vit_jax import objectives
from vit_jax.config import UserError
from vit_jax.data.device import views
from vit_jax.explore import subject as subject_lib
from vit_jax.plots import canvas
from vit_jax.plots import class_maps
from vit_jax.plots import tiles
from vit_jax.weights import batched

Drawn = subject_lib.Drawn
Subject = subject_lib.Subject

_BATCH = 16  # maximum number of images at a time
_COLUMNS = 8  # of a sheet with a group of tiles for each image
_WORST = 12  # examples with the lowest overlap that are shown
_LIMITS = (112, 224)  # pixels of a tile's longer side: its caption needs them
_SWATCH = 48  # side of a colour in the legend
_WRONG = np.array([220, 40, 40], np.uint8)
_DARK = 0.35  # brightness of places that are right, in the picture of errors


def overlays(subject: Subject) -> Drawn:
  """Draws the predicted classes over each image, with a legend."""
  made, params = _objective(subject)
  outputs = jax.jit(
    lambda images: made.outputs(params, {'image': images})['segments']
  )
  found = batched.in_batches(outputs, [subject.images.inputs], _BATCH)
  colours = _colours(made)
  groups = [
    [image, class_maps.overlay(_grey(image), labels, colours)]
    for image, labels in zip(subject.pixels, found, strict=True)
  ]
  captions: list[str] = []
  for text in subject.captions:
    captions += [text, '']
  figures = [
    ('', _sheet(subject, groups, captions)),
    ('Colours', _legend(made, np.unique(found), colours)),
  ]
  caption = (
    'Each image, and the classes that the model predicts for its pixels, in the'
    ' colours of Pascal VOC. Images are those of the model: resized, and cut in'
    ' their middle.'
  )
  names = _names(made)
  shares = [
    np.bincount(x.ravel(), minlength=len(names)) / x.size for x in found
  ]
  numbers = {
    'images': list(subject.images.names),
    'classes': names,
    'shares': shares,
  }
  return Drawn(caption, figures, numbers)


def errors(subject: Subject) -> Drawn:
  """Draws the examples with the lowest overlap, and their wrong pixels."""
  made, params = _objective(subject)
  examples = subject.examples
  if examples.maps is None:
    raise UserError(
      'needs images with maps of classes: give --data and --split'
    )
  features = {'image': examples.features['image'], 'map': made.features['map']}
  if examples.classes != tuple(_names(made)):
    raise UserError('the classes of the data are not those of the model')
  prepare = views.eval_batch(examples.config, features)

  def apply(image: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    batch = prepare({'image': image, 'map': labels})
    outputs = made.outputs(params, batch)
    return made.of_each(outputs, batch) | {
      'segments': outputs['segments'],
      **batch,
    }

  inputs = [examples.image, examples.maps]
  found = batched.in_batches(jax.jit(apply), inputs, _BATCH)
  overlap = np.asarray(found['miou'])
  worst = np.argsort(overlap, kind='stable')[:_WORST]
  colours = _colours(made)
  pixels = tiles.pixels(subject.vit.preprocess, found['image'][worst])
  ignore: int = getattr(made.features['map'], 'ignore', -1)
  groups = [
    _compared(image, found['map'][i], found['segments'][i], colours, ignore)
    for image, i in zip(pixels, worst, strict=True)
  ]
  captions: list[str] = []
  for i in worst:
    text = f'{examples.names[i]}\n{overlap[i]:.3f}'
    captions += [text, 'label', 'prediction', 'wrong']
  shown = np.unique([found['map'][worst], found['segments'][worst]])
  figures = [
    ('', _sheet(subject, groups, captions)),
    ('Colours', _legend(made, shown[shown != ignore], colours)),
  ]
  caption = (
    f'The {len(worst)} of {len(examples)} examples with the lowest mean overlap'
    ' of their classes (the number below the name): the image, its map, the'
    ' prediction, and the wrong pixels in red. Pixels that do not count have no'
    ' colour.'
  )
  numbers = [
    {'index': int(examples.index[i]), 'miou': float(overlap[i])} for i in worst
  ]
  return Drawn(caption, figures, {'worst': numbers})


def _objective(subject: Subject) -> tuple[objectives.Objective, Any]:
  """Returns the objective of the run, and its parameters.

  Raises:
    UserError: The model is not of a run of segmentation.
  """
  if 'segments' not in subject.vit.preprocess.outputs:
    raise UserError('the model does not predict the class of each pixel')
  return objectives.of_run(subject.vit)


def _names(made: objectives.Objective) -> list[str]:
  return list(made.features['map'].names)


def _colours(made: objectives.Objective) -> np.ndarray:
  return class_maps.palette(len(_names(made)))


def _compared(
  image: np.ndarray,
  labels: np.ndarray,
  segments: np.ndarray,
  colours: np.ndarray,
  ignore: int,
) -> list[np.ndarray]:
  """Returns four tiles, uint8 [H, W, 3]: image, label, prediction, errors."""
  counted, grey = (labels != ignore)[..., None], _grey(image)
  known = np.where(labels == ignore, 0, labels)
  truth, guess = (
    np.where(counted, class_maps.overlay(grey, x, colours), grey)
    for x in (known, segments)
  )
  dark = np.round(grey * _DARK).astype(np.uint8)
  wrong = counted & (known != segments)[..., None]
  return [image, truth, guess, np.where(wrong, _WRONG, dark)]


def _grey(image: np.ndarray) -> np.ndarray:
  """Returns an image without its colours, which overlays would mix with."""
  return np.repeat(image.mean(axis=-1, keepdims=True), 3, axis=-1)


def _sheet(
  subject: Subject, groups: list[list[np.ndarray]], captions: Sequence[str]
) -> Any:
  """Returns groups of tiles, one for each image."""
  size = subject.vit.preprocess.image_size
  beside = max(1, _COLUMNS // len(groups[0])) * len(groups[0])
  shape = tiles.tile_shape(size, size, beside, limits=_LIMITS)
  fitted = [tiles.fit_all(np.stack(group), shape) for group in groups]
  return canvas.sheet(
    tiles.grouped(fitted, beside), captions=captions, group=len(groups[0])
  )


def _legend(
  made: objectives.Objective, classes: np.ndarray, colours: np.ndarray
) -> Any:
  """Returns the colours of some classes with their names."""
  names = _names(made)
  shape = (_SWATCH, 2 * _SWATCH, 3)
  groups = [[np.broadcast_to(colours[i], shape)] for i in classes.tolist()]
  return canvas.sheet(
    tiles.grouped(groups, _COLUMNS),
    captions=[names[i] for i in classes.tolist()],
  )
