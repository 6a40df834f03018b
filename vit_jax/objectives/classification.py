"""Classification of images by cross-entropy.

The formulas are in `losses`, and the weights of classes in `class_weights`.
"""

from typing import ClassVar

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax.data import base as data_base
from vit_jax.data import features as features_lib
from vit_jax.data.device.rng import Rng
from vit_jax.evaluation import metrics as metrics_lib
from vit_jax.objectives import base
from vit_jax.objectives import losses

_CLASS_WEIGHTS = 'vit_jax.objectives.class_weights'


class Classification(base.Objective):
  """Learns the class of an image.

  Its loss, smoothing and class weights are keys of `config.objective` itself,
  in config/defaults.py. Other methods declare theirs as `options`.

  Attributes:
    class_weights: Weight of each class in the training loss, float32 [classes];
      None: no weights.
  """

  target: ClassVar = ('label', features_lib.Label)
  moves_statistics: ClassVar = True
  metrics: ClassVar = {'accuracy': 'max', 'loss': 'min', 'examples': 'max'}

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    objective, num_classes = config.objective, config.model.num_classes
    self._loss, self._smoothing = objective.loss, objective.label_smoothing
    self.class_weights: np.ndarray | None = None
    if objective.class_weights:
      self.class_weights = config_lib.wing(f'{_CLASS_WEIGHTS}:values')(
        objective.class_weights, objective.class_counts, num_classes
      )

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks the loss and its weights, and that distillation has a teacher."""
    objective = config.objective
    config_lib.check_choice(config, 'objective.loss', losses.NAMES)
    config_lib.within(config, 'objective.label_smoothing', '[0, 1]')
    if (
      objective.name == 'classification'
      and config.model.distillation_token
      and not config.init_from.path
    ):
      raise config_lib.UserError(
        'config.model.distillation_token is True, but there is no teacher: set'
        " config.objective.name to 'distillation', and its teacher"
      )
    if objective.class_weights != () or objective.class_counts is not None:
      config_lib.wing(f'{_CLASS_WEIGHTS}:check')(config)

  @classmethod
  def fill(cls, config: base.Config, source: data_base.Source) -> None:
    """Counts the images of each class if the weights depend on the counts."""
    if config.objective.class_weights:
      config_lib.wing(f'{_CLASS_WEIGHTS}:fill')(config, source)

  def check_source(self, source: data_base.Source) -> None:
    """Checks that given class weights are as many as the classes."""
    if self.class_weights is not None:
      config_lib.wing(f'{_CLASS_WEIGHTS}:check_source')(self.config, source)

  def describe(self, source: data_base.Source) -> list[str]:
    """Returns a line with the class weights, if there are any."""
    if self.class_weights is None:
      return []
    show = config_lib.wing('vit_jax.data.balance:show')
    return [show('class weights', source.classes, self.class_weights)]

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the mean cross-entropy (nats) and the accuracy of the batch."""
    images, labels = batch['image'], batch['label']
    if 'head_norm' in params and base.STATISTICS in extra:
      logits, changed = self.apply_train(
        params | extra[base.STATISTICS], images, rng, mutable=[base.STATISTICS]
      )
      extra = extra | changed
    else:
      logits = self.apply_train(params, images, rng)
    loss = self.cross_entropy(logits, labels).mean()
    return loss, {'accuracy': losses.accuracy(logits, labels)}, extra

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the running statistics of a `head_norm`, if there is one."""
    if 'head_norm' not in params:
      return {}
    statistics = {'head_norm': params['head_norm']}
    return {base.STATISTICS: jax.tree.map(jnp.copy, statistics)}

  def measure(
    self, outputs: base.Outputs, batch: base.Batch
  ) -> clu_metrics.Collection:
    """Returns accuracy, loss and count over the images that are not padding.

    With few classes there is also `confusion`, a matrix. The loss is without
    smoothing and class weights.
    """
    logits, labels = outputs['logits'], batch['label']
    loss = losses.cross_entropy(logits, labels, self._loss)
    return metrics_lib.classification(logits, labels, loss, batch['valid'])

  def cross_entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the training loss of each image, float32 [B]."""
    if self.class_weights is None:
      return losses.cross_entropy(logits, labels, self._loss, self._smoothing)
    weighted = config_lib.wing(f'{_CLASS_WEIGHTS}:weighted_cross_entropy')
    loss: jax.Array = weighted(
      logits, labels, self.class_weights, self._loss, self._smoothing
    )
    return loss
