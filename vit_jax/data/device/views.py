"""Crops, augments and normalises batches on the device, under jit.

If all images have one size, they arrive as stored and are cropped here, by the
same rules as on the host (`transforms.py`) but with another filter for
shrinking. Otherwise they arrive cropped. In training, `config.augment` adds:

 1. a policy, colour jitter, grey, blur and solarization. They need whole grey
    levels. Only for them is an interpolated crop rounded, and an image of 16
    bits or with an intensity window reduced to 8 bits;
 2. scaling and normalisation;
 3. erasing;
 4. mixing with the neighbour in the batch.
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

# Purposes of random numbers from an example's key.
_BOX, _FLIP, _POLICY, _JITTER, _ERASE, _MIX, _SOMETIMES = range(7)
_CROPS = 6  # plus the number of a crop, from 1; crop 0 has the example's key

# Keys of `config.augment` with a probability for each crop, and the operations
# that they apply, in this order.
_BY_CROP = {
  'gray': 'grayscale',
  'blur': 'gaussian_blur',
  'solarize': 'solarize',
}

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
  """Returns a function that prepares a batch for training.

  It maps a batch from the host and its `Rng` to a batch with the float32 images
  of each view, [B, H, W, C] or [B, count, H, W, C], by name. The augmentation
  of an example depends only on the key and its row. If images are mixed, so are
  their targets: a label becomes weights of the classes, float32 [B, classes].
  Then B must be even, and rows 2i and 2i + 1 of the global batch must be
  adjacent.

  Args:
    config: The full config. Mixing needs its number of classes.
    features: Features of the examples.
    views: Crops of the image, by name; None: one view, as `config.data` says.

  Raises:
    UserError: The config mixes images, and there are several views; or it has
      probabilities for more crops than there are.
  """
  views = views or geometry.train_views(config)
  mixes = mixing.is_on(config.augment)
  _check_probabilities(config, sum(view.count or 1 for view in views.values()))
  if mixes:
    _check_is_single(config, views)
  image = features['image']
  assert isinstance(image, features_lib.Image)
  augment = _augment(config, views, is_stored_whole=image.size is not None)

  def transform(batch: Batch, rng: Rng) -> Batch:
    keys = rng.per_row()
    result = {k: x for k, x in batch.items() if k not in ('image', *views)}
    result |= augment(batch, keys)
    if not mixes:
      return result
    targets = mixing.shares(result, features, config.model.num_classes)
    result['image'], targets = mixing.mix(
      result['image'], targets, _for(_MIX, keys), config.augment
    )
    return result | targets

  return transform


def _check_is_single(
  config: ml_collections.ConfigDict, views: Mapping[str, geometry.View]
) -> None:
  """Raises a UserError if there are several crops, which cannot be mixed."""
  if list(views) != ['image'] or views['image'].count is not None:
    raise config_lib.UserError(
      'config.augment.mixup and config.augment.cutmix mix single crops, but'
      f' config.objective.name={config.objective.name} takes several of an'
      ' image: set both to 0'
    )


def _check_probabilities(config: ml_collections.ConfigDict, crops: int) -> None:
  """Raises a UserError if there are fewer crops than probabilities."""
  for key in _BY_CROP:
    given = tuple(config.augment[key])
    if len(given) > crops:
      raise config_lib.UserError(
        f'config.augment.{key} is {given}, of {len(given)} crops, but'
        f' config.objective.name={config.objective.name} takes {crops} of an'
        ' image: give at most one probability for each'
      )


def _augment(
  config: ml_collections.ConfigDict,
  views: Mapping[str, geometry.View],
  is_stored_whole: bool,
) -> Callable[[Batch, jax.Array], Batch]:
  """Returns a function: (batch, keys [B]) -> images of all views, by name."""
  one = _train_one(config, is_stored_whole)

  def augment(batch: Batch, keys: jax.Array) -> Batch:
    result, crops = {}, itertools.count()
    for name, view in views.items():
      made = []
      for i in range(view.count or 1):
        number = next(crops)
        # The first crop's keys are the same with and without other crops.
        own = _for(_CROPS + number, keys) if number else keys
        images = batch['image' if is_stored_whole else name]
        if not is_stored_whole and view.count is not None:
          images = images[:, i]
        made.append(one(images, view.crop, own, number))
      result[name] = made[0] if view.count is None else jnp.stack(made, axis=1)
    return result

  return augment


def _train_one(
  config: ml_collections.ConfigDict, is_stored_whole: bool
) -> Callable[[jax.Array, Crop, jax.Array, int], jax.Array]:
  """Returns a function: (images, crop, keys, number of the crop) -> images."""
  augment = config.augment
  levels, normalize = levels_lib.from_config(config), _normalize(config)

  def one(
    images: jax.Array, crop: Crop, keys: jax.Array, number: int
  ) -> jax.Array:
    if is_stored_whole:
      images = _crop(images, crop, keys)
    images = normalize(_recolor(augment, levels, number)(images, keys))
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
  """Returns a function that prepares images for evaluation.

  It maps images (uint8 or uint16 [B, h, w, C]) to float32 [B, H, W, C].

  Args:
    config: The full config.
    image_shape: (height, width) of all stored images; None: sizes differ, and
      images arrive cropped.
  """
  normalize, levels = _normalize(config), levels_lib.from_config(config)
  crop = geometry.eval_crop(config)

  def transform(images: jax.Array) -> jax.Array:
    if image_shape is not None:
      images = _cut(_resize(images, crop), crop, None)
    return normalize(levels.scale(images))

  return transform


def _recolor(
  augment: ml_collections.ConfigDict, levels: levels_lib.Levels, number: int
) -> _Augmentation:
  """Returns the changes of colours of a crop.

  They map stored values to float32 in [0, 1].

  Args:
    augment: `config.augment`.
    levels: How values are stored.
    number: Number of the crop among all views, from 0.
  """
  steps: list[tuple[int, _Augmentation]] = []
  if augment.policy:
    steps.append((_POLICY, policies.make(augment.policy)))
  if augment.jitter:
    strengths = tuple(augment.jitter)
    jitter = functools.partial(
      operations.jitter,
      strengths=strengths,
      probability=augment.jitter_probability,
    )
    steps.append((_JITTER, jitter))
  if any(_probabilities(augment, number).values()):
    steps.append((_SOMETIMES, _sometimes(_probabilities(augment, number))))

  def recolor(images: jax.Array, keys: jax.Array) -> jax.Array:
    if not steps:
      return levels.scale(images)
    if not levels.is_plain:
      images = jnp.round(levels.scale(images) * 255).astype(jnp.uint8)
    elif images.dtype != jnp.uint8:  # interpolated values in [0, 255]
      images = jnp.round(images).astype(jnp.uint8)
    for purpose, change in steps:
      images = change(images, _for(purpose, keys))
    return levels_lib.EIGHT_BITS.scale(images)

  return recolor


def _probabilities(
  augment: ml_collections.ConfigDict, number: int
) -> dict[str, float]:
  """Returns the probabilities of operations for a crop, by their names."""
  found = {}
  for key, name in _BY_CROP.items():
    given = tuple(augment[key]) or (0.0,)
    found[name] = given[min(number, len(given) - 1)]
  return found


def _sometimes(probabilities: Mapping[str, float]) -> _Augmentation:
  """Returns a function that applies operations with probabilities."""

  def change(images: jax.Array, keys: jax.Array) -> jax.Array:
    for i, (name, probability) in enumerate(probabilities.items()):
      images = operations.sometimes(images, _for(i, keys), name, probability)
    return images

  return change


def _for(purpose: int, keys: jax.Array) -> jax.Array:
  """Returns the keys [B] of examples for one purpose."""
  return jax.vmap(lambda key: jax.random.fold_in(key, purpose))(keys)


def _normalize(config: ml_collections.ConfigDict) -> EvalTransform:
  # NumPy arrays, since the functions may outlive a mesh.
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(config)
  )

  def normalize(images: jax.Array) -> jax.Array:
    return (images - mean) / std

  return normalize


def _crop(images: jax.Array, crop: Crop, keys: jax.Array) -> jax.Array:
  """Crops images of one size, [B, h, w, C], at random."""
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
  """Resizes images [B, h, w, C] to the size that `crop` is cut from."""
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
  if crop.interpolation == 'bicubic':  # as in Pillow, width first, then height
    most = jnp.iinfo(images.dtype).max
    for shape in (height, size[1]), size:
      resized = resize(resized, (batch, *shape, channels), 'cubic')
      resized = jnp.clip(resized, 0, most)
    return resized
  return resize(resized, (batch, *size, channels), 'linear')


def _cut(images: jax.Array, crop: Crop, keys: jax.Array | None) -> jax.Array:
  """Pads images [B, h, w, C] and crops them, at random or in the middle."""
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
    crop: Crop, with its ranges of area and ratio.
    key: Random key of the example.

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

  Two small matrix products do this, which is far faster on CPUs than gathering
  pixels. Up to rounding, the result equals Pillow's `resize(box=...)` and
  `jax.image.scale_and_translate`: at the edge of a box, the pixels outside it
  take part in the smoothing.

  Args:
    images: [B, h, w, C].
    boxes: float32 [B, 4]: top, left, height, width, within the images.
    crop: Crop, with the size of the result and its interpolation.
    flips: bool [B], whether to mirror a result left to right; None: no result.

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
  if crop.interpolation == 'bicubic':  # as in Pillow, width first, then height
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
  """Returns weights of the pixels of one axis, float32 [out_size, in_size]."""
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
