"""Crops, augments and normalises batches on the device, under jit.

If all images have one size, they arrive as stored and are cropped here, by the
same rules as on the host (`transforms.py`) but with another filter for
shrinking. Otherwise they arrive cropped. Inputs of other kinds go to the module
that their feature names. In training of images, `config.augment` adds:

 1. changes of colours: `recolor.py`;
 2. scaling and normalisation;
 3. erasing: `erasing.py`;
 4. mixing with the neighbour in the batch: `mixing.py`.
"""

from collections.abc import Callable
from collections.abc import Mapping
import itertools

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.data import augmentations
from vit_jax.data import features as features_lib
from vit_jax.data.device import crops
from vit_jax.data.device.rng import for_purpose
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host.geometry import Crop
from vit_jax.data.host.geometry import Size

# Purposes of random numbers from an example's key, after those of crops.py.
# Those of recolor.py are 2, 3 and 6.
_ERASE, _MIX = 4, 5
_CROPS = 6  # plus the number of a crop, from 1; crop 0 has the example's key

_MIXING = 'vit_jax.data.device.mixing'
_RECOLOR = 'vit_jax.data.device.recolor'

Batch = dict[str, jax.Array]
TrainTransform = Callable[[Batch, Rng], Batch]
EvalTransform = Callable[[jax.Array], jax.Array]


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

  A map of classes becomes int32 [B, H, W], cropped and mirrored as the image;
  with several crops of an image it is left out.

  Args:
    config: The full config. Mixing needs its number of classes.
    features: Features of the examples.
    views: Crops of the image, by name; None: one view, as `config.data` says.

  Raises:
    UserError: The config mixes images, and there are several views, maps or
      captions; or it has probabilities for more crops than there are; or a
      policy would move the pixels of images, and not those of their maps.
  """
  views = views or geometry.train_views(config)
  if device := _image(features).device:
    make = config_lib.wing(device).train_transform
    transform: TrainTransform = make(
      config, features, _normalize(config), views
    )
    return transform
  _check(config, features, views)
  return _train_images(config, features, views)


def _train_images(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  views: Mapping[str, geometry.View],
) -> TrainTransform:
  """Returns the function of `train_transform` for images."""
  maps, is_stored_whole = features_lib.maps(features), _is_whole(features)
  mixing = config_lib.wing(_MIXING) if mixes(config.augment) else None
  augment = _augment(config, views, is_stored_whole)
  dropped = {'image', *views, *maps}
  followed = maps if geometry.is_single(views) else {}

  def transform(batch: Batch, rng: Rng) -> Batch:
    keys = rng.per_row()
    result = {k: x for k, x in batch.items() if k not in dropped}
    result |= augment(batch, keys)
    for name, x in followed.items():
      crop = geometry.for_map(views['image'].crop, x.ignore)
      labels = batch[name][..., None]
      if is_stored_whole:
        labels = crops.random(labels, crop, keys)
      result[name] = labels[..., 0].astype(jnp.int32)
    if mixing is None:
      return result
    targets = mixing.shares(result, features, config.model.num_classes)
    result['image'], targets = mixing.mix(
      result['image'], targets, for_purpose(_MIX, keys), config.augment
    )
    return result | targets

  return transform


def mixes(augment: ml_collections.ConfigDict) -> bool:
  """Whether `config.augment` says to mix images."""
  return bool(augment.mixup or augment.cutmix) and augment.mix_probability > 0


def _image(features: features_lib.Features) -> features_lib.Image:
  """Returns the feature of the model's input."""
  image = features['image']
  assert isinstance(image, features_lib.Image)
  return image


def _is_whole(features: features_lib.Features) -> bool:
  """Whether images arrive as stored, and are cropped here."""
  return _image(features).size is not None


def _check(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  views: Mapping[str, geometry.View],
) -> None:
  """Raises a UserError if images cannot be changed as the config says."""
  if _recolors(config.augment):
    config_lib.wing(_RECOLOR).check(config, features, views)
  if mixes(config.augment):
    _check_mixing(config, features, views)
  if _is_whole(features) and geometry.crop_kind(config) == 'scaled':
    raise config_lib.UserError(
      'config.data.crop=scaled is for images of different sizes, which the host'
      ' crops: leave config.data.source_size out, or choose another crop'
    )


def _recolors(augment: ml_collections.ConfigDict) -> bool:
  """Whether `config.augment` says to change grey levels."""
  keys = ('policy', 'jitter', 'gray', 'blur', 'solarize')
  return any(augment[key] for key in keys)


def _check_mixing(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  views: Mapping[str, geometry.View],
) -> None:
  """Raises a UserError if images, or what belongs to them, cannot be mixed."""
  if not geometry.is_single(views):
    raise config_lib.UserError(
      'config.augment.mixup and config.augment.cutmix mix single crops, but'
      f' config.objective.name={config.objective.name} takes several of an'
      ' image: set both to 0'
    )
  unmixable = [k for k, x in features.items() if k != 'image' and not x.can_mix]
  if unmixable:
    raise config_lib.UserError(
      'config.augment.mixup and config.augment.cutmix mix images, but not the'
      f' {", ".join(unmixable)} of {config.data.name}: set both to 0'
    )


def _augment(
  config: ml_collections.ConfigDict,
  views: Mapping[str, geometry.View],
  is_stored_whole: bool,
) -> Callable[[Batch, jax.Array], Batch]:
  """Returns a function: (batch, keys [B]) -> images of all views, by name."""
  prepare = _train_crop(config, is_stored_whole)

  def augment(batch: Batch, keys: jax.Array) -> Batch:
    result, numbers = {}, itertools.count()
    for name, view in views.items():
      view_crops = []
      for i in range(view.count or 1):
        number = next(numbers)
        # The first crop's keys are the same with and without other crops.
        crop_keys = for_purpose(_CROPS + number, keys) if number else keys
        images = batch['image' if is_stored_whole else name]
        if not is_stored_whole and view.count is not None:
          images = images[:, i]
        view_crops.append(prepare(images, view.crop, crop_keys, number))
      is_single = view.count is None
      result[name] = (
        view_crops[0] if is_single else jnp.stack(view_crops, axis=1)
      )
    return result

  return augment


def _train_crop(
  config: ml_collections.ConfigDict, is_stored_whole: bool
) -> Callable[[jax.Array, Crop, jax.Array, int], jax.Array]:
  """Returns a function: (images, crop, keys, number of the crop) -> images."""
  augment = config.augment
  levels, normalize = levels_lib.from_config(config), _normalize(config)
  recolor = config_lib.wing(_RECOLOR).recolor if _recolors(augment) else None
  erase = augmentations.make(augment.erase, 'augment.erase')

  def prepare(
    images: jax.Array, crop: Crop, keys: jax.Array, number: int
  ) -> jax.Array:
    if is_stored_whole:
      images = crops.random(images, crop, keys)
    if recolor is None:
      images = levels.scale(images)
    else:
      images = recolor(images, keys, augment, levels, number)
    images = normalize(images)
    return erase(images, for_purpose(_ERASE, keys)) if erase else images

  return prepare


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
      images = crops.cut(crops.resize(images, crop), crop, None)
    return normalize(levels.scale(images))

  return transform


def eval_batch(
  config: ml_collections.ConfigDict, features: features_lib.Features
) -> Callable[[Batch], Batch]:
  """Returns a function that prepares a batch for evaluation.

  Images become float32 [B, H, W, C], as by `eval_transform`, and maps of
  classes int32 [B, H, W], cropped as the images.

  Args:
    config: The full config.
    features: Features of the examples.
  """
  image = _image(features)
  if image.device:
    make = config_lib.wing(image.device).eval_batch
    prepare: Callable[[Batch], Batch] = make(
      config, features, _normalize(config)
    )
    return prepare
  images = eval_transform(config, image.size)
  is_stored_whole = image.size is not None

  def transform(batch: Batch) -> Batch:
    result = batch | {'image': images(batch['image'])}
    for name, x in features_lib.maps(features).items():
      crop = geometry.for_map(geometry.eval_crop(config), x.ignore)
      labels = batch[name][..., None]
      if is_stored_whole:
        labels = crops.cut(crops.resize(labels, crop), crop, None)
      result[name] = labels[..., 0].astype(jnp.int32)
    return result

  return transform


def _normalize(config: ml_collections.ConfigDict) -> EvalTransform:
  # NumPy arrays, since the functions may outlive a mesh.
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(config)
  )

  def normalize(images: jax.Array) -> jax.Array:
    return (images - mean) / std

  return normalize
