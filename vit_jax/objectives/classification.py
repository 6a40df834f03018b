"""Classification of images by cross-entropy."""

from collections.abc import Mapping
import math
from typing import ClassVar

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.data import balance
from vit_jax.data import base as data_base
from vit_jax.data import features as features_lib
from vit_jax.evaluation import metrics as metrics_lib
from vit_jax.objectives import base
from vit_jax.objectives import losses


class Classification(base.Objective):
  """Learns the class of an image.

  Attributes:
    class_weights: Weight of each class in the training loss, float32 [classes];
      None: no weights.
  """

  target: ClassVar = ('label', features_lib.Label)
  moves_statistics: ClassVar[bool] = True
  metrics: ClassVar[Mapping[str, str]] = {
    'accuracy': 'max',
    'loss': 'min',
    'examples': 'max',
  }

  def __init__(
    self, config: ml_collections.ConfigDict, features: features_lib.Features
  ):
    super().__init__(config, features)
    self._loss = config.objective.loss
    self._smoothing = config.objective.label_smoothing
    self._given = config.objective.class_weights
    self.class_weights = losses.class_weights(
      self._given, config.objective.class_counts, config.model.num_classes
    )

  @staticmethod
  def check(config: ml_collections.ConfigDict) -> None:
    """Checks `config.objective`.

    Raises:
      UserError: A value cannot work.
    """
    config_lib.one_of(config, 'objective.loss', losses.NAMES)
    _check_class_weights(config)

  @classmethod
  def fill(
    cls, config: ml_collections.ConfigDict, source: data_base.Source
  ) -> None:
    """Counts the images of each class if the weights depend on the counts."""
    objective, classes = config.objective, len(source.classes)
    if not isinstance(objective.class_weights, str):
      return
    if objective.class_weights and objective.class_counts is None:
      counts = np.bincount(source.column('label'), minlength=classes)
      objective.class_counts = tuple(counts.tolist())
    found = len(objective.class_counts or ())
    if objective.class_weights and found != classes:
      raise config_lib.UserError(
        f'config.objective.class_counts has {found} numbers, but there are'
        f' {classes} classes: leave it out'
      )

  def check_source(self, source: data_base.Source) -> None:
    """Checks that given class weights are as many as the classes.

    Raises:
      UserError: They are not.
    """
    given, classes = self._given, source.classes
    if given and not isinstance(given, str) and len(given) != len(classes):
      raise config_lib.UserError(
        f'config.objective.class_weights has {len(given)} numbers: write one'
        f' for each of the {len(classes)} classes, which are in this order:'
        f' {config_lib.some(classes, 10)}'
      )

  def describe(self, source: data_base.Source) -> list[str]:
    """Returns a line with the class weights, if there are any."""
    if self.class_weights is None:
      return []
    return [balance.show('class weights', source.classes, self.class_weights)]

  def loss(
    self,
    params: base.Params,
    extra: base.Extra,
    batch: base.Batch,
    rng: base.Rng,
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the mean cross-entropy (nats) and the accuracy of the batch."""
    logits, extra = self._logits(params, extra, batch['image'], rng)
    labels = batch['label']
    loss = self.cross_entropy(logits, labels).mean()
    return loss, {'accuracy': losses.accuracy(logits, labels)}, extra

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the running statistics of a `head_norm`, if there is one."""
    if 'head_norm' not in params:
      return {}
    own = {'head_norm': params['head_norm']}
    return {base.STATISTICS: jax.tree.map(jnp.copy, own)}

  def _logits(
    self,
    params: base.Params,
    extra: base.Extra,
    images: jax.Array,
    rng: base.Rng,
  ) -> tuple[jax.Array, base.Extra]:
    """Returns logits [B, classes], and the extra with new statistics."""
    if 'head_norm' not in params or base.STATISTICS not in extra:
      return self.apply_train(params, images, rng), extra
    params = params | extra[base.STATISTICS]
    logits, changed = self.apply_train(
      params, images, rng, mutable=[base.STATISTICS]
    )
    return logits, extra | changed

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
    how = self._loss, self._smoothing
    if self.class_weights is None:
      return losses.cross_entropy(logits, labels, *how)
    weights = self.class_weights
    return losses.weighted_cross_entropy(logits, labels, weights, *how)


def _check_class_weights(config: ml_collections.ConfigDict) -> None:
  given = config.objective.class_weights
  words = isinstance(given, str) and given
  if words and given not in losses.WEIGHTS:
    raise config_lib.UserError(
      f'config.objective.class_weights is {given!r}: write a number for each'
      f' class, or one of {", ".join(map(repr, losses.WEIGHTS))}'
    )
  numbers = given if isinstance(given, tuple | list) else ()
  is_number = all(isinstance(x, int | float) for x in numbers)
  if not isinstance(given, str | tuple | list) or not (
    is_number and all(0 < x < math.inf for x in numbers)
  ):
    raise config_lib.UserError(
      f'config.objective.class_weights is {given!r}: it must hold numbers that'
      ' are more than 0, one for each class'
    )
  if words and config.data.balance:
    raise config_lib.UserError(
      f'config.objective.class_weights={given!r} and'
      f' config.data.balance={config.data.balance!r} both make up for rare'
      ' classes, which would then count too much: set one of them'
    )
  counts = config.objective.class_counts
  if counts is not None and not (
    counts
    and all(isinstance(x, int) and x >= 0 for x in counts)
    and any(counts)
  ):
    raise config_lib.UserError(
      f'config.objective.class_counts is {counts}: it must hold the number of'
      ' images of each class, some more than 0'
    )
