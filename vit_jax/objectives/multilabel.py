"""Multi-label classification: each class is present in an image or not."""

from typing import ClassVar

from clu import metrics as clu_metrics
import jax
import optax

from vit_jax.data import target_kinds
from vit_jax.data.device.rng import Rng
from vit_jax.evaluation import multilabel_metrics
from vit_jax.objectives import base


class Multilabel(base.Objective):
  """Learns which classes an image has, each independently (sigmoid).

  The metric is mean average precision: the area under a class's
  precision-recall curve, averaged over the classes that occur.
  """

  target: ClassVar = ('labels', target_kinds.MultiLabel)
  metrics: ClassVar = {
    'map': 'max',
    'average_precision/': 'max',
    'loss': 'min',
    'examples': 'max',
  }
  options: ClassVar = {
    # Weight of the classes of an image in the loss, relative to absent classes.
    'positive_weight': 1.0
  }
  limits: ClassVar = {'positive_weight': '(0, inf)'}

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    self._weight = config.objective.options.positive_weight
    self._smoothing = config.objective.label_smoothing

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the cross-entropy (nats): mean over images, sum over classes."""
    logits = self.apply_train(params, batch['image'], rng)
    present = batch['labels'] * (1 - self._smoothing) + self._smoothing / 2
    return self._loss(logits, present).mean(), {}, extra

  def measure(
    self, outputs: base.Outputs, batch: base.Batch
  ) -> clu_metrics.Collection:
    """Returns mean average precision (also by class), loss and count."""
    logits, labels = outputs['logits'], batch['labels']
    return multilabel_metrics.Multilabel.single_from_model_output(
      scores=logits,
      labels=labels,
      loss=self._loss(logits, labels),
      mask=batch['valid'],
    )

  def _loss(self, logits: jax.Array, present: jax.Array) -> jax.Array:
    loss = optax.losses.sigmoid_binary_cross_entropy(logits, present)
    weights = 1 + (self._weight - 1) * present
    return (weights * loss).sum(axis=-1)
