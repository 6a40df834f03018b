"""Measures of maps of classes, by image; whole images of any size.

In comments: K classes.
"""

from collections.abc import Callable
import math
from typing import Any

from absl import logging
import numpy as np

from vit_jax import data
from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data import target_kinds
from vit_jax.data.host import maps
from vit_jax.evaluation import metrics
from vit_jax.evaluation import segments

Rows = dict[str, np.ndarray]

# Labels and predicted classes, int [B, ...] -> further columns by name.
OnHost = Callable[[np.ndarray, np.ndarray], Rows]


def distances(objective: Any, spacing: tuple[float, ...]) -> OnHost:
  """Returns the function that measures distances of boundaries and objects."""
  feature = objective.features.get('map')
  if feature is None or 'segments' not in objective.output_facts():
    raise UserError('--hausdorff is for models of segmentation: leave it out')

  def measure(labels: np.ndarray, predicted: np.ndarray) -> Rows:
    maps_ = labels, predicted, len(feature.classes), feature.ignore
    return {
      'distances': segments.distances(*maps_, spacing or None),
      'objects': segments.objects(*maps_),
    }

  return measure


def add_intervals(
  results: dict[str, Any], rows: Rows, names: tuple[str, ...]
) -> None:
  """Adds intervals over images, distances and objects to the metrics of maps.

  Logs which classes are in no map and no prediction, as means leave them out.
  """
  areas = rows.pop('areas')
  bounds = segments.intervals(areas, names)
  present = set(np.flatnonzero(areas[:, 1:].sum(axis=(0, 1))).tolist())
  absent = [name for i, name in enumerate(names) if i not in present]
  if absent:
    logging.warning(
      'warning: miou and dice average %d of %d classes: neither a map nor a'
      ' prediction has %s',
      *(len(names) - len(absent), len(names), join_first(absent)),
    )
  if 'distances' in rows:
    measured, more = segments.mean_distances(rows.pop('distances'), names)
    results |= {k: x if math.isfinite(x) else None for k, x in measured.items()}
    bounds |= more
    results |= segments.total_objects(rows.pop('objects'), names)
  for name, (low, high) in bounds.items():
    if name in results and math.isfinite(low):
      results[f'{name}_interval'] = (low, high)


def measure_whole_images(
  segment: Callable[[Any, str], tuple[np.ndarray, np.ndarray]],
  source: data.Source,
  on_host: OnHost | None,
  progress: Callable[[int], object],
) -> tuple[dict[str, Any], Rows]:
  """Measures the maps of images of any size; one image is in memory at a time.

  Each pixel of each map counts once, at the size in which it is stored.

  segment: Maps an image and its name to pixels and classes [h, w].
  The metrics of `objectives.segmentation` but its loss, and the columns
  `index`, `miou`, `accuracy` and `areas`, as its `example_measures`.
  """
  feature = source.features['map']
  assert isinstance(feature, target_kinds.SegmentationMap)
  count = len(feature.classes)
  total = np.zeros((count, count), np.int64)
  rows: list[Rows] = []
  for position in range(len(source)):
    example = source.read(position)
    _, predicted = segment(example.image, example.origin)
    labels = maps.read(example, 'map', feature, predicted.shape)
    matrix = segments.confusion(labels, predicted, count, feature.ignore)
    total += matrix
    row = {'index': np.array([example.index]), **_image_rows(matrix)}
    if on_host:
      row |= on_host(labels[None], predicted[None])
    rows.append(row)
    progress(1)
  columns = {name: np.concatenate([x[name] for x in rows]) for name in rows[0]}
  results = segments.measures(segments.overlaps(total))
  results = metrics.scalars(results, {'map': feature})
  return results | {'examples': len(rows), 'confusion': total}, columns


def _image_rows(matrix: np.ndarray) -> Rows:
  """Returns the mean overlap, the accuracy and the areas of one image."""
  right, labelled = np.diag(matrix), matrix.sum(axis=1)
  areas = np.stack([right, labelled, matrix.sum(axis=0)])
  of_classes = segments.overlaps(matrix)
  return {
    'miou': np.array([of_classes.mean_iou]),
    'accuracy': np.array([of_classes.total]),
    'areas': areas[None],
  }
