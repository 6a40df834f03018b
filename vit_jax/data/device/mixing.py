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
  """Drawn parameters of mixing images with their neighbours.

  Attributes:
    share: float32 [B], weight of an image's own pixels outside its box; the
      neighbour's pixels have the remaining weight, and all of it in the box.
    box: int32 [B, 4]: top, left, bottom, right; the last two are exclusive.
  """

  share: jax.Array
  box: jax.Array


def shares(
  batch: Mapping[str, jax.Array],
  features: features_lib.Features,
  num_classes: int,
) -> Targets:
  """Returns the targets of a batch in a form that can be mixed, float32 [B, K].

  A label becomes one-hot; numbers and multi-labels stay as they are.

  Args:
    batch: A batch, whose targets are encoded by their features, [B, ...].
    features: Features of the examples.
    num_classes: Number of the model's classes, which may exceed the data's.
  """
  return {
    name: jax.nn.one_hot(batch[name], num_classes, dtype=jnp.float32)
    if isinstance(x, features_lib.Label)
    else batch[name].astype(jnp.float32)
    for name, x in features_lib.targets(features).items()
  }


def mix(
  images: jax.Array,
  targets: Targets,
  keys: jax.Array,
  config: ml_collections.ConfigDict,
) -> tuple[jax.Array, Targets]:
  """Mixes images and targets as `draw` and `apply` say."""
  return apply(images, targets, draw(keys, images.shape[1:3], config))


def draw(
  keys: jax.Array, size: tuple[int, ...], config: ml_collections.ConfigDict
) -> Mix:
  """Draws how each image is mixed.

  Args:
    keys: [B], of the images.
    size: (H, W).
    config: `config.augment`, with mixup or CutMix on.
  """
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
  """Returns the box that CutMix takes from the neighbour.

  As in the authors' code, the box may reach beyond the image and is clipped.

  Args:
    size: (H, W).
    share: float32 scalar, fraction of the image to keep, before clipping.
    middle: float32 [2], centre of the box, as fractions of height and width.

  Returns:
    int32 [4], as `Mix.box`.
  """
  image_size = jnp.array(size, jnp.int32)
  sides = (image_size * jnp.sqrt(1 - share)).astype(jnp.int32)
  center = (image_size * middle).astype(jnp.int32)
  low, high = center - sides // 2, center + sides // 2
  return jnp.concatenate([jnp.maximum(low, 0), jnp.minimum(high, image_size)])


def apply(
  images: jax.Array, targets: Targets, mix: Mix
) -> tuple[jax.Array, Targets]:
  """Mixes images and targets as drawn.

  Args:
    images: float32 [B, H, W, C], B even.
    targets: float32 [B, K] each, from `shares`.
    mix: Result of `draw`.

  Returns:
    Images, float32 [B, H, W, C], and the mixed targets. The weight of a target
    is exactly the share of its image's pixels, after the box is clipped.
  """
  _, height, width, _ = images.shape
  top, left, bottom, right = (x[:, None] for x in mix.box.T)
  y, x = jnp.arange(height), jnp.arange(width)
  in_rows = (y >= top) & (y < bottom)  # [B, H]
  in_columns = (x >= left) & (x < right)  # [B, W]
  is_cut = in_rows[:, :, None] & in_columns[:, None, :]
  own_weight = jnp.where(is_cut, 0.0, mix.share[:, None, None])[..., None]
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
