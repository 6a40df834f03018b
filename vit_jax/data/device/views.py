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

# Purposes of random numbers from an example's key. crops.py has 0 and 1, and
# recolor.py 2, 3 and 6.
_ERASE, _MIX = 4, 5
_CROPS = 6  # plus the number of a crop, from 1; crop 0 has the example's key

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
  of each view, [B, H, W, C] or [B, count, H, W, C], by name; without `views`
  there is one, as `config.data` says. The augmentation of an example depends
  only on the key and its row. If images are mixed, so are their targets: a
  label becomes weights of the classes, float32 [B, classes]. Then B must be
  even, and rows 2i and 2i + 1 of the global batch must be adjacent.

  A map of classes becomes int32 [B, H, W], cropped and mirrored as the image;
  with several crops of an image it is left out.
  """
  views = views or geometry.train_views(config)
  image, maps = features_lib.image(features), features_lib.maps(features)
  mixes = augmentations.mixes(config.augment)
  if image.device or mixes or augmentations.recolors(config.augment):
    check = config_lib.wing('vit_jax.data.augment_checks:check_inputs')
    check(config, features, views)
  if image.device:
    make = config_lib.wing(image.device).train_transform
    return make(config, features, _normalize(config), views)
  is_stored_whole = image.size is not None
  if is_stored_whole and geometry.crop_kind(config) == 'scaled':
    raise config_lib.UserError(
      'config.data.crop=scaled is for images of different sizes, which the host'
      ' crops: leave config.data.source_size out, or choose another crop'
    )
  prepare = _train_crop(config, is_stored_whole)
  mixing = config_lib.wing('vit_jax.data.device.mixing') if mixes else None

  def transform(batch: Batch, rng: Rng) -> Batch:
    keys = rng.per_row()
    dropped = {'image', *views, *maps}
    result = {k: x for k, x in batch.items() if k not in dropped}
    numbers = itertools.count()
    for name, view in views.items():
      images = batch['image' if is_stored_whole else name]
      cropped = not is_stored_whole and view.count is not None
      view_crops = []
      for i in range(view.count or 1):
        part = images[:, i] if cropped else images
        view_crops.append(prepare(part, view.crop, keys, next(numbers)))
      is_single = view.count is None
      result[name] = view_crops[0] if is_single else jnp.stack(view_crops, 1)
    for name, x in maps.items() if geometry.is_single(views) else ():
      crop = geometry.for_map(views['image'].crop, x.ignore)
      labels = batch[name][..., None]
      if is_stored_whole:
        labels = crops.random(labels, crop, keys)
      result[name] = labels[..., 0].astype(jnp.int32)
    if mixing is None:
      return result
    return mixing.mix_batch(result, features, for_purpose(_MIX, keys), config)

  return transform


def _train_crop(
  config: ml_collections.ConfigDict, is_stored_whole: bool
) -> Callable[[jax.Array, Crop, jax.Array, int], jax.Array]:
  """Returns a function: (images, crop, keys, number of the crop) -> images."""
  augment = config.augment
  levels, normalize = levels_lib.from_config(config), _normalize(config)
  recolor = None
  if augmentations.recolors(augment):
    recolor = config_lib.wing('vit_jax.data.device.recolor:recolor')
  erase = augmentations.make(augment.erase, 'augment.erase')

  def prepare(
    images: jax.Array, crop: Crop, keys: jax.Array, number: int
  ) -> jax.Array:
    # The first crop's keys are the same with and without other crops.
    keys = for_purpose(_CROPS + number, keys) if number else keys
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
  `image_shape` is the size of all stored images; None: they arrive cropped.
  """
  prepare = eval_batch(config, {'image': features_lib.Image(image_shape)})
  return lambda images: prepare({'image': images})['image']


def eval_batch(
  config: ml_collections.ConfigDict, features: features_lib.Features
) -> Callable[[Batch], Batch]:
  """Returns a function that prepares a batch for evaluation.

  Images become float32 [B, H, W, C], and maps of classes int32 [B, H, W],
  cropped as the images. Those of volumes and videos have one axis more.
  """
  image, maps = features_lib.image(features), features_lib.maps(features)
  levels, normalize = levels_lib.from_config(config), _normalize(config)
  crop = geometry.eval_crop(config)

  def cut(values: jax.Array, crop: Crop) -> jax.Array:
    if image.whole_size(training=False) is None:  # the host has cropped it
      return values
    if image.device:
      return config_lib.wing(image.device).eval_cut(values, crop, image)
    return crops.cut(values, crop, None)

  def transform(batch: Batch) -> Batch:
    images = normalize(levels.scale(cut(batch['image'], crop)))
    result = batch | {'image': images}
    for name, x in maps.items():
      map_crop = geometry.for_map(crop, x.ignore)
      labels = cut(batch[name][..., None], map_crop)
      result[name] = labels[..., 0].astype(jnp.int32)
    return result

  return transform


def _normalize(config: ml_collections.ConfigDict) -> EvalTransform:
  # NumPy arrays, since the functions may outlive a mesh.
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(config)
  )
  return lambda images: (images - mean) / std
