"""Classification metrics that count each image exactly once."""

import functools

from clu import metrics
import flax
import jax
import jax.numpy as jnp

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
