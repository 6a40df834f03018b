"""Cuts and changes clips of videos, and spectrograms, under jit.

All frames of a clip are cropped and mirrored alike, since a clip is cropped as
an image that has the frames as further channels. In comments: B examples, [T,
H, W] frames and pixels of a clip, C channels, M bands of a spectrogram.
"""

from collections.abc import Callable
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import features as features_lib
from vit_jax.data import input_kinds
from vit_jax.data.device import crops
from vit_jax.data.device import mixing
from vit_jax.data.device import views as views_lib
from vit_jax.data.device.rng import for_purpose
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib

# Purposes of random numbers from an example's key, after those of crops.py.
_TIME, _MASKS, _MIX = range(2, 5)

Batch = dict[str, jax.Array]
_Normalize = Callable[[jax.Array], jax.Array]


def train_transform(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  normalize: _Normalize,
  views: Mapping[str, geometry.View],
) -> Callable[[Batch, Rng], Batch]:
  """Returns a function that prepares a batch, as `views.train_transform`.

  It gives float32 clips [B, T, H, W, C], or spectrograms [B, T, M, 1], of the
  size `data.image_size`; `normalize` applies mean and standard deviation.

  Raises:
    UserError: The objective takes several crops, or the config changes images
      in ways that these cannot be.
  """
  _check(config, features, views)
  image, mixes = features['image'], views_lib.mixes(config.augment)
  assert isinstance(image, features_lib.Image)
  levels = levels_lib.from_config(config)
  crop = geometry.train_crop(config)
  is_audio = isinstance(image, input_kinds.Audio)

  def transform(batch: Batch, rng: Rng) -> Batch:
    keys = rng.per_row()
    images = batch['image']
    if image.whole_size(training=True) is not None:
      images = _cut(images, image, crop, keys)
    images = normalize(levels.scale(images))
    if is_audio:
      images = mask(images, for_purpose(_MASKS, keys), config.augment.audio)
    batch = batch | {'image': images}
    if not mixes:
      return batch
    targets = mixing.shares(batch, features, config.model.num_classes)
    folded, targets = mixing.mix(
      _fold(images), targets, for_purpose(_MIX, keys), config.augment
    )
    return batch | {'image': _unfold(folded, images.shape)} | targets

  return transform


def eval_batch(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  normalize: _Normalize,
) -> Callable[[Batch], Batch]:
  """Returns a function that prepares a batch, as `views.eval_batch`.

  Clips become float32 [B, T, H, W, C], and spectrograms [B, T, M, 1]: the
  middle of each.
  """
  image, levels = features['image'], levels_lib.from_config(config)
  assert isinstance(image, features_lib.Image)
  crop = geometry.eval_crop(config)
  is_stored_whole = image.whole_size(training=False) is not None

  def transform(batch: Batch) -> Batch:
    images = batch['image']
    if is_stored_whole:
      images = _cut(images, image, crop, None)
    return batch | {'image': normalize(levels.scale(images))}

  return transform


def mask(
  images: jax.Array, keys: jax.Array, audio_config: ml_collections.ConfigDict
) -> jax.Array:
  """Hides ranges of frames and of bands (SpecAugment, arXiv:1904.08779).

  Args:
    images: Normalised spectrograms, float32 [B, T, M, 1]; hidden places become
      0, the mean.
    keys: [B].
    audio_config: `config.augment.audio`.
  """

  def mask_image(image: jax.Array, key: jax.Array) -> jax.Array:
    most = audio_config.time_mask, audio_config.frequency_mask
    for axis, longest in enumerate(most):
      if not longest:
        continue
      for i in range(audio_config.masks):
        range_key = jax.random.fold_in(jax.random.fold_in(key, axis), i)
        length, place = jax.random.uniform(range_key, (2,))
        size = image.shape[axis]
        length = jnp.floor(length * (min(longest, size) + 1))
        first = jnp.floor(place * (size - length + 1))
        at = jnp.arange(size)
        is_hidden = (at >= first) & (at < first + length)
        shape = [size if j == axis else 1 for j in range(image.ndim)]
        image = jnp.where(is_hidden.reshape(shape), 0.0, image)
    return image

  if not (audio_config.time_mask or audio_config.frequency_mask):
    return images
  return jax.vmap(mask_image)(images, keys)


def _cut(
  images: jax.Array,
  kind: features_lib.Image,
  crop: geometry.Crop,
  keys: jax.Array | None,
) -> jax.Array:
  """Cuts whole videos or spectrograms.

  Args:
    images: [B, T, ...], as stored.
    kind: Their feature.
    crop: The model's input.
    keys: [B]; None: the middle.
  """
  frames = crop.size[0]
  stride = kind.stride if isinstance(kind, input_kinds.Video) else 1
  span = (frames - 1) * stride + 1
  images = _cut_time(images, span, keys)[:, :span:stride]
  if not isinstance(kind, input_kinds.Video):
    return images
  folded, crop = _fold(images), geometry.frame_crop(crop)
  if keys is None:
    folded = crops.cut(crops.resize(folded, crop), crop, None)
  else:
    folded = crops.random(folded, crop, keys)
  batch, _, _, _, channels = images.shape
  return _unfold(folded, (batch, frames, *crop.size, channels))


def _cut_time(
  images: jax.Array, span: int, keys: jax.Array | None
) -> jax.Array:
  """Returns [B, T, ...] from the first of `span` frames on."""
  free = images.shape[1] - span
  if keys is None:
    return images[:, free // 2 :]
  if not free:
    return images
  draws = jax.vmap(jax.random.uniform)(for_purpose(_TIME, keys))
  first = jnp.minimum((draws * (free + 1)).astype(jnp.int32), free)
  return jax.vmap(
    lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, span, axis=0)
  )(images, first)


def _fold(images: jax.Array) -> jax.Array:
  """Returns clips [B, T, H, W, C] as images [B, H, W, T * C]; others as is."""
  if images.ndim == 4:
    return images
  batch, _, height, width, _ = images.shape
  moved = jnp.moveaxis(images, 1, 3)
  return moved.reshape(batch, height, width, -1)


def _unfold(folded: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Returns images of a shape [B, T, H, W, C] from the result of `_fold`."""
  if len(shape) == 4:
    return folded
  batch, frames, height, width, channels = shape
  images = folded.reshape(batch, height, width, frames, channels)
  return jnp.moveaxis(images, 3, 1)


def _check(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  views: Mapping[str, geometry.View],
) -> None:
  """Raises a UserError if images would be augmented that are none."""
  plural = {input_kinds.Video: 'videos', input_kinds.Audio: 'sounds'}[
    type(features['image'])
  ]
  if not geometry.is_single(views):
    raise config_lib.UserError(
      f'config.objective.name={config.objective.name} takes several crops of an'
      f' image, but the examples of {config.data.name} are {plural}: choose an'
      ' objective of one crop, such as classification'
    )
  keys = ('policy', 'jitter', 'gray', 'blur', 'solarize', 'erase')
  for key in keys:
    if config.augment[key]:
      raise config_lib.UserError(
        f'config.augment.{key} changes images, but the examples of'
        f' {config.data.name} are {plural}: leave it out'
      )
  texts = [k for k, x in features.items() if k != 'image' and not x.can_mix]
  if texts and views_lib.mixes(config.augment):
    raise config_lib.UserError(
      f'config.augment.mixup and config.augment.cutmix mix {plural}, but not'
      f' the {", ".join(texts)} of {config.data.name}: set both to 0'
    )
