"""Cuts and changes clips of videos, and spectrograms, under jit.

All frames of a clip are cropped and mirrored alike, since a clip is cropped as
an image that has the frames as further channels. In comments: B examples, [T,
H, W] frames and pixels of a clip, C channels, M bands of a spectrogram.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import augmentations
from vit_jax.data import features as features_lib
from vit_jax.data import input_kinds
from vit_jax.data.device import crops
from vit_jax.data.device import mixing
from vit_jax.data.device.rng import for_purpose
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib

# Purposes of random numbers from an example's key. crops.py has 0 and 1.
_TIME, _MASKS, _MIX = range(2, 5)

Batch = dict[str, jax.Array]


def train_transform(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  normalize: Callable[[jax.Array], jax.Array],
  views: Mapping[str, geometry.View],
) -> Callable[[Batch, Rng], Batch]:
  """Returns a function that prepares a batch, as `views.train_transform`.

  It gives float32 clips [B, T, H, W, C], or spectrograms [B, T, M, 1].
  """
  kind = cast(input_kinds.Recording, features['image'])
  if not geometry.is_single(views):
    raise config_lib.UserError(
      f'config.objective.name={config.objective.name} takes several crops of'
      f' an image, but the examples of {config.data.name} are {kind.inputs}:'
      ' choose an objective of one crop, such as classification'
    )
  levels, crop = levels_lib.from_config(config), geometry.train_crop(config)

  def transform(batch: Batch, rng: Rng) -> Batch:
    keys = rng.per_row()
    images = batch['image']
    if kind.size is not None:
      images = _cut(images, kind, crop, keys)
    images = normalize(levels.scale(images))
    if isinstance(kind, input_kinds.Audio):
      images = mask(images, for_purpose(_MASKS, keys), config.augment.audio)
    batch = batch | {'image': images}
    if not augmentations.mixes(config.augment):
      return batch
    return mixing.mix_batch(batch, features, for_purpose(_MIX, keys), config)

  return transform


def eval_cut(
  images: jax.Array, crop: geometry.Crop, kind: input_kinds.Recording
) -> jax.Array:
  """Returns the middle of stored videos or spectrograms [B, T, ...]."""
  return _cut(images, kind, crop, None)


def mask(
  images: jax.Array, keys: jax.Array, audio_config: ml_collections.ConfigDict
) -> jax.Array:
  """Zeroes ranges of T frames and M bands of [B, T, M, 1], with keys [B].

  The images are normalised, so 0 is the mean (SpecAugment, arXiv:1904.08779).
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

  return jax.vmap(mask_image)(images, keys)


def _cut(
  images: jax.Array,
  kind: input_kinds.Recording,
  crop: geometry.Crop,
  keys: jax.Array | None,
) -> jax.Array:
  """Cuts whole videos or spectrograms [B, T, ...], with keys [B].

  Without keys it cuts the middle.
  """
  frames = crop.size[0]
  span = kind.span(frames)
  free = images.shape[1] - span
  if keys is None:
    images = images[:, free // 2 :]
  elif free:
    draws = jax.vmap(jax.random.uniform)(for_purpose(_TIME, keys))
    first = jnp.minimum((draws * (free + 1)).astype(jnp.int32), free)
    images = jax.vmap(
      lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, span, axis=0)
    )(images, first)
  images = images[:, : span : kind.stride]
  if images.ndim == 4:  # spectrograms
    return images
  batch, _, height, width, channels = images.shape
  # Frames as channels: [B, T, H, W, C] -> [B, H, W, T * C].
  folded = jnp.moveaxis(images, 1, 3).reshape(batch, height, width, -1)
  crop = geometry.frame_crop(crop)
  if keys is None:
    folded = crops.cut(folded, crop, None)
  else:
    folded = crops.random(folded, crop, keys)
  clips = folded.reshape(batch, *crop.size, frames, channels)
  return jnp.moveaxis(clips, 3, 1)
