"""Image classification: softmax cross-entropy against one label per image."""

from collections.abc import Callable
from typing import Any

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.evaluation import metrics
from vit_jax.objectives import base

_AUGMENTATION, _DROPOUT = range(2)


class Classification:
  """Learns to name the class of an image.

  Attributes:
    model: [B, H, W, C] -> logits [B, classes].
    image_shape: (H, W, C) that the model sees.
    metric_names: Of what `metrics` computes.
  """

  metric_names = ('accuracy', 'loss', 'examples')

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    augment: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    prepare: Callable[[jax.Array], jax.Array],
  ):
    """Makes the model.

    Args:
      config: The full config, with the number of classes.
      augment: (uint8 images [B, h, w, C], key, rows [B]) -> float32 images,
        for training.
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

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters."""
    return models.init_params(self.model, key, self.image_shape)

  def loss(
    self,
    params: base.Params,
    batch: base.Batch,
    key: jax.Array,
    rows: jax.Array,
  ) -> tuple[jax.Array, base.Scalars]:
    """Returns the mean cross-entropy (nats) and the accuracy of the batch."""
    augment_key = jax.random.fold_in(key, _AUGMENTATION)
    dropout_key = jax.random.fold_in(key, _DROPOUT)
    if self._rng == 'rbg':
      words = jax.random.bits(dropout_key, (4,), jnp.uint32)
      dropout_key = jax.random.wrap_key_data(words, impl='rbg')
    images = self._augment(batch['image'], augment_key, rows)
    logits = self._logits(
      params, images, train=True, rows=rows, rngs={'dropout': dropout_key}
    )
    labels = batch['label']
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    accuracy = (logits.argmax(axis=-1) == labels).mean(dtype=jnp.float32)
    return loss.mean(), {'accuracy': accuracy}

  def metrics(
    self, params: base.Params, batch: base.Batch
  ) -> clu_metrics.Collection:
    """Returns accuracy, loss and count over the images that are not padding."""
    logits = self._logits(params, self._prepare(batch['image']))
    return metrics.classification(logits, batch['label'], batch['mask'])

  def no_metrics(self) -> clu_metrics.Collection:
    """Returns the metrics of no images."""
    return metrics.Classification.empty()

  def _logits(
    self, params: base.Params, images: jax.Array, **kwargs: Any
  ) -> jax.Array:
    logits = self.model.apply({'params': params}, images, **kwargs)
    assert isinstance(logits, jax.Array)  # not a tuple: nothing is mutable
    return logits
