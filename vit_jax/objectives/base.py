"""What the train loop knows of an objective."""

from collections.abc import Sequence
from typing import Any
from typing import Protocol

from clu import metrics as clu_metrics
import jax
import numpy as np

Params = Any
Batch = dict[str, jax.Array]
Scalars = dict[str, jax.Array]

# What a step's random key is used for.
_AUGMENTATION, _DROPOUT = range(2)


class Objective(Protocol):
  """What the train loop knows of an objective.

  Attributes:
    constants: Arrays that the loss reads and nothing changes, as a teacher's
      parameters; on the host.
    class_weights: How much each class counts in training, float32 [classes];
      None: all alike.
  """

  constants: Params
  class_weights: np.ndarray | None

  def check_classes(self, classes: Sequence[str]) -> None:
    """Checks the data's classes, in the order of their labels.

    Raises:
      UserError: They are not what the objective needs.
    """

  def init(self, key: jax.Array) -> Params:
    """Returns fresh parameters."""

  def augment(self, batch: Batch, key: jax.Array, rows: jax.Array) -> Batch:
    """Returns a batch as the model is fed it in a step.

    Args:
      batch: As it comes from the host.
      key: Of this step.
      rows: int32 [B], the images' positions in the global batch.

    Returns:
      Among others image, float32 [B, H, W, C], and label: int32 [B], or shares
      of the classes, float32 [B, classes].
    """

  def loss(
    self,
    params: Params,
    constants: Params,
    batch: Batch,
    key: jax.Array,
    rows: jax.Array,
  ) -> tuple[jax.Array, Scalars]:
    """Returns the mean loss over the batch, and other means to report.

    Args:
      params: From `init`, or updated.
      constants: Those of the objective, on the devices.
      batch: Global arrays with a leading axis of B images.
      key: Of this step.
      rows: int32 [B], the images' positions in the global batch.
    """

  def metrics(self, params: Params, batch: Batch) -> clu_metrics.Collection:
    """Returns the metrics of a batch, over the images that count."""

  def no_metrics(self) -> clu_metrics.Collection:
    """Returns what `metrics` would of no images; batches are merged to it."""


def augmentation_key(key: jax.Array) -> jax.Array:
  """Returns the key that a step's augmentation is drawn from."""
  return jax.random.fold_in(key, _AUGMENTATION)


def dropout_key(key: jax.Array) -> jax.Array:
  """Returns the key that a step's dropout is drawn from."""
  return jax.random.fold_in(key, _DROPOUT)
