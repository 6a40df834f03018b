"""Metrics of classes of which several may be present, as collections of clu."""

from typing import Any

from clu import metrics
import flax
import jax
import numpy as np

from vit_jax.evaluation import metrics as metrics_lib


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
  examples=metrics_lib.Count,
)
