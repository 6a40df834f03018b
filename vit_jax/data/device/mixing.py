"""Mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899), under jit.

Each image is mixed with its neighbour's: row r with row r ^ 1. How, it draws
from its own key, so that nothing depends on how a batch is cut, as long as
both rows of a pair stay together. In comments: B images of H x W pixels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

# What the key of an image is used for.
_CHOICES, _SHARE = range(2)


class Mix(NamedTuple):
  """How images are mixed with their neighbours.

  Attributes:
    share: float32 [B], of an image's own pixels outside its box; the rest of
      each pixel, and all within the box, is the neighbour's.
    box: int32 [B, 4]: top, left, bottom, right; the last two are beyond it.
  """

  share: jax.Array
  box: jax.Array


def is_on(config: ml_collections.ConfigDict) -> bool:
  """Whether `config.augment` says to mix images."""
  return bool(config.mixup or config.cutmix) and config.mix_probability > 0


def mix(
  images: jax.Array,
  labels: jax.Array,
  keys: jax.Array,
  num_classes: int,
  config: ml_collections.ConfigDict,
) -> tuple[jax.Array, jax.Array]:
  """Mixes images and labels with their neighbours'.

  Args:
    images: float32 [B, H, W, C], B even.
    labels: int32 [B].
    keys: [B], of the images.
    num_classes: Classes of the mixed labels.
    config: `config.augment`.

  Returns:
    Images, float32 [B, H, W, C], and the shares of the classes in them,
    float32 [B, num_classes].
  """
  how = draw(keys, images.shape[1:3], config)
  return apply(images, labels, how, num_classes)


def draw(
  keys: jax.Array, size: tuple[int, ...], config: ml_collections.ConfigDict
) -> Mix:
  """Draws how each image is mixed.

  Args:
    keys: [B], of the images.
    size: (H, W).
    config: `config.augment`, where one of the two is on.
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
  """Returns the box that CutMix takes from the neighbour, as its authors do.

  Args:
    size: (H, W).
    share: float32 scalar, of the image that is to stay; at its border the box
      is cut off, and more stays.
    middle: float32 [2], of the box, as fractions of the height and the width.

  Returns:
    int32 [4], as `Mix.box`.
  """
  whole = jnp.array(size, jnp.int32)
  sides = (whole * jnp.sqrt(1 - share)).astype(jnp.int32)
  center = (whole * middle).astype(jnp.int32)
  low, high = center - sides // 2, center + sides // 2
  return jnp.concatenate([jnp.maximum(low, 0), jnp.minimum(high, whole)])


def apply(
  images: jax.Array, labels: jax.Array, how: Mix, num_classes: int
) -> tuple[jax.Array, jax.Array]:
  """Mixes images and labels in a way that is given.

  Args:
    images: float32 [B, H, W, C], B even.
    labels: int32 [B].
    how: Drawn by `draw`.
    num_classes: Classes of the mixed labels.

  Returns:
    As `mix`. A label's share is that of its image's pixels, exactly.
  """
  _, height, width, _ = images.shape
  top, left, bottom, right = (x[:, None] for x in how.box.T)
  y, x = jnp.arange(height), jnp.arange(width)
  in_rows = (y >= top) & (y < bottom)  # [B, H]
  in_columns = (x >= left) & (x < right)  # [B, W]
  is_cut = in_rows[:, :, None] & in_columns[:, None, :]
  own = jnp.where(is_cut, 0.0, how.share[:, None, None])[..., None]
  area = in_rows.sum(axis=1) * in_columns.sum(axis=1)
  own_label = (how.share * (1 - area / (height * width)))[:, None]
  shares = jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)
  return (
    own * images + (1 - own) * neighbours(images),
    own_label * shares + (1 - own_label) * neighbours(shares),
  )


def neighbours(rows: jax.Array) -> jax.Array:
  """Returns [B, ...] with the rows of each pair exchanged: no gather."""
  pairs = rows.reshape(-1, 2, *rows.shape[1:])
  return pairs[:, ::-1].reshape(rows.shape)
