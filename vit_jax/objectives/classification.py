"""Classification of images by cross-entropy."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.evaluation import metrics
from vit_jax.objectives import base
from vit_jax.objectives import losses

Augment = Callable[[base.Batch, jax.Array, jax.Array], base.Batch]


class Classification:
  """Learns to name the class of an image.

  Attributes:
    model: [B, H, W, C] -> logits [B, classes].
    image_shape: (H, W, C) that the model sees.
    class_weights: How much each class counts in training, float32 [classes];
      None: all alike.
    constants: None.
    metric_names: Of what `metrics` computes.
  """

  metric_names = ('accuracy', 'loss', 'examples')
  constants: base.Params = None

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    augment: Augment,
    prepare: Callable[[jax.Array], jax.Array],
  ):
    """Makes the model.

    Args:
      config: The full config, with the number of classes.
      augment: (batch, key, rows [B]) -> the batch for training: float32 images,
        and labels that may be shares of classes, float32 [B, classes].
      prepare: uint8 images -> float32 images, for evaluation.
    """
    size = config_lib.pair(config.data.image_size, 'data.image_size')
    self.image_shape = (*size, config.data.channels)
    self.model = models.from_config(
      config.model, config.model.num_classes, config.train.dtype
    )
    self._augment = augment
    self._prepare = prepare
    self._rng = config.train.rng
    self._loss = config.objective.loss
    self._smoothing = config.objective.label_smoothing
    self._given = config.objective.class_weights
    self.class_weights = losses.class_weights(
      self._given, config.objective.class_counts, config.model.num_classes
    )

  def check_classes(self, classes: Sequence[str]) -> None:
    """Checks that each class has a weight, where they are given.

    Raises:
      UserError: There are more or fewer.
    """
    given = self._given
    if given and not isinstance(given, str) and len(given) != len(classes):
      raise config_lib.UserError(
        f'config.objective.class_weights has {len(given)} numbers: write one'
        f' for each of the {len(classes)} classes, which are in this order:'
        f' {config_lib.some(classes, 10)}'
      )

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters."""
    return models.init_params(self.model, key, self.image_shape)

  def augment(
    self, batch: base.Batch, key: jax.Array, rows: jax.Array
  ) -> base.Batch:
    """Returns a batch as the model is fed it in a step; see `base`."""
    return self._augment(batch, base.augmentation_key(key), rows)

  def loss(
    self,
    params: base.Params,
    constants: base.Params,
    batch: base.Batch,
    key: jax.Array,
    rows: jax.Array,
  ) -> tuple[jax.Array, base.Scalars]:
    """Returns the mean cross-entropy (nats) and the accuracy of the batch."""
    del constants
    batch = self.augment(batch, key, rows)
    logits, labels = self._outputs(params, batch, key, rows), batch['label']
    loss = self._cross_entropy(logits, labels).mean()
    return loss, {'accuracy': losses.accuracy(logits, labels)}

  def metrics(
    self, params: base.Params, batch: base.Batch
  ) -> clu_metrics.Collection:
    """Returns accuracy, loss and count over the images that are not padding.

    Of few classes also `confusion`, which is no scalar.
    """
    images, labels = self._prepare(batch['image']), batch['label']
    logits = self._apply(params, images)
    loss = losses.cross_entropy(logits, labels, self._loss)
    return metrics.classification(logits, labels, loss, batch['mask'])

  def no_metrics(self) -> clu_metrics.Collection:
    """Returns the metrics of no images."""
    return metrics.collection(self.model.num_classes).empty()

  def _cross_entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
    how = self._loss, self._smoothing
    if self.class_weights is None:
      return losses.cross_entropy(logits, labels, *how)
    weights = self.class_weights
    return losses.weighted_cross_entropy(logits, labels, weights, *how)

  def _outputs(
    self,
    params: base.Params,
    batch: base.Batch,
    key: jax.Array,
    rows: jax.Array,
    **kwargs: Any,
  ) -> jax.Array:
    """Applies the model to an augmented batch, for training."""
    dropout_key = base.dropout_key(key)
    if self._rng == 'rbg':
      words = jax.random.bits(dropout_key, (4,), jnp.uint32)
      dropout_key = jax.random.wrap_key_data(words, impl='rbg')
    rngs = {'dropout': dropout_key}
    return self._apply(
      params, batch['image'], train=True, rows=rows, rngs=rngs, **kwargs
    )

  def _apply(
    self, params: base.Params, images: jax.Array, **kwargs: Any
  ) -> jax.Array:
    logits = self.model.apply({'params': params}, images, **kwargs)
    assert isinstance(logits, jax.Array)  # not a tuple: nothing is mutable
    return logits
