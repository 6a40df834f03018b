"""Metrics that count each example exactly once, as collections of clu.

The metrics of a batch are computed on the device, and merged on the host.
"""

from collections.abc import Mapping
import operator
from typing import Any
from typing import Self

from clu import metrics
import flax
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data import features as features_lib

MOST_CONFUSED = 100  # most classes of a confusion matrix, to keep it legible


class _Sum(metrics.Metric):
  """A metric whose fields are sums over examples."""

  def merge(self, other: Self) -> Self:
    return jax.tree.map(operator.add, self, other)


@flax.struct.dataclass
class Count(_Sum):
  """Number of examples that were not padding."""

  total: jax.Array

  @classmethod
  def from_model_output(cls, mask: jax.Array, **_: jax.Array) -> 'Count':
    """Counts the True in mask [B]."""
    return cls(total=mask.sum(dtype=jnp.int32))

  def compute(self) -> jax.Array:
    """Returns the count, an int32 scalar."""
    return self.total


@flax.struct.dataclass
class Confusion(_Sum):
  """Number of examples by label and predicted class, int32 [K, K]."""

  counts: jax.Array

  @classmethod
  def from_model_output(
    cls, logits: jax.Array, labels: jax.Array, mask: jax.Array, **_: jax.Array
  ) -> 'Confusion':
    """Counts the examples of a batch; padding counts 0."""
    zeros = jnp.zeros((logits.shape[-1],) * 2, jnp.int32)
    where = labels, logits.argmax(axis=-1)
    return cls(counts=zeros.at[where].add(mask.astype(jnp.int32)))

  def compute(self) -> jax.Array:
    """Returns the counts."""
    return self.counts


Examples = metrics.Collection.create(examples=Count)
_Loss = metrics.Collection.create(
  loss=metrics.Average.from_output('loss'), examples=Count
)
_Many = metrics.Collection.create(
  accuracy=metrics.Average.from_output('correct'),
  loss=metrics.Average.from_output('loss'),
  examples=Count,
)
_Few = metrics.Collection.create(**_Many.__annotations__, confusion=Confusion)


def mean_loss(losses: jax.Array, mask: jax.Array) -> metrics.Collection:
  """Returns the mean loss and the count.

  Args:
    losses: float32 [B], the loss of each image.
    mask: bool [B], False on padding.
  """
  return _Loss.single_from_model_output(loss=losses, mask=mask)


def classification(
  logits: jax.Array, labels: jax.Array, losses: jax.Array, mask: jax.Array
) -> metrics.Collection:
  """Returns accuracy, mean loss and count; with few classes also confusion.

  Args:
    logits: float32 [B, classes].
    labels: int32 [B].
    losses: float32 [B], the loss of each image.
    mask: bool [B], False on padding.
  """
  found = _Few if logits.shape[-1] <= MOST_CONFUSED else _Many
  return found.single_from_model_output(
    correct=(logits.argmax(axis=-1) == labels).astype(jnp.float32),
    loss=losses,
    logits=logits,
    labels=labels,
    mask=mask,
  )


def scalars(
  values: Mapping[str, Any],
  features: features_lib.Features,
  target: str | None = None,
) -> dict[str, float]:
  """Returns computed metrics as scalars by name.

  A vector with a number per class or quantity becomes scalars `metric/class`.

  Args:
    values: From `clu.metrics.Collection.compute`.
    features: Features of the examples, which have the names.
    target: Name of the feature that is measured, whose names come first where
      another has as many; None: not known.
  """
  names = {len(x.names): x.names for x in features.values()}
  if target is not None:
    names[len(features[target].names)] = features[target].names
  result: dict[str, float] = {}
  for metric, value in values.items():
    array = np.asarray(value)
    if not array.ndim:
      result[metric] = float(array)
      continue
    for name, x in zip(names[len(array)], array.tolist(), strict=True):
      result[f'{metric}/{name}'] = x
  return result


@flax.struct.dataclass
class _Errors(_Sum):
  """Sums over examples, [K].

  The truth is standardised, so that float32 sums of squares stay precise.
  """

  examples: jax.Array
  truth: jax.Array
  squared_truth: jax.Array
  squared_error: jax.Array
  absolute_error: jax.Array

  @classmethod
  def from_model_output(
    cls,
    scaled: jax.Array,
    truth: jax.Array,
    error: jax.Array,
    mask: jax.Array,
    **_: jax.Array,
  ) -> Self:
    of_each = [truth, truth**2, (scaled - truth) ** 2, error]
    sums = [jnp.where(mask[:, None], x, 0).sum(axis=0) for x in of_each]
    return cls(mask.sum(dtype=jnp.float32), *sums)


@flax.struct.dataclass
class R2(_Errors):
  """R2 of each quantity, [K]; nan if the quantity never varies.

  It is 1 - (sum of squared errors) / (sum of squared distances from the mean of
  the truth).
  """

  def compute(self) -> jax.Array:
    """Returns float32 [K]."""
    spread = self.squared_truth - self.truth**2 / self.examples
    return jnp.where(spread > 0, 1 - self.squared_error / spread, jnp.nan)


@flax.struct.dataclass
class MeanR2(R2):
  """The mean of `R2` over the quantities that vary."""

  def compute(self) -> jax.Array:
    """Returns a scalar."""
    return jnp.nanmean(super().compute())


@flax.struct.dataclass
class AbsoluteError(_Errors):
  """The mean absolute error of each quantity."""

  def compute(self) -> jax.Array:
    """Returns float32 [K]."""
    return self.absolute_error / self.examples


@flax.struct.dataclass
class MeanAbsoluteError(AbsoluteError):
  """The mean of `AbsoluteError` over the quantities."""

  def compute(self) -> jax.Array:
    """Returns a scalar."""
    return super().compute().mean()


# Takes scaled and truth [B, K] (in standard deviations), error
# [B, K] (absolute, in the units of the data), loss [B] and mask [B].
Regression = metrics.Collection.create(
  r2=MeanR2,
  mean_absolute_error=MeanAbsoluteError,
  r2_of=R2,
  mean_absolute_error_of=AbsoluteError,
  loss=metrics.Average.from_output('loss'),
  examples=Count,
)


@flax.struct.dataclass
class AveragePrecision(metrics.Metric):
  """Average precision of each class, [K]; nan if a class never occurs.

  It needs the scores of all examples, so these are collected on the host.

  Attributes:
    scores: float32 [N, K]; larger if a class is more likely present.
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
    """Joins the examples of both."""
    return jax.tree.map(lambda x, y: np.concatenate([x, y]), self, other)

  def compute(self) -> np.ndarray:
    """Returns the areas, float64 [K]."""
    from sklearn import metrics as sklearn_metrics  # slow to import

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
