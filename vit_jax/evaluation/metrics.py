"""Classification metrics that count each image exactly once."""

from clu import metrics
import flax
import jax
import jax.numpy as jnp


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


# Accuracy and mean loss over images, and their number.
Classification = metrics.Collection.create(
  accuracy=metrics.Average.from_output('correct'),
  loss=metrics.Average.from_output('loss'),
  examples=Count,
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
  return Classification.single_from_model_output(
    correct=(logits.argmax(axis=-1) == labels).astype(jnp.float32),
    loss=losses,
    mask=mask,
  )
