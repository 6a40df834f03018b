"""What happens to a batch on the device, under jit.

Images that all have one size come as they are stored and are cropped here, by
the rules of the host's crops (`transforms.py`), which shrink with another
filter; images that differ in size come cropped. Then, for training, as
`config.augment` says: a policy and a jitter of colours, both of whole grey
levels (so that only where there is one a crop that interpolates is rounded, and
that images of 16 bits, or with a window, come to it as 8 bits of what is within
the window); scaling and normalisation; erasing; mixing with the neighbour in
the batch.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import itertools

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.data import features as features_lib
from vit_jax.data.device import erasing
from vit_jax.data.device import mixing
from vit_jax.data.device import operations
from vit_jax.data.device import policies
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host.geometry import Crop
from vit_jax.data.host.geometry import Size

# What a random key of an example is used for.
_BOX, _FLIP, _POLICY, _JITTER, _ERASE, _MIX, _CROPS = range(7)

Batch = dict[str, jax.Array]
TrainTransform = Callable[[Batch, Rng], Batch]
EvalTransform = Callable[[jax.Array], jax.Array]
# (images [B, H, W, C], keys [B]) -> images.
_Augmentation = Callable[[jax.Array, jax.Array], jax.Array]


def train_transform(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  views: Mapping[str, geometry.View] | None = None,
) -> TrainTransform:
  """Returns what prepares a batch for training.

  Args:
    config: The full config; with the number of classes, where images are mixed.
    features: What the examples have.
    views: Crops of the image, by name; None: one, as `config.data` says.

  Returns:
    A function of a batch from the host and what is random about it to the batch
    with float32 images by the names of the views, [B, H, W, C] or
    [B, count, H, W, C]. Where images are mixed, their targets are, too: a label
    becomes the shares of the classes, float32 [B, classes]; then B is even, and
    rows 2i and 2i + 1 of the global batch follow each other. What it does to an
    example depends on the key and its row alone.

  Raises:
    UserError: Images are to be mixed, and there are several views.
  """
  views = views or {'image': geometry.View(geometry.train_crop(config))}
  mixes = mixing.is_on(config.augment)
  if mixes and (list(views) != ['image'] or views['image'].count is not None):
    raise config_lib.UserError(
      'config.augment.mixup and config.augment.cutmix mix single crops, but'
      f' config.objective.name={config.objective.name} takes several of an'
      ' image: set both to 0'
    )
  image = features['image']
  assert isinstance(image, features_lib.Image)
  one = _train_one(config, is_stored_whole=image.size is not None)

  def transform(batch: Batch, rng: Rng) -> Batch:
    keys, crops = rng.per_row(), itertools.count()
    result = {k: x for k, x in batch.items() if k not in ('image', *views)}
    for name, view in views.items():
      made = []
      for i in range(view.count or 1):
        number = next(crops)
        own = _for(_CROPS + number, keys) if number else keys
        images = batch['image'] if image.size is not None else batch[name]
        if image.size is None and view.count is not None:
          images = images[:, i]
        made.append(one(images, view.crop, own))
      result[name] = made[0] if view.count is None else jnp.stack(made, axis=1)
    if not mixes:
      return result
    targets = mixing.shares(result, features, config.model.num_classes)
    result['image'], targets = mixing.mix(
      result['image'], targets, _for(_MIX, keys), config.augment
    )
    return result | targets

  return transform


def _train_one(
  config: ml_collections.ConfigDict, is_stored_whole: bool
) -> Callable[[jax.Array, Crop, jax.Array], jax.Array]:
  """Returns what makes one view: (images, crop, keys [B]) -> images."""
  augment = config.augment
  recolor = _recolor(augment, levels_lib.of(config))
  normalize = _normalize(config)

  def one(images: jax.Array, crop: Crop, keys: jax.Array) -> jax.Array:
    if is_stored_whole:
      images = _crop(images, crop, keys)
    images = normalize(recolor(images, keys))
    if not augment.erase:
      return images
    return erasing.erase(
      images,
      _for(_ERASE, keys),
      augment.erase,
      tuple(augment.erase_area),
      tuple(augment.erase_ratio),
    )

  return one


def eval_transform(
  config: ml_collections.ConfigDict, image_shape: Size | None
) -> EvalTransform:
  """Returns what prepares images for evaluation.

  Args:
    config: The full config.
    image_shape: (height, width) of the source, None where images differ.

  Returns:
    A function of images (uint8 or uint16 [B, h, w, C]) to float32
    [B, H, W, C].
  """
  normalize, levels = _normalize(config), levels_lib.of(config)
  crop = geometry.eval_crop(config)

  def transform(images: jax.Array) -> jax.Array:
    if image_shape is not None:
      images = _cut(_resize(images, crop), crop, None)
    return normalize(levels.scale(images))

  return transform


def _recolor(
  augment: ml_collections.ConfigDict, levels: levels_lib.Levels
) -> _Augmentation:
  """Returns policy and jitter, of stored values; gives float32 in [0, 1]."""
  steps: list[tuple[int, _Augmentation]] = []
  if augment.policy:
    steps.append((_POLICY, policies.make(augment.policy)))
  if augment.jitter:
    strengths = tuple(augment.jitter)
    jitter = functools.partial(operations.jitter, strengths=strengths)
    steps.append((_JITTER, jitter))

  def recolor(images: jax.Array, keys: jax.Array) -> jax.Array:
    if not steps:
      return levels.scale(images)
    if not levels.is_plain:
      images = jnp.round(levels.scale(images) * 255).astype(jnp.uint8)
    elif images.dtype != jnp.uint8:  # interpolated, 0 to 255
      images = jnp.round(images).astype(jnp.uint8)
    for purpose, change in steps:
      images = change(images, _for(purpose, keys))
    return levels_lib.EIGHT_BITS.scale(images)

  return recolor


def _for(purpose: int, keys: jax.Array) -> jax.Array:
  """Returns the keys [B] of examples for one purpose."""
  return jax.vmap(lambda key: jax.random.fold_in(key, purpose))(keys)


def _normalize(config: ml_collections.ConfigDict) -> EvalTransform:
  # Not as arrays of JAX: the functions may outlive a mesh.
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(config)
  )

  def normalize(images: jax.Array) -> jax.Array:
    return (images - mean) / std

  return normalize


def _crop(images: jax.Array, crop: Crop, keys: jax.Array) -> jax.Array:
  """Cuts images of one size, [B, h, w, C], at random."""
  flips = None
  if crop.flip:
    flips = jax.vmap(lambda key: _uniform(key, _FLIP, ()) < 0.5)(keys)
  if crop.kind == 'random_resized':
    size = images.shape[1], images.shape[2]
    sample = functools.partial(sample_box, size, crop)
    return resample(images, jax.vmap(sample)(keys), crop, flips)
  images = _cut(_resize(images, crop), crop, keys)
  if flips is not None:
    images = jnp.where(flips[:, None, None, None], images[:, :, ::-1], images)
  return images


def _uniform(key: jax.Array, purpose: int, shape: tuple[int, ...]) -> jax.Array:
  return jax.random.uniform(jax.random.fold_in(key, purpose), shape)


def _resize(images: jax.Array, crop: Crop) -> jax.Array:
  """Resizes images [B, h, w, C] to what `crop` is cut from."""
  batch, height, width, channels = images.shape
  size = crop.resized((height, width))
  if size == (height, width):
    return images
  resize = functools.partial(
    jax.image.resize,
    antialias=crop.antialias,
    precision=jax.lax.Precision.HIGHEST,
  )
  resized = images.astype(jnp.float32)
  if crop.interpolation == 'bicubic':  # as Pillow: first the columns
    most = jnp.iinfo(images.dtype).max
    for shape in (height, size[1]), size:
      resized = resize(resized, (batch, *shape, channels), 'cubic')
      resized = jnp.clip(resized, 0, most)
    return resized
  return resize(resized, (batch, *size, channels), 'linear')


def _cut(images: jax.Array, crop: Crop, keys: jax.Array | None) -> jax.Array:
  """Pads images [B, h, w, C] and cuts them, at random or in the middle."""
  pad = (crop.pad, crop.pad)
  images = jnp.pad(images, ((0, 0), pad, pad, (0, 0)))
  size = images.shape[1], images.shape[2]
  if size == crop.size:
    return images
  shape = (*crop.size, images.shape[-1])
  if keys is None or crop.kind == 'center':
    top, left = geometry.middle(size, crop.size, crop.resize_like)
    return images[:, top : top + shape[0], left : left + shape[1]]

  def cut_one(image: jax.Array, key: jax.Array) -> jax.Array:
    free = jnp.array(size) - jnp.array(crop.size)
    offsets = _uniform(key, _BOX, (2,)) * (free + 1)
    top, left = jnp.minimum(offsets.astype(jnp.int32), free)
    return jax.lax.dynamic_slice(image, (top, left, 0), shape)

  return jax.vmap(cut_one)(images, keys)


def sample_box(size: Size, crop: Crop, key: jax.Array) -> jax.Array:
  """Draws a crop of random area and ratio, as `transforms.sample_box` does.

  Args:
    size: (height, width) of the image.
    crop: Has the ranges of area and ratio.
    key: Of the example.

  Returns:
    float32 [4]: top, left, height, width, in whole pixels.
  """
  draws = _uniform(key, _BOX, (2 * geometry.TRIES + 2,))
  areas, ratios = draws[: geometry.TRIES], draws[geometry.TRIES : -2]
  low, high = crop.scale
  areas = (low + (high - low) * areas) * (size[0] * size[1])
  low, high = np.log(crop.ratio)
  ratios = jnp.exp(low + (high - low) * ratios)
  sides = jnp.stack([jnp.sqrt(areas / ratios), jnp.sqrt(areas * ratios)])
  sides = jnp.round(sides)  # [2, TRIES]
  whole = jnp.array(size, jnp.float32)
  fits = ((sides > 0) & (sides <= whole[:, None])).all(axis=0)
  box = sides[:, jnp.argmax(fits)]
  offsets = jnp.floor(draws[-2:] * (whole - box + 1))
  offsets = jnp.minimum(offsets, whole - box)
  largest = geometry.fallback(size, crop.ratio)
  in_middle = jnp.array([*geometry.middle(size, largest), *largest], box.dtype)
  return jnp.where(fits.any(), jnp.concatenate([offsets, box]), in_middle)


def resample(
  images: jax.Array, boxes: jax.Array, crop: Crop, flips: jax.Array | None
) -> jax.Array:
  """Resizes a box of each image.

  Two small matrix products: on CPU far quicker than gathering pixels. The
  same as `jax.image.scale_and_translate` and as Pillow's `resize(box=...)`,
  but for rounding: the edge of a box is smoothed with what lies beyond it.

  Args:
    images: [B, h, w, C].
    boxes: float32 [B, 4]: top, left, height, width, within the images.
    crop: Has the size of the result, and how it is interpolated.
    flips: bool [B], which results are mirrored left to right; None: none is.

  Returns:
    float32 [B, H, W, C].
  """
  weights = jax.vmap(_weights, (0, 0, None, None, None))
  top, left, height, width = boxes.T
  wy = weights(top, height, images.shape[1], crop.size[0], crop)
  wx = weights(left, width, images.shape[2], crop.size[1], crop)
  if flips is not None:
    wx = jnp.where(flips[:, None, None], wx[:, ::-1], wx)
  product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
  resized = images.astype(jnp.float32)
  if crop.interpolation == 'bicubic':  # as Pillow: first the columns
    most = jnp.iinfo(images.dtype).max
    resized = jnp.clip(product('bWw,bhwc->bhWc', wx, resized), 0, most)
    return jnp.clip(product('bHh,bhWc->bHWc', wy, resized), 0, most)
  resized = product('bHh,bhwc->bHwc', wy, resized)
  return product('bWw,bHwc->bHWc', wx, resized)


def _weights(
  start: jax.Array,
  length: jax.Array,
  in_size: int,
  out_size: int,
  crop: Crop,
) -> jax.Array:
  """Returns float32 [out_size, in_size]: how much each pixel counts."""
  step = length / out_size
  centers = start + (jnp.arange(out_size) + 0.5) * step - 0.5
  support = jnp.maximum(step, 1.0) if crop.antialias else 1.0
  x = jnp.abs(centers[:, None] - jnp.arange(in_size)) / support
  weights = jnp.maximum(0.0, 1.0 - x)
  if crop.interpolation == 'bicubic':  # Keys' kernel, a = -0.5
    near = (1.5 * x - 2.5) * x**2 + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = jnp.where(x < 1, near, jnp.where(x < 2, far, 0.0))
  return weights / weights.sum(axis=1, keepdims=True)
