"""Segmentation: a class for each pixel, from the tokens of several layers.

The heads are SETR's (arXiv:2012.15840), a linear one, and the decoder of UNETR
(arXiv:2103.10504). They work on images [B, H, W, C] and on volumes
[B, D, H, W, C]. The transformer of Trans2Seg (arXiv:2101.08461) reads features
of a BiT, of images alone.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import ClassVar

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import target_kinds
from vit_jax.data.device.rng import Rng
from vit_jax.evaluation import segments as segments_lib
from vit_jax.evaluation import windows
from vit_jax.models import maps
from vit_jax.models import registry
from vit_jax.models import resnet
from vit_jax.models import setr
from vit_jax.models import trans2seg
from vit_jax.models import unetr
from vit_jax.models import vit
from vit_jax.models.parts import stems
from vit_jax.objectives import base
from vit_jax.objectives import pixel_losses
from vit_jax.objectives import trunk_checks

_UNETR, _TRANS2SEG = 'unetr', 'trans2seg'
HEADS = (*setr.KINDS, _UNETR, _TRANS2SEG)
_FEATURE, _OUTPUT = 'map', 'segments'
_RUNNING = ('mean', 'var')  # names of a BatchNorm's running statistics

# (logits [B, ..., K], labels [B, ...], class weights, ignored label, what a sum
# of cross-entropies is divided by) -> loss.
LOSSES: Mapping[str, Callable[..., jax.Array]] = {
  'cross_entropy': pixel_losses.cross_entropy,
  'dice_cross_entropy': lambda x, y, w, i, _: pixel_losses.dice_cross_entropy(
    x, y, weights=w, ignore=i
  ),
  'focal': lambda x, y, _, i, __: pixel_losses.focal(x, y, ignore=i),
  'hard_examples': lambda x, y, _, i, __: pixel_losses.hard_examples(
    x, y, ignore=i
  ),
}
_WEIGHTED = ('cross_entropy', 'dice_cross_entropy')
# Values of `loss_mean`, and as `pixel_losses.cross_entropy` has them.
_MEANS = {'all': 'all', 'valid': 'weights'}


class Segmentation(base.Objective):
  """Learns the class of each pixel.

  The trunk's tokens after some layers go to a head, and the tokens of layers
  before the last to auxiliary heads, which only help training. BatchNorm in
  the heads sees the whole batch. UNETR's decoder also reads the input, and the
  tokens after the last norm.

  Volumes larger than the model's input are evaluated by windows that overlap.
  """

  target: ClassVar = (_FEATURE, target_kinds.SegmentationMap)
  couples_examples: ClassVar = True
  reads_layers: ClassVar = True
  moves_statistics: ClassVar = True
  metrics: ClassVar = {
    'miou': 'max',
    'iou/': 'max',
    'accuracy': 'max',
    'mean_accuracy': 'max',
    'dice': 'max',
    'class_dice/': 'max',
    'miou_classes': 'max',
    'labelled_classes': 'max',
    'loss': 'min',
    'examples': 'max',
  }
  options: ClassVar = {
    # The decoder: 'linear', 'naive', 'pup' or 'mla' (SETR), 'trans2seg', or
    # 'unetr' for volumes.
    'head': 'pup',
    # The layers that the decoder reads, from 0. (): four at equal distances,
    # without the last one for 'unetr'.
    'layers': (),
    # Channels of the decoder. 0: as published, which is 16 for 'unetr', 64 for
    # 'trans2seg' and 256 for the others.
    'channels': 0,
    # Weight of the loss of each auxiliary head. 0: no auxiliary heads.
    'auxiliary_weight': 0.4,
    # Number of convolutions of 'naive' and 'pup'. Each convolution of 'pup'
    # doubles the grid: log2 of the patch size reach the image's size. 0: as
    # published.
    'convs': 0,
    # Number of convolutions of each auxiliary head.
    'auxiliary_convs': 1,
    # Whether resizing keeps the centres of the corner pixels in their places.
    # False: it keeps the outer edges, as for images.
    'align_corners': False,
    # 'cross_entropy', 'dice_cross_entropy', 'focal' or 'hard_examples'. '': as
    # published, which is
    # 'dice_cross_entropy' for 'unetr' and 'cross_entropy' for the others.
    'loss': '',
    # The pixels over which 'cross_entropy' is averaged. 'all': also ignored
    # pixels, as mmsegmentation does by default. 'valid': without ignored
    # pixels, as evaluations and the other losses do.
    'loss_mean': 'all',
    # Weight of each class in the loss. (): all weights are 1.
    'class_weights': (),
    # For 'trans2seg': hidden size of its transformer.
    'width': 256,
    # For 'trans2seg': number of layers of its encoder, and of its decoder.
    'depth': 4,
    # For 'trans2seg': number of attention heads.
    'heads': 8,
    # Fraction of a window that the next window covers, where volumes are larger
    # than the model's input.
    'overlap': 0.5,
    # Whether a window has less weight towards its edges, as MONAI's Gaussian.
    'gaussian': False,
  }
  limits: ClassVar = {
    'head': HEADS,
    'channels auxiliary_weight convs': '[0, inf)',
    'auxiliary_convs width depth heads': '[1, inf)',
    'loss': ('', *LOSSES),
    'loss_mean': tuple(_MEANS),
    'overlap': '[0, 1)',
  }

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    self._options = options = config.objective.options
    self.model = _checked(self.model.clone(num_classes=0), config)
    self._window = self.image_shape[:-1]
    self._layers = _layers(self.model, config)
    feature = features[_FEATURE]
    assert isinstance(feature, target_kinds.SegmentationMap)
    self._ignore, self._classes = feature.ignore, len(feature.classes)
    weights = options.class_weights
    if weights and len(weights) != self._classes:
      raise config_lib.UserError(
        f'config.objective.options.class_weights has {len(weights)} numbers:'
        f' write one for each of the {self._classes} classes'
      )
    self.decoder = _decoder(options, self._classes, self.model.dtype)

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks the options, and the model unless a checkpoint has it."""
    trunk_checks.check_patches(config)
    options, key = config.objective.options, 'config.objective.options'
    if options.width % options.heads:
      raise config_lib.UserError(
        f'{key}.width={options.width} does not divide into'
        f' {key}.heads={options.heads}: change one of them'
      )
    if options.class_weights and _loss_name(options) not in _WEIGHTED:
      raise config_lib.UserError(
        f'{key}.class_weights do not belong to {key}.loss={options.loss}:'
        f' choose {" or ".join(_WEIGHTED)}, or leave them out'
      )
    if model := trunk_checks.described_model(config):
      _layers(_checked(model, config), config)

  def output_facts(self) -> dict[str, Any]:
    """Returns that `segments` are positions of classes."""
    return {_OUTPUT: {'feature': _FEATURE}}

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters of the trunk and the heads."""
    keys = jax.random.split(key)
    trunk = super().init(keys[0])
    images = jnp.zeros((1, *self.image_shape))
    shapes = jax.eval_shape(self._inputs, {'trunk': trunk}, images)
    inputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    heads = jax.jit(self.decoder.init)(keys[1], *inputs)['params']
    return {'trunk': trunk, 'decoder': heads}

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the running statistics of all BatchNorms in the heads."""
    return {base.STATISTICS: {'decoder': _statistics(params['decoder'])}}

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the loss of all heads, and the main head's accuracy."""
    labels = batch[_FEATURE].astype(jnp.int32)
    arguments = self.train_arguments(rng)
    inputs = self._inputs(params, batch['image'], **arguments)
    variables = {'params': params['decoder']}
    outputs: Any
    statistics: Any = {}
    if isinstance(self.decoder, unetr.UNETR):  # its norms keep no statistics
      outputs = self.decoder.apply(variables, *inputs)
    else:
      outputs, changed = self.decoder.apply(
        variables, *inputs, train=True, mutable=['statistics']
      )
      statistics = changed['statistics']
    main, auxiliary_logits = _split_outputs(outputs)
    logits = self._fitted(main, labels)
    loss = self._loss(logits, labels)
    for x in auxiliary_logits:
      auxiliary = self._loss(self._fitted(x, labels), labels)
      loss += self._options.auxiliary_weight * auxiliary
    counted = labels != self._ignore
    right = (logits.argmax(axis=-1) == labels) & counted
    accuracy = right.sum() / jnp.maximum(counted.sum(), 1)
    new = {base.STATISTICS: {'decoder': statistics}}
    return loss, {'accuracy': accuracy}, extra | new

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns logits [B, ..., K], and segments, int32 [B, ...]."""
    images = batch['image']

    def apply(images: jax.Array) -> jax.Array:
      inputs = self._inputs(params, images)
      outputs = self.decoder.apply({'params': params['decoder']}, *inputs)
      return self._fitted(_split_outputs(outputs)[0], images[..., 0])

    window = self._window
    if images.shape[1:-1] == window:
      logits = apply(images)
    else:
      stride = windows.strides(window, self._options.overlap)
      weights = windows.gaussian(window) if self._options.gaussian else None
      logits = windows.slide_compiled(apply, images, window, stride, weights)
    return {'logits': logits, _OUTPUT: logits.argmax(axis=-1)}

  def measure(
    self, outputs: base.Outputs, batch: base.Batch
  ) -> clu_metrics.Collection:
    """Returns overlaps by class and their means, accuracy, loss and count."""
    labels = batch[_FEATURE].astype(jnp.int32)
    loss = pixel_losses.each_cross_entropy(
      outputs['logits'], labels, self._ignore
    )
    places = tuple(range(1, labels.ndim))
    counted = (labels != self._ignore).sum(axis=places)
    return segments_lib.Segmentation.single_from_model_output(
      segments=outputs[_OUTPUT],
      labels=labels,
      loss=loss.sum(axis=places) / jnp.maximum(counted, 1),
      mask=batch['valid'],
      classes=jnp.zeros(self._classes),
      ignore=self._ignore,
    )

  def example_measures(
    self, outputs: base.Outputs, batch: base.Batch
  ) -> dict[str, jax.Array]:
    """Returns the mean overlap and the accuracy of each image, [B].

    The mean is over the classes that are in the image or in its prediction; nan
    for an image without any pixel that counts. `areas` is that of
    `evaluation.segments`, [B, 3, K].
    """
    labels = batch[_FEATURE].astype(jnp.int32)
    areas = segments_lib.areas(
      outputs[_OUTPUT], labels, self._classes, self._ignore
    )
    overlaps = segments_lib.area_overlaps(areas)
    return {
      'miou': jnp.nanmean(overlaps.iou, axis=1),
      'accuracy': overlaps.total,
      'areas': areas,
    }

  def _inputs(
    self, params: base.Params, images: jax.Array, **kwargs: Any
  ) -> tuple[Any, ...]:
    """Returns what the decoder reads of images [B, ..., C]."""
    outputs, state = self.apply(
      params['trunk'], images, method='trunk', mutable=['levels'], **kwargs
    )
    tokens = state['levels']['tokens']
    if isinstance(self.model, resnet.BiT):
      (fine,) = tokens
      step = 2 ** (len(self.model.stages) - 1)
      h, w = (-(-n // step) for n in fine.shape[1:3])
      return outputs['tokens'].reshape(len(images), h, w, -1), fine
    prefix, sides = self.model.prefix_length, self.model.patches.pixels
    grid = [n // p for n, p in zip(self._window, sides, strict=True)]
    shape = (len(images), *grid, tokens.shape[-1])
    levels = [tokens[i][:, prefix:].reshape(shape) for i in self._layers]
    if isinstance(self.decoder, unetr.UNETR):
      return images, levels, outputs['tokens'][:, prefix:].reshape(shape)
    return (levels,)

  def _fitted(self, logits: jax.Array, like: jax.Array) -> jax.Array:
    """Resizes logits [B, h, w, K] to the size of labels [B, H, W]."""
    return maps.resize(logits, like.shape[1:], self._options.align_corners)

  def _loss(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
    options, weights = self._options, None
    if options.class_weights:
      weights = np.asarray(options.class_weights, np.float32)
    loss, over = LOSSES[_loss_name(options)], _MEANS[options.loss_mean]
    return loss(logits, labels, weights, self._ignore, over)


def _loss_name(options: base.Config) -> str:
  default = 'dice_cross_entropy' if options.head == _UNETR else 'cross_entropy'
  return options.loss or default


def _statistics(params: Any) -> Any:
  """Returns the running statistics in nested dicts of parameters."""
  statistics = {}
  for key, x in params.items():
    if isinstance(x, Mapping):
      if part := _statistics(x):
        statistics[key] = part
    elif key in _RUNNING:
      statistics[key] = jnp.copy(x)
  return statistics


def _decoder(
  options: base.Config, classes: int, dtype: Any
) -> setr.SETR | unetr.UNETR | trans2seg.Trans2Seg:
  if options.head == _UNETR:
    channels = options.channels or unetr.UNETR.features
    return unetr.UNETR(classes, channels, dtype)
  if options.head == _TRANS2SEG:
    return registry.build_model(
      trans2seg.Trans2Seg,
      hidden_size=options.width,
      mlp_dim=trans2seg.MLP_RATIO * options.width,
      depth=options.depth,
      num_heads=options.heads,
      num_classes=classes,
      channels=options.channels or None,
      dtype=dtype,
    )
  return setr.SETR(
    options.head,
    classes,
    options.channels or setr.SETR.channels,
    auxiliary=options.auxiliary_weight > 0,
    convs=options.convs,
    auxiliary_convs=options.auxiliary_convs,
    align_corners=options.align_corners,
    dtype=dtype,
  )


def _split_outputs(outputs: Any) -> tuple[jax.Array, list[jax.Array]]:
  """Returns the logits of the main head and of auxiliary ones."""
  if isinstance(outputs, tuple):
    return outputs
  return (outputs['logits'] if isinstance(outputs, dict) else outputs), []


def _checked(model: Any, config: base.Config) -> Any:
  head = config.objective.options.head
  if head == _TRANS2SEG:
    fits, needed_model = isinstance(model, resnet.BiT), "a BiT, as 'BiT-R50x1'"
  else:
    fits, needed_model = False, "a plain ViT, as 'ViT-B/16'"
    if isinstance(model, vit.ViT):
      fits = not isinstance(model.patches, stems.HybridPatches)
  if not fits:
    raise config_lib.UserError(
      f'config.model.name is {config.model.name!r}: the head'
      f' config.objective.options.head={head} needs {needed_model}'
    )
  if head == _UNETR and set(model.patches.pixels) != {unetr.PATCH}:
    raise config_lib.UserError(
      f'config.objective.options.head={head} needs patches of {unetr.PATCH} on'
      f' each side, not {model.patches.pixels}: set config.model.patch_size'
    )
  return model


def _layers(model: models.Model, config: base.Config) -> tuple[int, ...]:
  if not isinstance(model, vit.ViT):
    return ()
  options, depth = config.objective.options, model.depth
  is_unetr = options.head == _UNETR
  layers = tuple(options.layers)
  if not layers:
    quarters = [depth * i // 4 for i in range(1, 5)]
    layers = tuple(max(i - 1, 0) for i in quarters)
    if is_unetr:
      layers = tuple(quarters[:-1])
  problem = ''
  if is_unetr and len(layers) != len(unetr.LEVELS):
    problem = f'head={_UNETR} reads {len(unetr.LEVELS)} layers'
  elif list(layers) != sorted(layers) or not set(layers) <= set(range(depth)):
    problem = (
      f'it must hold layers of the model, from 0 to {depth - 1}, in this order'
    )
  if problem:
    raise config_lib.UserError(
      f'config.objective.options.layers is {tuple(options.layers)}: {problem}'
    )
  return layers
