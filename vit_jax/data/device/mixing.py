"""Mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899), under jit.

Each image is mixed with its neighbour: row r with row r ^ 1. An image's own key
decides how, so the result does not depend on how a batch is split into shards
and microbatches, as long as both rows of a pair stay together. In comments: B
images of H x W pixels.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from vit_jax.data import features as features_lib

Targets = dict[str, jax.Array]

# Purposes of random numbers from an image's key.
_CHOICES, _SHARE = range(2)


class Mix(NamedTuple):
  """Drawn parameters of mixing images with their neighbours."""

  # float32 [B], weight of an image's own pixels outside its box; the
  # neighbour's pixels have the remaining weight, and all of it in the box.
  share: jax.Array
  # int32 [B, 4]: top, left, bottom, right; the last two are exclusive.
  box: jax.Array


def mix_batch(
  batch: Mapping[str, jax.Array],
  features: features_lib.Features,
  keys: jax.Array,
  config: ml_collections.ConfigDict,
) -> dict[str, jax.Array]:
  """Returns a batch with mixed images and targets, as the full config says.

  Targets become float32 [B, K]: a label becomes one-hot of the model's classes,
  which may exceed the data's; numbers and multi-labels stay as they are.
  """
  targets = {}
  for name, x in features_lib.targets(features).items():
    if isinstance(x, features_lib.Label):
      targets[name] = jax.nn.one_hot(
        batch[name], config.model.num_classes, dtype=jnp.float32
      )
    else:
      targets[name] = batch[name].astype(jnp.float32)
  images, targets = mix(batch['image'], targets, keys, config.augment)
  return {**batch, 'image': images, **targets}


def mix(
  images: jax.Array,
  targets: Targets,
  keys: jax.Array,
  config: ml_collections.ConfigDict,
) -> tuple[jax.Array, Targets]:
  """Mixes images and targets as `draw` and `apply` say."""
  return apply(images, targets, draw(keys, images.shape[-3:-1], config))


def draw(
  keys: jax.Array, size: tuple[int, ...], config: ml_collections.ConfigDict
) -> Mix:
  """Draws how each image is mixed; `config.augment` has mixup or CutMix on."""
  cutmix_share = config.cutmix_share
  if not (config.mixup and config.cutmix):
    cutmix_share = float(bool(config.cutmix))

  def draw_one(key: jax.Array) -> Mix:
    choices = jax.random.uniform(jax.random.fold_in(key, _CHOICES), (4,))
    is_mixed = choices[0] < config.mix_probability
    is_cut = choices[1] < cutmix_share
    alpha = jnp.where(is_cut, config.cutmix, config.mixup)
    share = jax.random.beta(jax.random.fold_in(key, _SHARE), alpha, alpha)
    share = jnp.where(is_mixed, share, 1.0)
    return Mix(
      jnp.where(is_cut, 1.0, share),
      cut_box(size, jnp.where(is_cut, share, 1.0), choices[2:]),
    )

  return jax.vmap(draw_one)(keys)


def cut_box(
  size: tuple[int, ...], share: jax.Array, middle: jax.Array
) -> jax.Array:
  """Returns the box that CutMix takes from the neighbour, int32 [4].

  As in the authors' code, the box may reach beyond the image and is clipped.
  `share` is the fraction of the image to keep before that; `middle`, float32
  [2], is the centre as fractions of height and width.
  """
  image_size = jnp.array(size, jnp.int32)
  sides = (image_size * jnp.sqrt(1 - share)).astype(jnp.int32)
  center = (image_size * middle).astype(jnp.int32)
  low, high = center - sides // 2, center + sides // 2
  return jnp.concatenate([jnp.maximum(low, 0), jnp.minimum(high, image_size)])


def apply(
  images: jax.Array, targets: Targets, mix: Mix
) -> tuple[jax.Array, Targets]:
  """Mixes images, float32 [B, ..., H, W, C], and targets, float32 [B, K].

  B is even. The weight of a target is exactly the share of its image's pixels,
  after the box is clipped.
  """
  height, width = images.shape[-3:-1]
  top, left, bottom, right = (x[:, None] for x in mix.box.T)
  y, x = jnp.arange(height), jnp.arange(width)
  in_rows = (y >= top) & (y < bottom)  # [B, H]
  in_columns = (x >= left) & (x < right)  # [B, W]
  is_cut = in_rows[:, :, None] & in_columns[:, None, :]
  own_weight = jnp.where(is_cut, 0.0, mix.share[:, None, None])[..., None]
  if images.ndim == 5:  # all frames of a clip alike
    own_weight = own_weight[:, None]
  area = in_rows.sum(axis=1) * in_columns.sum(axis=1)
  own_target = (mix.share * (1 - area / (height * width)))[:, None]
  return (
    own_weight * images + (1 - own_weight) * neighbours(images),
    {
      name: own_target * x + (1 - own_target) * neighbours(x)
      for name, x in targets.items()
    },
  )


def neighbours(rows: jax.Array) -> jax.Array:
  """Returns [B, ...] with the rows of each pair exchanged, without a gather."""
  pairs = rows.reshape(-1, 2, *rows.shape[1:])
  return pairs[:, ::-1].reshape(rows.shape)
