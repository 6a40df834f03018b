"""Segmentation: a class for each pixel, from the tokens of several layers.

The heads are those of SETR (arXiv:2012.15840), and a linear one.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import ClassVar

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import features as features_lib
from vit_jax.evaluation import segments as segments_lib
from vit_jax.models import maps
from vit_jax.models import setr
from vit_jax.models import vit
from vit_jax.objectives import base
from vit_jax.objectives import pixel_losses

_LEVELS = 4  # layers that the heads read
_FEATURE, _OUTPUT = 'map', 'segments'
_RUNNING = ('mean', 'var')  # names of a BatchNorm's running statistics

# (logits [B, H, W, K], labels [B, H, W], class weights, ignored label) -> loss.
LOSSES: Mapping[str, Callable[..., jax.Array]] = {
  'cross_entropy': pixel_losses.cross_entropy,
  'dice_cross_entropy': lambda x, y, w, i: pixel_losses.dice_cross_entropy(
    x, y, weights=w, ignore=i
  ),
  'focal': lambda x, y, _, i: pixel_losses.focal(x, y, ignore=i),
  'hard_examples': lambda x, y, _, i: pixel_losses.hard_examples(
    x, y, ignore=i
  ),
}
_WEIGHTED = ('cross_entropy', 'dice_cross_entropy')


class Segmentation(base.Objective):
  """Learns the class of each pixel.

  The trunk's tokens after some layers go to a head, and those of layers before
  the last to auxiliary heads, which only help training. BatchNorm in the heads
  sees the whole batch.
  """

  target: ClassVar = (_FEATURE, features_lib.SegmentationMap)
  couples_examples: ClassVar[bool] = True
  moves_statistics: ClassVar[bool] = True
  metrics: ClassVar[Mapping[str, str]] = {
    'miou': 'max',
    'iou/': 'max',
    'accuracy': 'max',
    'mean_accuracy': 'max',
    'dice': 'max',
    'loss': 'min',
    'examples': 'max',
  }
  options: ClassVar[Mapping[str, Any]] = {
    'head': 'pup',  # one of `models.setr.KINDS`
    # Layers that the heads read, from 0; (): four at equal distances.
    'layers': (),
    'channels': 256,
    'auxiliary_weight': 0.4,  # of each auxiliary loss; 0: no auxiliary heads
    # Convolutions of the heads of 'naive' and 'pup'. Each of 'pup' doubles the
    # grid: log2 of the patch lead to the image's. 0: as published.
    'convs': 0,
    'auxiliary_convs': 1,
    'align_corners': False,
    'loss': 'cross_entropy',  # one of LOSSES
    'class_weights': (),  # a number for each class; (): 1
  }

  def __init__(
    self, config: ml_collections.ConfigDict, features: features_lib.Features
  ):
    """Makes the trunk and the heads.

    Raises:
      UserError: The model has no tokens on a grid, or fewer layers than are
        read; or the class weights are not as many as the classes.
    """
    super().__init__(config, features)
    self._options = options = config.objective.options
    model = _checked(self.model.clone(num_classes=0), config)
    self.model = model
    height, width, _ = self.image_shape
    p, q = model.patch_size
    self._grid, self._layers = (height // p, width // q), _layers(model, config)
    feature = features[_FEATURE]
    assert isinstance(feature, features_lib.SegmentationMap)
    self._ignore, self._classes = feature.ignore, len(feature.classes)
    self._weights = tuple(options.class_weights) or None
    if self._weights and len(self._weights) != self._classes:
      raise config_lib.UserError(
        f'config.objective.options.class_weights has {len(self._weights)}'
        f' numbers: write one for each of the {self._classes} classes'
      )
    self.decoder = setr.SETR(
      options.head,
      self._classes,
      options.channels,
      auxiliary=options.auxiliary_weight > 0,
      convs=options.convs,
      auxiliary_convs=options.auxiliary_convs,
      align_corners=options.align_corners,
      dtype=model.dtype,
    )

  @staticmethod
  def check(config: ml_collections.ConfigDict) -> None:
    """Checks the objective's options, and the model unless a checkpoint has it.

    Raises:
      UserError: A value cannot work.
    """
    key = 'objective.options'
    config_lib.one_of(config, f'{key}.head', tuple(setr.KINDS))
    config_lib.one_of(config, f'{key}.loss', tuple(LOSSES))
    config_lib.at_least(config, f'{key}.channels', 2)
    config_lib.at_least(config, f'{key}.convs', 0)
    config_lib.at_least(config, f'{key}.auxiliary_convs', 1)
    config_lib.at_least(config, f'{key}.auxiliary_weight', 0)
    options = config.objective.options
    if options.class_weights and options.loss not in _WEIGHTED:
      raise config_lib.UserError(
        f'config.{key}.class_weights do not belong to config.{key}.loss='
        f'{options.loss}: choose {" or ".join(_WEIGHTED)}, or leave them out'
      )
    if config.model.name != config_lib.INIT_FROM:
      try:
        model = models.from_config(config.model, 0)
      except ValueError:
        return  # `models.check` tells what is wrong
      _layers(_checked(model, config), config)

  def output_facts(self) -> dict[str, Any]:
    """Returns that `segments` are positions of classes."""
    return {_OUTPUT: {'feature': _FEATURE}}

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters of the trunk and the heads."""
    keys = jax.random.split(key)
    tokens = jnp.zeros((1, *self._grid, self.model.hidden_size))
    init = jax.jit(self.decoder.init)
    heads = init(keys[1], [tokens] * len(self._layers))['params']
    return {'trunk': super().init(keys[0]), 'decoder': heads}

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the running statistics of all BatchNorms in the heads."""
    return {base.STATISTICS: {'decoder': _statistics(params['decoder'])}}

  def loss(
    self,
    params: base.Params,
    extra: base.Extra,
    batch: base.Batch,
    rng: base.Rng,
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the loss of all heads, and the main head's accuracy."""
    labels = batch[_FEATURE].astype(jnp.int32)
    how = self.train_arguments(rng)
    levels = self._levels(params, batch['image'], **how)
    (logits, others), changed = self.decoder.apply(
      {'params': params['decoder']}, levels, train=True, mutable=['statistics']
    )
    logits = self._fitted(logits, labels)
    loss = self._loss(logits, labels)
    for x in others:
      auxiliary = self._loss(self._fitted(x, labels), labels)
      loss += self._options.auxiliary_weight * auxiliary
    counted = labels != self._ignore
    right = (logits.argmax(axis=-1) == labels) & counted
    accuracy = right.sum() / jnp.maximum(counted.sum(), 1)
    new = {base.STATISTICS: {'decoder': changed['statistics']}}
    return loss, {'accuracy': accuracy}, extra | new

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns logits [B, H, W, K], and segments, int32 [B, H, W]."""
    images = batch['image']
    levels = self._levels(params, images)
    logits, _ = self.decoder.apply({'params': params['decoder']}, levels)
    logits = self._fitted(logits, images[..., 0])
    return {'logits': logits, _OUTPUT: logits.argmax(axis=-1)}

  def measure(
    self, outputs: base.Outputs, batch: base.Batch
  ) -> clu_metrics.Collection:
    """Returns overlaps by class and their means, accuracy, loss and count."""
    labels = batch[_FEATURE].astype(jnp.int32)
    loss = pixel_losses.each_cross_entropy(
      outputs['logits'], labels, self._ignore
    )
    counted = (labels != self._ignore).sum(axis=(1, 2))
    return segments_lib.Segmentation.single_from_model_output(
      segments=outputs[_OUTPUT],
      labels=labels,
      loss=loss.sum(axis=(1, 2)) / jnp.maximum(counted, 1),
      mask=batch['valid'],
      classes=jnp.zeros(self._classes),
      ignore=self._ignore,
    )

  def trunk(self, params: base.Params) -> tuple[models.Model, base.Params]:
    """Returns the trunk and its parameters."""
    return self.model, params['trunk']

  def _levels(
    self, params: base.Params, images: jax.Array, **kwargs: Any
  ) -> list[jax.Array]:
    """Returns the tokens after the chosen layers, [B, h, w, D] each."""
    _, state = self.apply(
      params['trunk'], images, method='trunk', mutable=['levels'], **kwargs
    )
    prefix = self.model.prefix_length
    tokens = state['levels']['tokens'][:, :, prefix:]
    shape = (len(images), *self._grid, tokens.shape[-1])
    return [tokens[i].reshape(shape) for i in self._layers]

  def _fitted(self, logits: jax.Array, like: jax.Array) -> jax.Array:
    """Resizes logits [B, h, w, K] to the size of labels [B, H, W]."""
    return maps.resize(logits, like.shape[1:], self._options.align_corners)

  def _loss(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
    weights = None
    if self._weights:
      weights = np.asarray(self._weights, np.float32)
    return LOSSES[self._options.loss](logits, labels, weights, self._ignore)


def _statistics(params: Any) -> Any:
  """Returns the running statistics in nested dicts of parameters."""
  found = {}
  for key, x in params.items():
    if isinstance(x, Mapping):
      if part := _statistics(x):
        found[key] = part
    elif key in _RUNNING:
      found[key] = jnp.copy(x)
  return found


def _checked(model: models.Model, config: ml_collections.ConfigDict) -> vit.ViT:
  """Returns the model, if its tokens lie on a grid of patches.

  Raises:
    UserError: They do not.
  """
  if isinstance(model, vit.ViT) and model.resnet_stages is None:
    return model
  raise config_lib.UserError(
    f'config.model.name is {config.model.name!r}: the heads of'
    f' config.objective.name={config.objective.name} need a plain ViT, as'
    " 'ViT-B/16'"
  )


def _layers(
  model: vit.ViT, config: ml_collections.ConfigDict
) -> tuple[int, ...]:
  """Returns the layers that the heads read, from the first to the last.

  Raises:
    UserError: The model does not have them.
  """
  given, depth = tuple(config.objective.options.layers), model.depth
  found = given or tuple(
    max(depth * (i + 1) // _LEVELS - 1, 0) for i in range(_LEVELS)
  )
  if list(found) != sorted(found) or not all(0 <= i < depth for i in found):
    raise config_lib.UserError(
      f'config.objective.options.layers is {given}: it must hold layers of the'
      f' model, from 0 to {depth - 1}, in this order'
    )
  return found
