"""Measures of maps of classes: areas, overlaps and distances of boundaries.

Maps are integers [...], of an image or a volume. Areas are summed over all
images before they are divided, so that each place counts once; means leave out
classes for which a measure does not exist (nan), and say how many they average.
A class that is only labelled or only predicted has an overlap of 0, and the
largest distance.
"""

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
from vit_jax.evaluation import report

IGNORE = 255
_DRAWS = 1_000  # of images, for intervals


def confusion(
  labels: np.ndarray, predicted: np.ndarray, classes: int, ignore: int = IGNORE
) -> np.ndarray:
  """Counts places by label and prediction, int64 [K, K], label first.

  labels: int [...]; places whose label is `ignore` do not count.
  predicted: int [...], less than `classes`.
  """
  counts = labels != ignore
  return report.confusion(labels[counts], predicted[counts], classes)


class Overlaps(NamedTuple):
  """Measures of a confusion matrix, by class; nan where there is none.

  Attributes:
    iou: Intersection over union, float64 [K]; nan without label or prediction.
    accuracy: Share of a class's places that are found, [K]; nan without labels.
    precision: Share of a class's predictions that are right, [K].
    dice: Dice coefficient, [K]; nan without label or prediction.
    total: Share of all places that are right.
  """

  iou: np.ndarray
  accuracy: np.ndarray
  precision: np.ndarray
  dice: np.ndarray
  total: float

  @property
  def f1(self) -> np.ndarray:
    """Harmonic mean of precision and accuracy, [K]; nan where one is.

    Elsewhere it is the Dice coefficient.
    """
    exists = ~np.isnan(self.precision + self.accuracy)
    return np.where(exists, self.dice, np.nan)

  @property
  def mean_iou(self) -> float:
    """Mean intersection over union."""
    return mean(self.iou)

  @property
  def mean_accuracy(self) -> float:
    """Mean accuracy of the classes."""
    return mean(self.accuracy)

  @property
  def mean_dice(self) -> float:
    """Mean Dice coefficient."""
    return mean(self.dice)

  @property
  def num_measured(self) -> int:
    """Number of classes with a label or a prediction.

    `mean_iou` and `mean_dice` average these.
    """
    return int((~np.isnan(self.iou)).sum())

  @property
  def num_labelled(self) -> int:
    """Number of classes with labels, which `mean_accuracy` averages."""
    return int((~np.isnan(self.accuracy)).sum())


def mean(values: np.ndarray) -> float:
  """Returns the mean of the values that exist; nan if there are none."""
  finite = values[~np.isnan(values)]
  return float(finite.mean()) if finite.size else float('nan')


def overlaps(matrix: np.ndarray) -> Overlaps:
  """Returns the measures of a confusion matrix [K, K], label first."""
  right = np.diag(matrix).astype(np.float64)
  labelled, predicted = matrix.sum(axis=1), matrix.sum(axis=0)
  with np.errstate(invalid='ignore'):
    return Overlaps(
      right / (labelled + predicted - right),
      right / labelled,
      right / predicted,
      2 * right / (labelled + predicted),
      float(right.sum() / matrix.sum()),
    )


def dice_by_image(
  labels: np.ndarray,
  predicted: np.ndarray,
  classes: int,
  ignore_empty: bool = True,
) -> np.ndarray:
  """Returns the Dice coefficient of each image and class, float64 [B, K].

  labels: int [B, ...].
  predicted: int [B, ...].
  ignore_empty: Whether a class without labels in an image is nan; otherwise it
  is 1 where it is not predicted either, and 0 where it is (MONAI).
  """
  scores = np.empty((len(labels), classes))
  for i, maps in enumerate(zip(labels, predicted, strict=True)):
    matrix = confusion(*maps, classes)
    scores[i] = overlaps(matrix).dice
    empty = matrix.sum(axis=1) == 0
    if ignore_empty:
      scores[i, empty] = np.nan
    else:
      scores[i, empty] = matrix.sum(axis=0)[empty] == 0
  return scores


def hausdorff(
  label: np.ndarray,
  predicted: np.ndarray,
  spacing: Sequence[float] | None = None,
  percentile: float = 95.0,
) -> float:
  """Returns a percentile of the distances between two boundaries.

  The larger one of both directions, as in MONAI. A boundary is what an erosion
  by the direct neighbours removes.

  label: bool [...], the places of one class in an image or a volume.
  predicted: bool [...].
  spacing: Distance of neighbours along each axis; None: 1.
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
  slices = []
  for axis in range(places.ndim):
    other_axes = tuple(i for i in range(places.ndim) if i != axis)
    at = np.flatnonzero(places.any(axis=other_axes))
    slices.append(slice(int(at[0]), int(at[-1]) + 1))
  return tuple(slices)


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
  (github.com/rachitsaluja/BraTS-2023-Metrics). MONAI leaves it out.

  labels: int [B, ...]; places whose label is `ignore` are left out of both.
  predicted: int [B, ...].
  Nan for a class that is in neither map of an image.
  """
  result = np.full((len(labels), classes), np.nan)
  for i, (truth, guess) in enumerate(zip(labels, predicted, strict=True)):
    counts = truth != ignore
    present = np.union1d(truth[counts], guess[counts])
    for k in present.tolist():
      pair = (truth == k) & counts, (guess == k) & counts
      result[i, k] = hausdorff(*pair, spacing)
    if len(present):
      sides = [x.stop - x.start for x in _around(counts)]
      steps = 1.0 if spacing is None else spacing
      diagonal = float(np.linalg.norm(np.multiply(sides, steps)))
      result[i, present] = np.nan_to_num(result[i, present], nan=diagonal)
  return result


def objects(
  labels: np.ndarray,
  predicted: np.ndarray,
  classes: int,
  ignore: int = IGNORE,
) -> np.ndarray:
  """Counts the objects of each image and class, int64 [B, 3, K].

  An object is a connected part of a class, also across corners. The counts are
  of labelled objects; of those without any place that is predicted so; and of
  predicted objects without any place that is labelled so. A percentile of
  distances can miss a small object, and these counts cannot.

  labels: int [B, ...]; places whose label is `ignore` are left out of both.
  predicted: int [B, ...].
  """
  result = np.zeros((len(labels), 3, classes), np.int64)
  for i, (truth, guess) in enumerate(zip(labels, predicted, strict=True)):
    counts = truth != ignore
    for k in np.union1d(truth[counts], guess[counts]).tolist():
      label, prediction = (truth == k) & counts, (guess == k) & counts
      total, missed = _parts(label, prediction)
      result[i, :, k] = total, missed, _parts(prediction, label)[1]
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

  They are those that are right, labelled and predicted.

  segments: Predictions, int [B, ...].
  labels: int [B, ...]; places whose label is `ignore` do not count.
  """
  pairs = jnp.where(labels != ignore, classes * labels + segments, classes**2)
  flat = pairs.reshape(len(pairs), -1)
  counts = jax.vmap(lambda x: jnp.bincount(x, length=classes**2 + 1))(flat)
  matrix = counts[:, :-1].reshape(-1, classes, classes)
  right = jnp.diagonal(matrix, axis1=1, axis2=2)
  return jnp.stack([right, matrix.sum(axis=2), matrix.sum(axis=1)], axis=1)


def intervals(
  areas: np.ndarray, names: Sequence[str]
) -> dict[str, tuple[float, float]]:
  """Returns 95% intervals of overlaps, by drawing images with replacement.

  They are percentiles of 1,000 draws of as many images (Efron's bootstrap): how
  much a measure would differ on other images of the same kind.

  areas: `areas` of all images, int [N, 3, K].
  Least and greatest value by the name of the measure; {} for one image.
  """
  count = len(areas)
  if count < 2:
    return {}
  rng = np.random.default_rng(0)
  times = rng.multinomial(count, np.full(count, 1 / count), size=_DRAWS)
  flat = areas.reshape(count, -1).astype(np.float64)
  sums = (times @ flat).reshape(_DRAWS, *areas.shape[1:])
  right, labelled, predicted = np.moveaxis(sums, 1, 0)
  with np.errstate(invalid='ignore', divide='ignore'):
    by_class = {
      'miou': right / (labelled + predicted - right),
      'mean_accuracy': right / labelled,
      'dice': 2 * right / (labelled + predicted),
    }
    means = {'accuracy': right.sum(axis=1) / labelled.sum(axis=1)}
  means |= {name: _row_means(x) for name, x in by_class.items()}
  for i, name in enumerate(names):
    means[f'iou/{name}'] = by_class['miou'][:, i]
    means[f'class_dice/{name}'] = by_class['dice'][:, i]
  return {name: _middle(x) for name, x in means.items()}


def mean_distances(
  distances: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
  """Returns mean distances of classes, and intervals as `intervals` does.

  The mean over classes, `hausdorff95`, leaves out a class 'background'.

  distances: From `distances`, of all images, [N, K].
  """
  foreground = [i for i, name in enumerate(names) if name != 'background']
  rng = np.random.default_rng(0)
  rows = rng.integers(0, len(distances), (_DRAWS, len(distances)))
  drawn = np.stack([_row_means(distances[x].T) for x in rows])  # [draws, K]
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

  The sums over classes leave out a class 'background'.

  counts: From `objects`, of all images, [N, 3, K].
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


def without_zero(labels: np.ndarray, ignore: int = IGNORE) -> np.ndarray:
  """Returns labels without class 0, which becomes `ignore`; others minus 1.

  ADE20K stores its 150 classes as 1 to 150, and 0 for all else.
  """
  shifted = labels.astype(np.int64) - 1
  is_ignored = (labels == 0) | (labels == ignore)
  return np.where(is_ignored, ignore, shifted).astype(labels.dtype)


@flax.struct.dataclass
class _Places(clu_metrics.Metric):
  """Counts of places by label and prediction, int [K, K], over all batches."""

  counts: Any

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
    """Counts the places of a batch.

    segments: Predictions, int [B, ...].
    labels: int [B, ...].
    mask: bool [B], False on padding.
    classes: [K], only its length counts.
    """
    k = len(classes)
    shape = (len(mask), *(1,) * (labels.ndim - 1))
    counted = (labels != ignore) & mask.reshape(shape)
    labels = labels.astype(jnp.int32)
    pairs = jnp.where(counted, k * labels + segments, k * k)
    counts = jnp.bincount(pairs.ravel(), length=k * k + 1)
    return cls(counts[:-1].reshape(k, k))

  def merge(self, other: Self) -> Self:
    """Adds both; in int64, since a split may have more than 2^31 places."""
    counts = (np.asarray(x.counts, np.int64) for x in (self, other))
    return type(self)(sum(counts))


# Metrics, and the measures in `Overlaps` that they are.
_MEASURES = {
  'miou': 'mean_iou',
  'iou': 'iou',
  'accuracy': 'total',
  'mean_accuracy': 'mean_accuracy',
  'dice': 'mean_dice',
  'class_dice': 'dice',
  'miou_classes': 'num_measured',
  'labelled_classes': 'num_labelled',
}


def measures(values: Overlaps) -> dict[str, Any]:
  """Returns numbers, and float64 [K] of classes, by the name of the metric."""
  return {name: getattr(values, x) for name, x in _MEASURES.items()}


def _metric(measure: str) -> type[_Places]:
  """Returns the metric that is a measure in `Overlaps`."""

  @flax.struct.dataclass
  class Measure(_Places):
    def compute(self) -> Any:
      return getattr(overlaps(np.asarray(self.counts)), measure)

  Measure.__name__ = measure  # of errors
  return Measure


@flax.struct.dataclass
class Confusion(_Places):
  """Numbers of places by label and prediction."""

  def compute(self) -> np.ndarray:
    """Returns int64 [K, K], label first."""
    return np.asarray(self.counts)


# Takes segments and labels [B, ...], loss [B], mask [B], classes and ignore.
Segmentation = clu_metrics.Collection.create(
  **{name: _metric(x) for name, x in _MEASURES.items()},
  confusion=Confusion,
  loss=clu_metrics.Average.from_output('loss'),
  examples=metrics.Count,
)
