"""Crops of images and maps of one size on the device, under jit.

The rules are the host's (`transforms.py`), with another filter for shrinking.
A map of classes is cropped as its image is, by the same keys, with
`geometry.for_map` of the image's crop.
"""

import functools

import jax
import jax.numpy as jnp

from vit_jax import config as config_lib
from vit_jax.data.device import rng
from vit_jax.data.host import geometry
from vit_jax.data.host.geometry import Crop

# Purposes of random numbers from an example's key; the others are in views.py.
BOX, _FLIP = range(2)


def random(images: jax.Array, crop: Crop, keys: jax.Array) -> jax.Array:
  """Crops images [B, h, w, C] at random; equal keys [B] give equal crops."""
  flips = None
  if crop.flip:
    flips = jax.vmap(lambda key: rng.uniform(key, _FLIP) < 0.5)(keys)
  if crop.kind == 'random_resized':
    size = images.shape[1], images.shape[2]
    boxes = config_lib.wing('vit_jax.data.device.boxes')
    sample = functools.partial(boxes.sample_box, size, crop)
    return boxes.resample(images, jax.vmap(sample)(keys), crop, flips)
  images = cut(images, crop, keys)
  if flips is not None:
    images = jnp.where(flips[:, None, None, None], images[:, :, ::-1], images)
  return images


def _resize(images: jax.Array, crop: Crop) -> jax.Array:
  """Resizes images [B, h, w, C] to the size that `crop` is cut from."""
  batch, height, width, channels = images.shape
  size = crop.resized((height, width))
  if size == (height, width):
    return images
  scale = functools.partial(
    jax.image.resize,
    antialias=crop.antialias,
    precision=jax.lax.Precision.HIGHEST,
  )
  if crop.interpolation == 'nearest':
    return jax.image.resize(images, (batch, *size, channels), 'nearest')
  resized = images.astype(jnp.float32)
  if crop.interpolation == 'bicubic':  # as in Pillow, width first, then height
    most = jnp.iinfo(images.dtype).max
    for shape in (height, size[1]), size:
      resized = scale(resized, (batch, *shape, channels), 'cubic')
      resized = jnp.clip(resized, 0, most)
    return resized
  return scale(resized, (batch, *size, channels), 'linear')


def cut(images: jax.Array, crop: Crop, keys: jax.Array | None) -> jax.Array:
  """Resizes, pads and crops images [B, h, w, C]; without keys in the middle."""
  images = _resize(images, crop)
  batch, height, width, channels = images.shape
  (top, bottom), (left, right) = geometry.padding((height, width), crop)
  if top + bottom + left + right:
    shape = batch, top + height + bottom, left + width + right, channels
    padded = jnp.broadcast_to(jnp.asarray(crop.fill, images.dtype), shape)
    place = slice(top, top + height), slice(left, left + width)
    images = padded.at[:, *place].set(images)
  size = images.shape[1], images.shape[2]
  if size == crop.size:
    return images
  crop_shape = *crop.size, channels
  if keys is None or crop.kind == 'center':
    top, left = geometry.middle(size, crop.size, crop.resize_like)
    return images[:, top : top + crop.size[0], left : left + crop.size[1]]

  def cut_one(image: jax.Array, key: jax.Array) -> jax.Array:
    top, left = rng.corner(key, BOX, size, crop.size)
    return jax.lax.dynamic_slice(image, (top, left, 0), crop_shape)

  return jax.vmap(cut_one)(images, keys)
