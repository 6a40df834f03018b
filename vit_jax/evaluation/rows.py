"""The metrics of an objective, with measures of single examples.

Maps of classes also have distances, and intervals over images; whole images may
have any size. In comments: K classes.
"""

from collections.abc import Callable
import math
from typing import Any

from absl import logging
import jax
import numpy as np

from vit_jax import data
from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data.host import maps as maps_lib
from vit_jax.evaluation import accuracy
from vit_jax.evaluation import base
from vit_jax.evaluation import metrics
from vit_jax.evaluation import predictions
from vit_jax.evaluation import segments

Rows = dict[str, np.ndarray]

# Labels and predicted classes, int [B, ...] -> further columns by name.
OnHost = Callable[[np.ndarray, np.ndarray], Rows]


def measure(
  context: base.Context,
  split: str,
  head: predictions.Head | None,
  on_host: OnHost | None = None,
) -> tuple[dict[str, Any], Rows]:
  """Returns the metrics of a split, and columns of its N examples in order.

  The columns are `index`, what `Head.read` returns, and what `example_measures`
  of the objective returns, if it has that: (outputs, batch) -> measures of
  single examples, [B] each. A measure with further axes is for intervals, and
  in no table.

  Args:
    context: As for `Evaluator.run`.
    split: The split.
    head: Interprets the outputs; None: they predict no feature.
    on_host: Measures further columns, such as `distances`.
  """

  def measured(objective: Any, params: Any, batch: dict[str, jax.Array]) -> Any:
    outputs = objective.outputs(params, batch)
    rows = {'index': batch['index']}
    if hasattr(objective, 'example_measures'):
      rows |= objective.example_measures(outputs, batch)
    rows |= head.read(outputs, batch) if head else {}
    maps = (batch['map'], outputs['segments']) if on_host else ()
    return objective.measure(outputs, batch), rows, batch['valid'], maps

  totals, parts = [], []
  for total, rows, valid, maps in context.apply(measured, split):
    totals.append(total)
    rows |= on_host(*maps) if on_host else {}
    parts.append({name: x[valid] for name, x in rows.items()})
  return accuracy.total(context, totals), _joined(parts)


def _joined(parts: list[Rows]) -> Rows:
  return {name: np.concatenate([x[name] for x in parts]) for name in parts[0]}


def distances(objective: Any, spacing: tuple[float, ...]) -> OnHost:
  """Returns the function that measures distances of boundaries and objects.

  The `spacing` of neighbouring places is along each axis; () stands for 1.
  """
  feature = objective.features.get('map')
  if feature is None or 'segments' not in objective.output_facts():
    raise UserError('--hausdorff is for models of segmentation: leave it out')

  def measure(labels: np.ndarray, predicted: np.ndarray) -> Rows:
    maps = labels, predicted, len(feature.classes), feature.ignore
    return {
      'distances': segments.distances(*maps, spacing or None),
      'objects': segments.objects(*maps),
    }

  return measure


def add_intervals(
  results: dict[str, Any], rows: Rows, names: tuple[str, ...]
) -> None:
  """Adds intervals over images, distances and objects to the metrics of maps.

  Logs which classes are in no map and no prediction, as means leave them out.
  The columns `areas`, `distances` and `objects` are taken out of `rows`.
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

  Args:
    segment: Maps an image and its name to pixels and classes [h, w].
    source: Images with maps.
    on_host: Measures further columns, such as `distances`.
    progress: Called with the number of examples that are done.

  Returns:
    The metrics of `objectives.segmentation` but its loss, and the columns
    `index`, `miou`, `accuracy` and `areas`, as its `example_measures`.
  """
  feature: Any = source.features['map']
  count = len(feature.classes)
  total = np.zeros((count, count), np.int64)
  parts = []
  for position in range(len(source)):
    example = source.read(position)
    _, predicted = segment(example.image, example.origin)
    labels = maps_lib.read(example, 'map', feature, predicted.shape)
    matrix = metrics.confusion(
      labels, predicted, count, labels != feature.ignore
    )
    total += matrix
    overlaps = segments.overlaps(matrix)
    rows = {
      'index': np.array([example.index]),
      'miou': np.array([overlaps.mean_iou]),
      'accuracy': np.array([overlaps.total]),
      'areas': segments.class_areas(matrix)[None],
    }
    parts.append(
      rows | (on_host(labels[None], predicted[None]) if on_host else {})
    )
    progress(1)
  results = metrics.scalars(segments.measures(total), {'map': feature})
  return results | {'examples': len(parts), 'confusion': total}, _joined(parts)
