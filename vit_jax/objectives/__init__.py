"""What is learned: the object that `config.objective` stands for."""

from typing import Any
from typing import Protocol

from clu import metrics as clu_metrics
import jax
import ml_collections

from vit_jax import config as config_lib

NAMES = ('classification',)

Params = Any
Batch = dict[str, jax.Array]
Scalars = dict[str, jax.Array]


class Objective(Protocol):
  """What the train loop knows of an objective."""

  def init(self, key: jax.Array) -> Params:
    """Returns fresh parameters."""

  def loss(
    self, params: Params, batch: Batch, key: jax.Array, rows: jax.Array
  ) -> tuple[jax.Array, Scalars]:
    """Returns the mean loss over the batch, and other means to report.

    Args:
      params: From `init`, or updated.
      batch: Global arrays with a leading axis of B images.
      key: Of this step.
      rows: int32 [B], the images' positions in the global batch.
    """

  def metrics(self, params: Params, batch: Batch) -> clu_metrics.Collection:
    """Returns the metrics of a batch, over the images that count."""

  def no_metrics(self) -> clu_metrics.Collection:
    """Returns what `metrics` would of no images; batches are merged to it."""


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.objective`; raises a UserError."""
  config_lib.one_of(config, 'objective.name', NAMES)
