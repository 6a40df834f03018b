"""Measures of maps of classes: areas, overlaps and distances of boundaries.

Maps are integers [...], of an image or a volume. Areas are summed over all
images before they are divided, so that each place counts once; means leave out
classes for which a measure does not exist (nan), and say how many they average.
A class that is only labelled or only predicted has an overlap of 0, and the
largest distance. Places whose label is `ignore` do not count.

In comments: B or N images, K classes.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Self

from clu import metrics as clu_metrics
import flax
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.evaluation import metrics

IGNORE = 255
_DRAWS = 1_000  # of images, for intervals


class Overlaps(NamedTuple):
  """Measures of maps by class, which may be of several sets of images."""

  # Intersection over union, float64 [K]; nan without label or prediction.
  iou: np.ndarray
  # Share of a class's places that are found, [K]; nan without labels.
  accuracy: np.ndarray
  dice: np.ndarray  # dice coefficient, [K]; nan without label or prediction
  total: Any  # share of all places that are right

  @property
  def mean_iou(self) -> float:
    """Mean intersection over union."""
    return mean(self.iou)


def mean(values: np.ndarray) -> float:
  """Returns the mean of the values that exist; nan if there are none."""
  finite = values[~np.isnan(values)]
  return float(finite.mean()) if finite.size else float('nan')


def overlaps(matrix: np.ndarray) -> Overlaps:
  """Returns the measures of a confusion matrix [K, K], label first."""
  return area_overlaps(class_areas(matrix))


def area_overlaps(areas: Any) -> Overlaps:
  """Returns the measures of `areas` [..., 3, K], each perhaps a sum of several.

  Areas of NumPy are divided in float64, and areas of JAX in float32.
  """
  right, labelled, predicted = (areas[..., i, :] for i in range(3))
  with np.errstate(invalid='ignore', divide='ignore'):
    return Overlaps(
      right / (labelled + predicted - right),
      right / labelled,
      2 * right / (labelled + predicted),
      right.sum(axis=-1) / labelled.sum(axis=-1),
    )


_MEASURES: Mapping[str, Callable[[Overlaps], Any]] = {
  'miou': lambda values: values.mean_iou,
  'iou': lambda values: values.iou,
  'accuracy': lambda values: values.total,
  'mean_accuracy': lambda values: mean(values.accuracy),
  'dice': lambda values: mean(values.dice),
  'class_dice': lambda values: values.dice,
  'miou_classes': lambda values: int((~np.isnan(values.iou)).sum()),
  'labelled_classes': lambda values: int((~np.isnan(values.accuracy)).sum()),
}
MEASURES = tuple(_MEASURES)


def measures(matrix: np.ndarray) -> dict[str, Any]:
  """Returns numbers, and float64 [K] of classes, by the name of the metric.

  `miou` and `dice` are means over the `miou_classes` classes with a label or a
  prediction, and `mean_accuracy` over the `labelled_classes` classes.
  """
  values = overlaps(matrix)
  return {name: measure(values) for name, measure in _MEASURES.items()}


def hausdorff(
  label: np.ndarray,
  predicted: np.ndarray,
  spacing: Sequence[float] | None = None,
  percentile: float = 95.0,
) -> float:
  """Returns a percentile of the distances between two boundaries.

  It is the larger one of both directions, as in MONAI. A boundary is what an
  erosion by the direct neighbours removes.

  Args:
    label: bool [...], the places of one class in an image or a volume.
    predicted: bool [...].
    spacing: Distance of neighbours along each axis; None: 1.
    percentile: 100 for the largest distance.

  Returns:
    The distance in the unit of `spacing`; nan if one of both is empty.
  """
  from scipy import ndimage

  if not label.any() or not predicted.any():
    return float('nan')
  box = _around(label | predicted)
  label, predicted = label[box], predicted[box]
  edges = [x & ~ndimage.binary_erosion(x) for x in (label, predicted)]
  distances = [
    ndimage.distance_transform_edt(~edge, sampling=spacing)[opposite]
    for edge, opposite in (edges, edges[::-1])
  ]
  return float(max(np.percentile(x, percentile) for x in distances))


def _around(places: np.ndarray) -> tuple[slice, ...]:
  """Returns the smallest box with all places, bool [...] with some."""
  from scipy import ndimage

  box: tuple[slice, ...] = ndimage.find_objects(places.astype(np.uint8))[0]
  return box


def _present(
  labels: np.ndarray, predicted: np.ndarray, ignore: int
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
  """Yields an image's position, a class that it has, and where the class is.

  The places are bool [...], first of the label, then of the prediction.
  """
  for i, (truth, guess) in enumerate(zip(labels, predicted, strict=True)):
    counts = truth != ignore
    for k in np.union1d(truth[counts], guess[counts]).tolist():
      yield i, k, (truth == k) & counts, (guess == k) & counts


def distances(
  labels: np.ndarray,
  predicted: np.ndarray,
  classes: int,
  ignore: int = IGNORE,
  spacing: Sequence[float] | None = None,
) -> np.ndarray:
  """Returns the 95% Hausdorff distances of images, float64 [B, K].

  A class that only one of both maps has gets the diagonal of the box around all
  places that count, which no distance exceeds. BraTS has such a penalty, too:
  374 mm, the diagonal of its volumes of 240 x 240 x 155 mm
  (github.com/rachitsaluja/BraTS-2023-Metrics). MONAI leaves it out. A class
  that is in neither map of an image has nan.

  Args:
    labels: int [B, ...]; places whose label is `ignore` are left out of both.
    predicted: int [B, ...].
    classes: K.
    ignore: Label of places that do not count.
    spacing: As for `hausdorff`.
  """
  result = np.full((len(labels), classes), np.nan)
  steps = 1.0 if spacing is None else spacing
  for i, k, label, guess in _present(labels, predicted, ignore):
    distance = hausdorff(label, guess, spacing)
    if np.isnan(distance):
      sides = [x.stop - x.start for x in _around(labels[i] != ignore)]
      distance = float(np.linalg.norm(np.multiply(sides, steps)))
    result[i, k] = distance
  return result


def objects(
  labels: np.ndarray,
  predicted: np.ndarray,
  classes: int,
  ignore: int = IGNORE,
) -> np.ndarray:
  """Counts the objects of each image and class, int64 [B, 3, K].

  An object is a connected part of a class, also across corners. The counts are
  of labelled objects; of labelled objects without any place that is predicted
  so; and of predicted objects without any place that is labelled so. A
  percentile of distances can miss a small object, and these counts cannot.
  `distances` has the same arguments.
  """
  result = np.zeros((len(labels), 3, classes), np.int64)
  for i, k, label, guess in _present(labels, predicted, ignore):
    total, missed = _parts(label, guess)
    result[i, :, k] = total, missed, _parts(guess, label)[1]
  return result


def _parts(places: np.ndarray, reference: np.ndarray) -> tuple[int, int]:
  """Returns the number of connected parts, and how many miss `reference`."""
  from scipy import ndimage

  numbers, total = ndimage.label(places, np.ones((3,) * places.ndim))
  touched = np.unique(numbers[places & reference])
  return total, total - len(touched)


def areas(
  segments: jax.Array, labels: jax.Array, classes: int, ignore: int
) -> jax.Array:
  """Returns the areas of classes in each image, int32 [B, 3, K].

  They are the areas that are right, labelled and predicted, of predictions and
  labels int [B, ...]. Places whose label is `ignore` do not count.
  """

  def image_areas(label: jax.Array, segment: jax.Array) -> jax.Array:
    counts = label != ignore
    return class_areas(metrics.confusion(label, segment, classes, counts))

  return jax.vmap(image_areas)(jnp.asarray(labels), jnp.asarray(segments))


def class_areas(matrix: Any) -> Any:
  """Returns `areas` of one image, [3, K], from its confusion matrix."""
  right = matrix.diagonal()
  xp = jnp if isinstance(matrix, jax.Array) else np
  return xp.stack([right, matrix.sum(axis=1), matrix.sum(axis=0)])


def intervals(
  areas: np.ndarray, names: Sequence[str]
) -> dict[str, tuple[float, float]]:
  """Returns 95% intervals of overlaps, by drawing images with replacement.

  The `areas` are the areas of all images, int [N, 3, K].

  Returns:
    Least and greatest value by the name of the measure; {} for one image.
  """
  if len(areas) < 2:
    return {}
  flat = areas.reshape(len(areas), -1).astype(np.float64)
  sums = (_drawn_images(len(areas)) @ flat).reshape(_DRAWS, *areas.shape[1:])
  drawn = area_overlaps(sums)
  means = {
    'accuracy': drawn.total,
    'miou': _row_means(drawn.iou),
    'mean_accuracy': _row_means(drawn.accuracy),
    'dice': _row_means(drawn.dice),
  }
  for i, name in enumerate(names):
    means[f'iou/{name}'] = drawn.iou[:, i]
    means[f'class_dice/{name}'] = drawn.dice[:, i]
  return {name: _middle(x) for name, x in means.items()}


def _drawn_images(count: int) -> np.ndarray:
  """Returns how often each of 1,000 draws has each image, int [draws, images].

  A draw has as many images as there are (Efron's bootstrap). Percentiles over
  draws say how much a measure would differ on other images of the same kind.
  """
  rng = np.random.default_rng(0)
  return rng.multinomial(count, np.full(count, 1 / count), size=_DRAWS)


def mean_distances(
  distances: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
  """Returns mean distances of classes, and intervals as `intervals` does.

  `hausdorff95` is the mean over classes, but for a class 'background'. The
  `distances` of all images are [N, K].
  """
  foreground = [i for i, name in enumerate(names) if name != 'background']
  times, exists = _drawn_images(len(distances)), ~np.isnan(distances)
  with np.errstate(invalid='ignore'):  # of a draw without the class: nan
    drawn = (times @ np.nan_to_num(distances)) / (times @ exists)  # [draws, K]
  of_class = _row_means(distances.T)
  means = {'hausdorff95': mean(of_class[foreground])}
  bounds = {'hausdorff95': _middle(_row_means(drawn[:, foreground]))}
  for i, name in enumerate(names):
    means[f'hausdorff95/{name}'] = float(of_class[i])
    bounds[f'hausdorff95/{name}'] = _middle(drawn[:, i])
  return means, bounds if len(distances) > 1 else {}


OBJECTS = ('objects', 'missed_objects', 'false_objects')


def total_objects(counts: np.ndarray, names: Sequence[str]) -> dict[str, int]:
  """Returns sums over images, of all classes and by class.

  The counts are the `objects` of all images, [N, 3, K]. The sums over classes
  leave out a class 'background'.
  """
  totals: dict[str, int] = {}
  for kind, of_class in zip(OBJECTS, counts.sum(axis=0).tolist(), strict=True):
    by_name = dict(zip(names, of_class, strict=True))
    totals[kind] = sum(x for k, x in by_name.items() if k != 'background')
    totals |= {f'{kind}/{name}': x for name, x in by_name.items()}
  return totals


def _row_means(values: np.ndarray) -> np.ndarray:
  """Returns means of the values that exist in each row; nan without any."""
  exists = ~np.isnan(values)
  total = np.where(exists, values, 0).sum(axis=1)
  return np.where(
    exists.any(axis=1), total / np.maximum(exists.sum(axis=1), 1), np.nan
  )


def _middle(values: np.ndarray) -> tuple[float, float]:
  """Returns the 2.5% and 97.5% percentiles of the values that exist."""
  values = values[~np.isnan(values)]
  if not len(values):
    return float('nan'), float('nan')
  low, high = np.percentile(values, (2.5, 97.5)).tolist()
  return low, high


@flax.struct.dataclass
class Confusion(metrics.Counts):
  """Numbers of places by label and prediction, int [K, K], over all batches."""

  @classmethod
  def from_model_output(
    cls,
    segments: jax.Array,
    labels: jax.Array,
    mask: jax.Array,
    classes: jax.Array,
    ignore: jax.Array,
    **_: jax.Array,
  ) -> Self:
    """Counts the places of a batch of predictions and labels, int [B, ...].

    `mask` is bool [B], False on padding. Only the length of `classes`, [K],
    matters.
    """
    shape = (len(mask), *(1,) * (labels.ndim - 1))
    counted = (labels != ignore) & mask.reshape(shape)
    return cls(metrics.confusion(labels, segments, len(classes), counted))


def _metric(name: str) -> type[Confusion]:
  """Returns the metric that is one of `measures`."""

  @flax.struct.dataclass
  class Measure(Confusion):
    def compute(self) -> Any:
      return _MEASURES[name](overlaps(np.asarray(self.counts)))

  Measure.__name__ = name  # of errors
  return Measure


# Takes segments and labels [B, ...], loss [B], mask [B], classes and ignore.
Segmentation = clu_metrics.Collection.create(
  **{name: _metric(name) for name in MEASURES},
  confusion=Confusion,
  loss=clu_metrics.Average.from_output('loss'),
  examples=metrics.Count,
)
