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


def confusion(
  labels: Any, predicted: Any, num_classes: int, counts: Any = True
) -> Any:
  """Counts places by label and prediction, int [K, K], label first.

  The result is an array of NumPy or of JAX, as the arguments are.

  Args:
    labels: int [...].
    predicted: int [...].
    num_classes: K.
    counts: bool [...], which places count, such as all but padding.
  """
  pairs: Any = num_classes * labels.astype(int) + predicted
  matrix: Any
  unused = num_classes**2  # the bin of places that do not count
  if isinstance(pairs, jax.Array):
    pairs = jnp.where(counts, pairs, unused).ravel()
    matrix = jnp.bincount(pairs, length=unused + 1)[:-1]
  else:
    pairs = np.where(counts, pairs, unused).ravel()
    matrix = np.bincount(pairs, minlength=unused + 1)[:-1]
  return matrix.reshape(num_classes, num_classes)


class Sum(metrics.Metric):
  """A metric whose fields are sums over examples."""

  def merge(self, other: Self) -> Self:
    """Returns the sums over the examples of both."""
    return jax.tree.map(operator.add, self, other)


@flax.struct.dataclass
class Count(Sum):
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
class Counts(metrics.Metric):
  """Numbers by label and predicted class, int [K, K], from `confusion`."""

  counts: Any

  def merge(self, other: Self) -> Self:
    """Adds both; in int64, since a split may have more than 2^31 pixels.

    Within a compiled function, the sum is in int32.
    """
    counts: Any = self.counts, other.counts
    if not any(isinstance(x, jax.core.Tracer) for x in counts):
      counts = tuple(np.asarray(x, np.int64) for x in counts)
    return type(self)(sum(counts))

  def compute(self) -> Any:
    """Returns the counts."""
    return np.asarray(self.counts)


@flax.struct.dataclass
class Confusion(Counts):
  """Number of examples by label and predicted class, int [K, K]."""

  @classmethod
  def from_model_output(
    cls, logits: jax.Array, labels: jax.Array, mask: jax.Array, **_: jax.Array
  ) -> 'Confusion':
    """Counts the examples of a batch; padding counts 0."""
    best = logits.argmax(axis=-1)
    return cls(confusion(labels, best, logits.shape[-1], mask))


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
  """Returns the mean loss and the count; `mask` [B] is False on padding."""
  return _Loss.single_from_model_output(loss=losses, mask=mask)


def classification(
  logits: jax.Array, labels: jax.Array, losses: jax.Array, mask: jax.Array
) -> metrics.Collection:
  """Returns accuracy, mean loss and count; with few classes also confusion.

  The arrays are [B], but logits [B, classes]; `mask` is False on padding.
  """
  metric = _Few if logits.shape[-1] <= MOST_CONFUSED else _Many
  return metric.single_from_model_output(
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
  The features have the names. `target` is the one that is measured, whose names
  come first where another has as many; None: not known.
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
