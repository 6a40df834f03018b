"""Crops, augments and normalises batches on the device, under jit.

If all images have one size, they arrive as stored and are cropped here, by the
same rules as on the host (`transforms.py`) but with another filter for
shrinking. Otherwise they arrive cropped. Volumes go to `volumes.py`, videos and
sounds to `clips.py`. In training of images, `config.augment` adds:

 1. a policy, colour jitter, grey, blur and solarization. They need whole grey
    levels. Only for them is an interpolated crop rounded, and an image of 16
    bits or with an intensity window reduced to 8 bits;
 2. scaling and normalisation;
 3. erasing;
 4. mixing with the neighbour in the batch.
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
from vit_jax.data.device import clips
from vit_jax.data.device import crops
from vit_jax.data.device import mixing
from vit_jax.data.device import operations
from vit_jax.data.device import policies
from vit_jax.data.device import volumes
from vit_jax.data.device.rng import for_purpose
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host.geometry import Crop
from vit_jax.data.host.geometry import Size

# Purposes of random numbers from an example's key, after those of crops.py.
_POLICY, _JITTER, _ERASE, _MIX, _SOMETIMES = range(2, 7)
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
  if isinstance(features['image'], features_lib.Volume):
    return volumes.train_transform(config, features, _normalize(config))
  views = views or geometry.train_views(config)
  if isinstance(features['image'], clips.KINDS):
    return clips.train_transform(config, features, _normalize(config), views)
  _check(config, features, views)
  return _train_images(config, features, views)


def _train_images(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  views: Mapping[str, geometry.View],
) -> TrainTransform:
  """Returns the function of `train_transform` for images."""
  mixes, maps = mixing.is_on(config.augment), features_lib.maps(features)
  is_stored_whole = _is_stored_whole(features)
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
    if not mixes:
      return result
    targets = mixing.shares(result, features, config.model.num_classes)
    result['image'], targets = mixing.mix(
      result['image'], targets, for_purpose(_MIX, keys), config.augment
    )
    return result | targets

  return transform


def _is_stored_whole(features: features_lib.Features) -> bool:
  """Whether images arrive as stored, and are cropped here."""
  image = features['image']
  assert isinstance(image, features_lib.Image)
  return image.size is not None


def _check(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  views: Mapping[str, geometry.View],
) -> None:
  """Raises a UserError if images cannot be changed as the config says."""
  _check_probabilities(config, sum(view.count or 1 for view in views.values()))
  if mixing.is_on(config.augment):
    _check_is_single(config, views)
  _check_maps(config, features)
  if _is_stored_whole(features) and geometry.crop_kind(config) == 'scaled':
    raise config_lib.UserError(
      'config.data.crop=scaled is for images of different sizes, which the host'
      ' crops: leave config.data.source_size out, or choose another crop'
    )


def _check_is_single(
  config: ml_collections.ConfigDict, views: Mapping[str, geometry.View]
) -> None:
  """Raises a UserError if there are several crops, which cannot be mixed."""
  if not geometry.is_single(views):
    raise config_lib.UserError(
      'config.augment.mixup and config.augment.cutmix mix single crops, but'
      f' config.objective.name={config.objective.name} takes several of an'
      ' image: set both to 0'
    )


def _check_maps(
  config: ml_collections.ConfigDict, features: features_lib.Features
) -> None:
  """Raises a UserError if images would change in a way that others do not."""
  maps = features_lib.maps(features)
  texts = [k for k, x in features.items() if isinstance(x, features_lib.Text)]
  whole = [*maps, *texts]
  if whole and mixing.is_on(config.augment):
    raise config_lib.UserError(
      'config.augment.mixup and config.augment.cutmix mix images, but not the'
      f' {", ".join(whole)} of {config.data.name}: set both to 0'
    )
  policy = config.augment.policy
  moves = policies.make(policy).moves if maps and policy else ()
  if moves:
    raise config_lib.UserError(
      f'config.augment.policy={policy} moves pixels of images'
      f' ({", ".join(moves)}), but not of the {", ".join(maps)} of'
      f" {config.data.name}: set it to '3augment' or ''"
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
    result, numbers = {}, itertools.count()
    for name, view in views.items():
      made = []
      for i in range(view.count or 1):
        number = next(numbers)
        # The first crop's keys are the same with and without other crops.
        own = for_purpose(_CROPS + number, keys) if number else keys
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
  erase = augmentations.make(augment.erase, 'augment.erase')

  def one(
    images: jax.Array, crop: Crop, keys: jax.Array, number: int
  ) -> jax.Array:
    if is_stored_whole:
      images = crops.random(images, crop, keys)
    images = normalize(_recolor(augment, levels, number)(images, keys))
    return erase(images, for_purpose(_ERASE, keys)) if erase else images

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
  image = features['image']
  if isinstance(image, features_lib.Volume):
    return volumes.eval_batch(config, features, _normalize(config))
  if isinstance(image, clips.KINDS):
    return clips.eval_batch(config, features, _normalize(config))
  assert isinstance(image, features_lib.Image)
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


def _recolor(
  augment: ml_collections.ConfigDict, levels: levels_lib.Levels, number: int
) -> _Augmentation:
  """Returns the changes of colours of a crop.

  They map stored values to float32 in [0, 1]. `number` is that of the crop
  among all views, from 0.
  """
  steps = _colour_steps(augment, number)

  def recolor(images: jax.Array, keys: jax.Array) -> jax.Array:
    if not steps:
      return levels.scale(images)
    if not levels.is_plain:
      images = jnp.round(levels.scale(images) * 255).astype(jnp.uint8)
    elif images.dtype != jnp.uint8:  # interpolated values in [0, 255]
      images = jnp.round(images).astype(jnp.uint8)
    for purpose, change in steps:
      images = change(images, for_purpose(purpose, keys))
    return levels_lib.EIGHT_BITS.scale(images)

  return recolor


def _colour_steps(
  augment: ml_collections.ConfigDict, number: int
) -> list[tuple[int, _Augmentation]]:
  """Returns what changes a crop's grey levels, with the purpose of its keys."""
  steps: list[tuple[int, _Augmentation]] = []
  if augment.policy:
    steps.append((_POLICY, policies.make(augment.policy)))
  if jitter := augmentations.make(augment.jitter, 'augment.jitter'):
    steps.append((_JITTER, jitter))
  probabilities = _probabilities(augment, number)
  if any(probabilities.values()):
    steps.append((_SOMETIMES, _sometimes(probabilities)))
  return steps


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
      images = operations.sometimes(
        images, for_purpose(i, keys), name, probability
      )
    return images

  return change


def _normalize(config: ml_collections.ConfigDict) -> EvalTransform:
  # NumPy arrays, since the functions may outlive a mesh.
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(config)
  )

  def normalize(images: jax.Array) -> jax.Array:
    return (images - mean) / std

  return normalize
