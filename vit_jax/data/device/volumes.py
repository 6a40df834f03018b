"""Crops and changes volumes and their maps on the device, under jit.

A crop, mirroring and turns apply to a volume and its maps alike; intensities
change last. In comments: B volumes, [D, H, W] places of a stored volume, C
channels.
"""

from collections.abc import Callable
from collections.abc import Mapping
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import features as features_lib
from vit_jax.data.device import rng as rng_lib
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib

# Purposes of random numbers from an example's key.
_CORNER, _PLACE, _CENTRED, _FLIP, _TURN, _QUARTERS, _INTENSITY = range(7)

Batch = dict[str, jax.Array]


def train_transform(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  normalize: Callable[[jax.Array], jax.Array],
  views: Mapping[str, geometry.View],
) -> Callable[[Batch, Rng], Batch]:
  """Returns a function that prepares a batch, as `views.train_transform`.

  It gives float32 volumes [B, d, h, w, C], crops of `data.image_size`, and
  int32 maps of the same places [B, d, h, w].
  """
  del views  # a volume has one crop
  volume_config, levels = config.augment.volume, levels_lib.from_config(config)
  size = config_lib.sides(config.data.image_size)
  maps = features_lib.maps(features)

  def transform_one(
    volume: jax.Array, labels: dict[str, jax.Array], key: jax.Array
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    volume_size = volume.shape[:-1]
    corner = rng_lib.corner(key, _CORNER, volume_size, size)
    # A volume of the size of the crop was cut by the host.
    if volume_config.foreground and labels and volume_size != size:
      name = next(iter(labels))
      foreground_corner = _near_foreground(
        key, labels[name], maps[name].ignore, size
      )
      chosen = rng_lib.uniform(key, _CENTRED) < volume_config.foreground
      corner = jnp.where(chosen, foreground_corner, corner)
    move = _moves(volume_config, key, corner, size)
    factor, offset = 2 * rng_lib.uniform(key, _INTENSITY, (2,)) - 1
    volume = levels.scale(move(volume)) * (1 + volume_config.scale * factor)
    volume += volume_config.shift * offset
    return volume, {name: move(x) for name, x in labels.items()}

  def transform(batch: Batch, rng: Rng) -> Batch:
    labels = {name: batch[name].astype(jnp.int32) for name in maps}
    volumes, labels = jax.vmap(transform_one)(
      batch['image'], labels, rng.per_row()
    )
    return batch | {'image': normalize(volumes)} | labels

  return transform


def eval_cut(
  volumes: jax.Array, crop: geometry.Crop, kind: features_lib.Image
) -> jax.Array:
  """Returns volumes, or maps of them, as they are: whole."""
  del crop, kind
  return volumes


def _near_foreground(
  key: jax.Array, labels: jax.Array, ignore: int, size: tuple[int, ...]
) -> jax.Array:
  """Returns the first place of a crop around a foreground place, int32 [3].

  All places of the labels, int32 [D, H, W], that have a class other than 0 are
  equally likely; without any, all places are.
  """
  is_foreground = ((labels != 0) & (labels != ignore)).ravel()
  is_foreground |= ~is_foreground.any()
  count = jnp.cumsum(is_foreground)
  rank = jnp.floor(rng_lib.uniform(key, _PLACE) * count[-1]) + 1
  place = jnp.searchsorted(count, jnp.minimum(rank, count[-1]))
  middle = jnp.stack(jnp.unravel_index(place, labels.shape))
  free = jnp.array(labels.shape) - jnp.array(size)
  return jnp.clip(middle - jnp.array(size) // 2, 0, free).astype(jnp.int32)


def _moves(
  volume_config: Mapping[str, Any],
  key: jax.Array,
  corner: jax.Array,
  size: tuple[int, ...],
) -> Callable[[jax.Array], jax.Array]:
  """Returns the crop, mirroring and turns of a volume or map [D, H, W, ...]."""
  flips = rng_lib.uniform(key, _FLIP, (3,)) < volume_config['flip']
  pairs = itertools.combinations(range(3), 2)
  planes = [(i, j) for i, j in pairs if size[i] == size[j]]
  turned = rng_lib.uniform(key, _TURN, (3,)) < volume_config['turn']
  quarters = jax.random.randint(jax.random.fold_in(key, _QUARTERS), (3,), 1, 4)
  quarters = jnp.where(turned, quarters, 0)

  def move(x: jax.Array) -> jax.Array:
    channel_shape = x.shape[3:]
    start = *corner, *(0,) * len(channel_shape)
    x = jax.lax.dynamic_slice(x, start, (*size, *channel_shape))
    if volume_config['flip']:
      for axis in range(3):
        x = jnp.where(flips[axis], jnp.flip(x, axis), x)
    if volume_config['turn']:
      for i, plane in enumerate(planes):
        turns = [jnp.rot90(x, k, plane) for k in range(4)]
        x = jax.lax.select_n(quarters[i], *turns)
    return x

  return move
