"""Crops of images and maps of one size on the device, under jit.

The rules are the host's (`transforms.py`), with another filter for shrinking.
A map of classes is cropped as its image is, by the same keys, with
`geometry.for_map` of the image's crop.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.device import rng
from vit_jax.data.host import geometry
from vit_jax.data.host.geometry import Crop
from vit_jax.data.host.geometry import Size

# Purposes of random numbers from an example's key; the others are in views.py.
_BOX, _FLIP = range(2)


def random(images: jax.Array, crop: Crop, keys: jax.Array) -> jax.Array:
  """Crops images [B, h, w, C] at random; equal keys [B] give equal crops."""
  flips = None
  if crop.flip:
    flips = jax.vmap(lambda key: rng.uniform(key, _FLIP) < 0.5)(keys)
  if crop.kind == 'random_resized':
    size = images.shape[1], images.shape[2]
    sample = functools.partial(sample_box, size, crop)
    return resample(images, jax.vmap(sample)(keys), crop, flips)
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
    top, left = rng.corner(key, _BOX, size, crop.size)
    return jax.lax.dynamic_slice(image, (top, left, 0), crop_shape)

  return jax.vmap(cut_one)(images, keys)


def sample_box(size: Size, crop: Crop, key: jax.Array) -> jax.Array:
  """Draws a box of whole pixels, float32 [4], as `transforms.sample_box`."""
  draws = rng.uniform(key, _BOX, (2 * geometry.TRIES + 2,))
  areas, ratios = draws[: geometry.TRIES], draws[geometry.TRIES : -2]
  low, high = crop.scale
  areas = (low + (high - low) * areas) * (size[0] * size[1])
  low, high = np.log(crop.ratio)
  ratios = jnp.exp(low + (high - low) * ratios)
  sides = jnp.stack([jnp.sqrt(areas / ratios), jnp.sqrt(areas * ratios)])
  sides = jnp.round(sides)  # [2, TRIES]
  image_size = jnp.array(size, jnp.float32)
  fits = ((sides > 0) & (sides <= image_size[:, None])).all(axis=0)
  box = sides[:, jnp.argmax(fits)]
  corner = jnp.floor(draws[-2:] * (image_size - box + 1))
  corner = jnp.minimum(corner, image_size - box)
  largest = geometry.fallback(size, crop.ratio)
  in_middle = jnp.array([*geometry.middle(size, largest), *largest], box.dtype)
  return jnp.where(fits.any(), jnp.concatenate([corner, box]), in_middle)


def resample(
  images: jax.Array, boxes: jax.Array, crop: Crop, flips: jax.Array | None
) -> jax.Array:
  """Resizes boxes, float32 [B, 4], of images [B, h, w, C] to [B, H, W, C].

  `flips`, bool [B], says which results are mirrored left to right. Two small
  matrix products do this, which is far faster on CPUs than gathering pixels. Up
  to rounding, the result equals Pillow's `resize(box=...)` and
  `jax.image.scale_and_translate`: at the edge of a box, the pixels outside it
  take part in the smoothing.
  """
  weights = jax.vmap(_weights, (0, 0, None, None, None))
  top, left, height, width = boxes.T
  wy = weights(top, height, images.shape[1], crop.size[0], crop)
  wx = weights(left, width, images.shape[2], crop.size[1], crop)
  if flips is not None:
    wx = jnp.where(flips[:, None, None], wx[:, ::-1], wx)
  product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
  resized = images.astype(jnp.float32)
  if crop.interpolation == 'bicubic':  # as in Pillow, width first, then height
    most = jnp.iinfo(images.dtype).max
    resized = jnp.clip(product('bWw,bhwc->bhWc', wx, resized), 0, most)
    return jnp.clip(product('bHh,bhWc->bHWc', wy, resized), 0, most)
  resized = product('bHh,bhwc->bHwc', wy, resized)
  return product('bWw,bHwc->bHWc', wx, resized)


def _weights(
  start: jax.Array, length: jax.Array, in_size: int, out_size: int, crop: Crop
) -> jax.Array:
  """Returns weights of the pixels of one axis, float32 [out_size, in_size]."""
  step = length / out_size
  if crop.interpolation == 'nearest':
    nearest = jnp.floor(start + (jnp.arange(out_size) + 0.5) * step)
    nearest = jnp.minimum(nearest.astype(jnp.int32), in_size - 1)
    return jax.nn.one_hot(nearest, in_size)
  centers = start + (jnp.arange(out_size) + 0.5) * step - 0.5
  support = jnp.maximum(step, 1.0) if crop.antialias else 1.0
  x = jnp.abs(centers[:, None] - jnp.arange(in_size)) / support
  weights = jnp.maximum(0.0, 1.0 - x)
  if crop.interpolation == 'bicubic':  # Keys' kernel, a = -0.5
    inner_weights = (1.5 * x - 2.5) * x**2 + 1
    outer_weights = ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = jnp.where(
      x < 1, inner_weights, jnp.where(x < 2, outer_weights, 0.0)
    )
  return weights / weights.sum(axis=1, keepdims=True)
