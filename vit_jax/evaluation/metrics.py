"""Classification metrics that count each image exactly once."""

from collections.abc import Mapping
import functools
from typing import Any

from clu import metrics
import flax
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data import features as features_lib

MOST_CONFUSED = 100  # classes whose confusion is counted; more cannot be read


@flax.struct.dataclass
class Count(metrics.Metric):
  """Number of images that were not padding."""

  total: jax.Array

  @classmethod
  def empty(cls) -> 'Count':
    """Returns a count of 0."""
    return cls(total=jnp.array(0, jnp.int32))

  @classmethod
  def from_model_output(cls, mask: jax.Array, **_: jax.Array) -> 'Count':
    """Counts the True in mask [B]."""
    return cls(total=mask.sum(dtype=jnp.int32))

  def merge(self, other: 'Count') -> 'Count':
    """Adds two counts."""
    return type(self)(total=self.total + other.total)

  def compute(self) -> jax.Array:
    """Returns the count, an int32 scalar."""
    return self.total


@functools.cache
def confusion(num_classes: int) -> type[metrics.Metric]:
  """Returns a metric: counts of images by label and answer, int32 [K, K].

  Args:
    num_classes: K.
  """

  @flax.struct.dataclass
  class Confusion(metrics.Metric):
    counts: jax.Array

    @classmethod
    def empty(cls) -> 'Confusion':
      return cls(counts=jnp.zeros((num_classes, num_classes), jnp.int32))

    @classmethod
    def from_model_output(
      cls,
      answers: jax.Array,
      labels: jax.Array,
      mask: jax.Array,
      **_: jax.Array,
    ) -> 'Confusion':
      # Of padding there are 0 more.
      added = cls.empty().counts.at[labels, answers].add(mask.astype(jnp.int32))
      return cls(counts=added)

    def merge(self, other: 'Confusion') -> 'Confusion':
      return type(self)(counts=self.counts + other.counts)

    def compute(self) -> jax.Array:
      return self.counts

  return Confusion


@functools.cache
def collection(num_classes: int) -> type[metrics.Collection]:
  """Returns accuracy, mean loss and count; of few classes also confusion.

  Args:
    num_classes: Of the model.
  """
  more = {}
  if num_classes <= MOST_CONFUSED:
    more['confusion'] = confusion(num_classes)
  return metrics.Collection.create(
    accuracy=metrics.Average.from_output('correct'),
    loss=metrics.Average.from_output('loss'),
    examples=Count,
    **more,
  )


def classification(
  logits: jax.Array, labels: jax.Array, losses: jax.Array, mask: jax.Array
) -> metrics.Collection:
  """Returns the metrics of one batch; add batches up with `merge`.

  Args:
    logits: float32 [B, classes].
    labels: int32 [B].
    losses: float32 [B], of each image.
    mask: bool [B], False on padding.
  """
  answers = logits.argmax(axis=-1)
  return collection(logits.shape[-1]).single_from_model_output(
    correct=(answers == labels).astype(jnp.float32),
    loss=losses,
    answers=answers,
    labels=labels,
    mask=mask,
  )


Examples = metrics.Collection.create(examples=Count)


def scalars(
  found: Mapping[str, Any], features: features_lib.Features
) -> dict[str, float]:
  """Returns computed metrics as scalars by name.

  A vector with a number for each class, or quantity, becomes `metric/class`.

  Args:
    found: From `clu.metrics.Collection.compute`.
    features: What the examples have: the names.
  """
  names = {len(x.names): x.names for x in features.values()}
  result: dict[str, float] = {}
  for metric, value in found.items():
    array = np.asarray(value)
    if not array.ndim:
      result[metric] = float(array)
      continue
    for name, x in zip(names[len(array)], array.tolist(), strict=True):
      result[f'{metric}/{name}'] = x
  return result


@functools.cache
def regression(count: int) -> type[metrics.Collection]:
  """Returns R2 and mean absolute error, of all and of each number, and loss.

  R2 is 1 - (sum of squared errors) / (sum of squared distances from the mean
  of the truth), averaged over the numbers; those that never vary are left out.

  Args:
    count: K, numbers of an example.
  """

  @flax.struct.dataclass
  class Sums(metrics.Metric):
    """Sums over examples, [K]; of numbers near 0, so that none is lost."""

    examples: jax.Array
    truth: jax.Array
    squared_truth: jax.Array
    squared_error: jax.Array
    absolute_error: jax.Array

    @classmethod
    def empty(cls) -> 'Sums':
      zeros = jnp.zeros(count, jnp.float32)
      return cls(jnp.zeros((), jnp.float32), zeros, zeros, zeros, zeros)

    @classmethod
    def from_model_output(
      cls,
      scaled: jax.Array,
      truth: jax.Array,
      error: jax.Array,
      mask: jax.Array,
      **_: jax.Array,
    ) -> 'Sums':
      of_each = [truth, truth**2, (scaled - truth) ** 2, error]
      sums = [jnp.where(mask[:, None], x, 0).sum(axis=0) for x in of_each]
      return cls(mask.sum(dtype=jnp.float32), *sums)

    def merge(self, other: 'Sums') -> 'Sums':
      return jax.tree.map(lambda x, y: x + y, self, other)

  class R2(Sums):
    """Of each number, [K]; nan where it never varies."""

    def compute(self) -> jax.Array:
      spread = self.squared_truth - self.truth**2 / self.examples
      return jnp.where(spread > 0, 1 - self.squared_error / spread, jnp.nan)

  class MeanR2(R2):
    def compute(self) -> jax.Array:
      return jnp.nanmean(super().compute())

  class Error(Sums):
    """The mean absolute error of each number, [K]."""

    def compute(self) -> jax.Array:
      return self.absolute_error / self.examples

  class MeanError(Error):
    def compute(self) -> jax.Array:
      return super().compute().mean()

  return metrics.Collection.create(
    r2=flax.struct.dataclass(MeanR2),
    mean_absolute_error=flax.struct.dataclass(MeanError),
    r2_of=flax.struct.dataclass(R2),
    mean_absolute_error_of=flax.struct.dataclass(Error),
    loss=metrics.Average.from_output('loss'),
    examples=Count,
  )


@flax.struct.dataclass
class AveragePrecision(metrics.Metric):
  """Average precision of each class, [K]; nan of one that never occurs.

  It needs all scores at once: they are merged, and the areas computed, on the
  host.

  Attributes:
    scores: float32 [N, K]; larger where a class is rather present.
    labels: uint8 [N, K].
    mask: bool [N], False on padding.
  """

  scores: Any
  labels: Any
  mask: Any

  @classmethod
  def from_model_output(
    cls,
    scores: jax.Array,
    labels: jax.Array,
    mask: jax.Array,
    **_: jax.Array,
  ) -> 'AveragePrecision':
    """Keeps the scores of a batch."""
    return cls(scores, labels, mask)

  def merge(self, other: 'AveragePrecision') -> 'AveragePrecision':
    """Joins the examples of two."""
    return jax.tree.map(lambda x, y: np.concatenate([x, y]), self, other)

  def compute(self) -> np.ndarray:
    """Returns the areas, float64 [K]."""
    from sklearn import metrics as sklearn_metrics  # it takes its time

    real = np.asarray(self.mask)
    scores, labels = (np.asarray(x)[real] for x in (self.scores, self.labels))
    return np.array(
      [
        sklearn_metrics.average_precision_score(present, score)
        if present.any()
        else np.nan
        for score, present in zip(scores.T, labels.T, strict=True)
      ]
    )


@flax.struct.dataclass
class MeanAveragePrecision(AveragePrecision):
  """The mean of `AveragePrecision` over the classes that occur."""

  def compute(self) -> np.ndarray:
    """Returns a scalar."""
    return np.nanmean(super().compute())


Multilabel = metrics.Collection.create(
  map=MeanAveragePrecision,
  average_precision=AveragePrecision,
  loss=metrics.Average.from_output('loss'),
  examples=Count,
)
