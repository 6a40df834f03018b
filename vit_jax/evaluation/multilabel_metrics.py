"""Metrics of classes of which several may be present, as collections of clu."""

from typing import Any

from clu import metrics
import flax
import numpy as np

from vit_jax.evaluation import metrics as metrics_lib

# Scores, float32 [N, K], are larger if a class is more likely present. Labels
# are uint8 [N, K], and the mask, bool [N], is False on padding.
_ScoresAndLabels: Any = metrics.CollectingMetric.from_outputs(
  ('scores', 'labels', 'mask')
)


@flax.struct.dataclass
class AveragePrecision(_ScoresAndLabels):
  """Average precision of each class, [K]; nan if a class never occurs.

  It needs the scores of all examples, so these are collected on the host.
  """

  def compute(self) -> np.ndarray:
    """Returns the areas, float64 [K]."""
    from sklearn import metrics as sklearn_metrics  # slow to import

    values = super().compute()
    scores, labels = (values[x][values['mask']] for x in ('scores', 'labels'))
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
