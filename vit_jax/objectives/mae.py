"""Masked autoencoders (MAE, He et al., arXiv:2111.06377).

In comments: B images, N patches, K of them seen, M = p * q * C numbers of a
patch.
"""

import math
from typing import Any
from typing import ClassVar
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data.device.rng import Rng
from vit_jax.models import decoder
from vit_jax.models import describing
from vit_jax.models import embedding
from vit_jax.models import layouts
from vit_jax.models import registry
from vit_jax.models import vit
from vit_jax.models.parts import pooling
from vit_jax.models.parts import relative
from vit_jax.models.parts import stems
from vit_jax.objectives import base
from vit_jax.objectives import trunk_checks
from vit_jax.weights.formats import mae as mae_files
from vit_jax.weights.formats import objective_tables

_EPSILON = 1e-6  # of the targets' variance
# Options that the decoder's layers have from the trunk's.
_SHARED = (
  'gelu',
  'layer_norm_epsilon',
  'initializers',
  'qkv_bias',
  'scan',
  'remat',
  'dtype',
  'attention_implementation',
)


class Masks(NamedTuple):
  """Which patches of images are seen.

  Attributes:
    seen_patches: int32 [B, K], in the order in which they are seen.
    places: int32 [B, N], each patch's place in (seen, then removed) patches.
    removed: float32 [B, N], 1 for patches that are not seen.
  """

  seen_patches: jax.Array
  places: jax.Array
  removed: jax.Array


def num_kept(count: int, ratio: float) -> int:
  """Returns K, of `count` patches of which the share `ratio` is removed."""
  return int(count * (1 - ratio))


def masks(noise: jax.Array, ratio: float) -> Masks:
  """Returns masks that keep the patches with the least noise [B, N]."""
  k = num_kept(noise.shape[1], ratio)
  order = jnp.argsort(noise, axis=1)
  places = jnp.argsort(order, axis=1)
  removed = (places >= k).astype(jnp.float32)
  return Masks(order[:, :k], places, removed)


def normalized(patches: jax.Array) -> jax.Array:
  """Returns patches [B, N, M], each with mean 0 and variance 1 (section 3).

  The variance is the unbiased one, as in the authors' code.
  """
  mean, deviation = _moments(patches)
  return (patches - mean) / deviation


def _moments(patches: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the mean and the deviation of each patch, [B, N, 1]."""
  variance = patches.var(axis=-1, keepdims=True, ddof=1)
  mean = patches.mean(axis=-1, keepdims=True)
  return mean, jnp.sqrt(variance + _EPSILON)


def reconstruction_errors(
  predicted: jax.Array, target: jax.Array, removed: jax.Array
) -> jax.Array:
  """Returns each image's mean squared error over its removed patches, [B].

  Patches are [B, N, M], and `removed` is [B, N], 1 where the error counts. All
  images have as many, so that the mean over images is that over patches.
  """
  patch_errors = jnp.square(predicted - target).mean(axis=-1)
  return (patch_errors * removed).sum(axis=1) / removed.sum(axis=1)


class MAE(base.Objective):
  """The pixels of removed patches, from those that the encoder sees.

  A random share `mask_ratio` of the patches is removed, and the encoder sees
  the others alone. A small decoder gets its outputs, and a mask token in the
  place of each removed patch. With `normalize_targets` it predicts pixels that
  are normalised within their patch.

  In the authors' code the biases of MLPs start at zero, the class token does
  not, and the patch embedding starts as a dense layer.
  """

  metrics: ClassVar = {'loss': 'min', 'examples': 'max'}
  options: ClassVar = {
    # Fraction of the patches that are masked.
    'mask_ratio': 0.75,
    # Whether the target is normalized by the mean and the standard deviation of
    # each patch.
    'normalize_targets': True,
    # Hidden size of the decoder.
    'decoder_width': 512,
    # Number of layers of the decoder.
    'decoder_depth': 8,
    # Number of attention heads of the decoder.
    'decoder_heads': 16,
    # Hidden size of the MLPs of the decoder. 0: four times the width.
    'decoder_mlp_dim': 0,
  }
  limits: ClassVar = {
    'decoder_width decoder_depth decoder_heads': '[1, inf)',
    'decoder_mlp_dim': '[0, inf)',
  }

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    self._options = options = config.objective.options
    self.model = model = _checked(self.model.clone(num_classes=0), config)
    height, width, channels = self.image_shape
    self._patch = p, q = models.patch_of_images(model)
    self._grid = height // p, width // q
    decoder_width = options.decoder_width
    trunk = describing.option_values(model)
    self.decoder = registry.build_model(
      decoder.Decoder,
      hidden_size=decoder_width,
      mlp_dim=options.decoder_mlp_dim or 4 * decoder_width,
      depth=options.decoder_depth,
      num_heads=options.decoder_heads,
      prefix_length=model.prefix_length,
      outputs=p * q * channels,
      **{name: trunk.get(name) for name in _SHARED},
    )

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks the options, and the model unless a checkpoint has it."""
    trunk_checks.check_patches(config)
    options = config.objective.options
    if not 0 < options.mask_ratio < 1:
      raise _error('mask_ratio', options, 'it must be above 0 and below 1')
    if options.decoder_width % options.decoder_heads:
      problem = f'decoder_heads={options.decoder_heads} does not divide it'
      raise _error('decoder_width', options, problem)
    if options.decoder_width % 4:
      problem = 'its fixed positions need a multiple of 4'
      raise _error('decoder_width', options, problem)
    if model := trunk_checks.described_model(config):
      _checked(model, config)

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters of the trunk and the decoder."""
    trunk_key, decoder_key = jax.random.split(key)
    model, (h, w) = models.for_init(self.decoder), self._grid
    tokens = jnp.zeros((1, model.prefix_length + 1, self.model.hidden_size))
    places = jnp.zeros((1, h * w), jnp.int32)
    init = jax.jit(model.init, static_argnums=3)
    params = init(decoder_key, tokens, places, self._grid)['params']
    if not self.model.scan:
      params = layouts.unstack_layers(params)
    return {'trunk': super().init(trunk_key), 'decoder': params}

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the loss, and how much the predictions for an image vary.

    `predicted_std` is near zero where the decoder predicts the mean alone.
    """
    drawn = self._draw(rng)
    arguments = self.train_arguments(rng)
    predicted = self.predict(params, batch['image'], drawn, **arguments)
    target = self.targets(batch['image'])
    loss = reconstruction_errors(predicted, target, drawn.removed).mean()
    return loss, {'predicted_std': predicted.std(axis=(1, 2)).mean()}, extra

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns each image's loss [B]; the mask depends on its index alone."""
    key = jax.random.key(0, impl='threefry2x32')
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch['index'])
    drawn, images = self._masks(keys), batch['image']
    predicted = self.predict(params, images, drawn)
    errors = reconstruction_errors(
      predicted, self.targets(images), drawn.removed
    )
    return {'loss': errors}

  @property
  def pictures_caption(self) -> str:
    """Sentences that explain `pictures`."""
    count = math.prod(self._grid)
    caption = (
      'The encoder sees the patches that are not covered,'
      f' {num_kept(count, self._options.mask_ratio)} of {count}, and the'
      ' decoder draws the others (arXiv:2111.06377, figure 2). What it makes of'
      ' the patches that were seen is replaced by these, as no loss is computed'
      ' there.'
    )
    if self._options.normalize_targets:
      caption += (
        ' This model predicts pixels that are normalised within their patch;'
        " they are shown with the original patch's mean and variance, which"
        ' the model does not know.'
      )
    return caption

  def pictures(
    self, params: base.Params, extra: base.Extra, images: jax.Array, rng: Rng
  ) -> list[base.Column]:
    """Returns the masked images, their reconstructions, and the originals."""
    drawn = self._draw(rng)
    predicted = self.predict(params, images, drawn)
    patches = embedding.patches(images, self._patch)
    if self._options.normalize_targets:
      mean, deviation = _moments(patches)
      predicted = predicted * deviation + mean
    hidden = drawn.removed > 0
    filled = jnp.where(hidden[..., None], predicted, patches)
    return [
      base.Column('masked', images, hidden),
      base.Column(
        'reconstruction', embedding.unpatchify(filled, self._grid, self._patch)
      ),
      base.Column('original', images),
    ]

  def hidden(self, rng: Rng, step: int) -> dict[str, jax.Array]:
    """Returns the patches that the encoder does not see."""
    del step
    removed = self._draw(rng).removed > 0
    return {'image': removed.reshape(-1, *self._grid)}

  def predict(
    self, params: base.Params, images: jax.Array, drawn: Masks, **arguments: Any
  ) -> jax.Array:
    """Returns the decoder's output for all patches, float32 [B, N, M].

    The trunk takes `arguments`, as from `train_arguments`.
    """
    predicted: Any = self.decoder.apply(
      {'params': params['decoder']},
      self.encode(params, images, drawn, **arguments),
      drawn.places,
      self._grid,
    )
    return predicted

  def encode(
    self, params: base.Params, images: jax.Array, drawn: Masks, **arguments: Any
  ) -> jax.Array:
    """Returns the trunk's tokens [B, P + K, D]; arguments as of `predict`."""
    arguments |= {'method': 'trunk', 'kept': drawn.seen_patches}
    outputs = self.apply(params['trunk'], images, **arguments)
    return outputs['tokens']

  def targets(self, images: jax.Array) -> jax.Array:
    """Returns what is predicted for the patches of images, [B, N, M]."""
    patches = embedding.patches(images, self._patch)
    return normalized(patches) if self._options.normalize_targets else patches

  def _draw(self, rng: Rng) -> Masks:
    return self._masks(rng.fold(base.Purpose.OBJECTIVE).per_row())

  def _masks(self, keys: jax.Array) -> Masks:
    shape = (math.prod(self._grid),)
    noise = jax.vmap(lambda key: jax.random.uniform(key, shape))(keys)
    return masks(noise, self._options.mask_ratio)

  def foreign(self, format_name: str) -> objective_tables.ObjectiveTable | None:
    """Returns how the authors' files, or transformers', have the decoder."""
    return mae_files.decoder_table(
      format_name, self.decoder, self._grid, self._options
    )


def _error(
  key: str, options: base.Config, problem: str
) -> config_lib.UserError:
  return config_lib.UserError(
    f'config.objective.options.{key} is {options[key]}: {problem}'
  )


def _checked(model: models.Model, config: base.Config) -> vit.ViT:
  """Returns the model, if it can be trained on the config's images."""
  reason = f'leaves tokens out, which a {type(model).__name__} cannot'
  model = trunk_checks.checked_vit(model, config, reason)
  biases = relative.RelativeBias | relative.RelativeMlpBias
  untrained = 'which this loss does not train'
  wrong = {
    'a ResNet, which sees the removed patches': isinstance(
      model.patches, stems.HybridPatches
    ),
    f"pool='map', {untrained}": isinstance(model.pool, pooling.Map),
    f'a norm after the pool, {untrained}': getattr(
      model.pool, 'norm_after', False
    ),
    f'pre_logits, {untrained}': getattr(model.head, 'pre_logits', 0),
    'a distillation_token, which needs a teacher': model.distillation_token,
    'relative positions, which need all patches': any(
      isinstance(part, biases) for part in model.positions
    ),
  }
  if problem := next((reason for reason, has in wrong.items() if has), ''):
    raise config_lib.UserError(
      f'config.objective.name={config.objective.name} trains no model with'
      f' {problem}: change config.model'
    )
  patch, options = models.patch_of_images(model), config.objective.options
  height, width = config_lib.pair(config.data.image_size, 'data.image_size')
  count = (height // patch[0]) * (width // patch[1])
  seen_count = num_kept(count, options.mask_ratio)
  if not 0 < seen_count < count:
    raise _error(
      'mask_ratio',
      options,
      f'of the {count} patches of {height} x {width} pixels it keeps'
      f' {seen_count}: change it, or take a smaller config.model.patch_size',
    )
  if options.normalize_targets and patch == (1, 1) and config.data.channels < 2:
    raise _error(
      'normalize_targets',
      options,
      'a patch of a single number has no variance: set it to False',
    )
  return model
