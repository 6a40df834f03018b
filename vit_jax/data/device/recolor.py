"""Changes the colours of a batch's images as `config.augment` says, under jit.

A policy, colour jitter, grey, blur and solarization need whole grey levels.
Only for them is an interpolated crop rounded, and an image of 16 bits or with
an intensity window reduced to 8 bits.
"""

from collections.abc import Callable
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import augmentations
from vit_jax.data import features as features_lib
from vit_jax.data.device import operations
from vit_jax.data.device import policies
from vit_jax.data.device.rng import for_purpose
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib

# Purposes of random numbers from an example's key; the others are in views.py.
_POLICY, _JITTER, _SOMETIMES = 2, 3, 6

# Keys of `config.augment` with a probability for each crop, and the operations
# that they apply, in this order.
_BY_CROP = {
  'gray': 'grayscale',
  'blur': 'gaussian_blur',
  'solarize': 'solarize',
}

# (images [B, H, W, C], keys [B]) -> images.
_Augmentation = Callable[[jax.Array, jax.Array], jax.Array]


def check(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  views: Mapping[str, geometry.View],
) -> None:
  """Checks that the images can be changed so.

  Args:
    config: The full config.
    features: Features of the examples.
    views: Crops of the image, by name.

  Raises:
    UserError: There are fewer crops than probabilities, or a policy would move
      the pixels of images, and not those of their maps.
  """
  crops = sum(view.count or 1 for view in views.values())
  for key in _BY_CROP:
    probabilities = tuple(config.augment[key])
    if len(probabilities) > crops:
      raise config_lib.UserError(
        f'config.augment.{key} is {probabilities}, of {len(probabilities)}'
        f' crops, but config.objective.name={config.objective.name} takes'
        f' {crops} of an image: give at most one probability for each'
      )
  maps, policy = features_lib.maps(features), config.augment.policy
  moves = policies.make(policy).moves if maps and policy else ()
  if moves:
    raise config_lib.UserError(
      f'config.augment.policy={policy} moves pixels of images'
      f' ({", ".join(moves)}), but not of the {", ".join(maps)} of'
      f" {config.data.name}: set it to '3augment' or ''"
    )


def recolor(
  images: jax.Array,
  keys: jax.Array,
  augment: ml_collections.ConfigDict,
  levels: levels_lib.Levels,
  number: int,
) -> jax.Array:
  """Changes the colours of crops.

  Args:
    images: Stored values, of any type, [B, H, W, C].
    keys: [B], of the images.
    augment: `config.augment`.
    levels: Levels of the stored values.
    number: Number of the crop among all views, from 0.

  Returns:
    float32 [B, H, W, C], from 0 to 1.
  """
  steps = _colour_steps(augment, number)
  if not steps:
    return levels.scale(images)
  if not levels.is_plain:
    images = jnp.round(levels.scale(images) * 255).astype(jnp.uint8)
  elif images.dtype != jnp.uint8:  # interpolated values in [0, 255]
    images = jnp.round(images).astype(jnp.uint8)
  for purpose, change in steps:
    images = change(images, for_purpose(purpose, keys))
  scaled: jax.Array = levels_lib.EIGHT_BITS.scale(images)
  return scaled


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
  probabilities = {}
  for key, name in _BY_CROP.items():
    by_crop = tuple(augment[key]) or (0.0,)
    probabilities[name] = by_crop[min(number, len(by_crop) - 1)]
  return probabilities


def _sometimes(probabilities: Mapping[str, float]) -> _Augmentation:
  """Returns a function that applies operations with probabilities."""

  def change(images: jax.Array, keys: jax.Array) -> jax.Array:
    for i, (name, probability) in enumerate(probabilities.items()):
      images = operations.sometimes(
        images, for_purpose(i, keys), name, probability
      )
    return images

  return change
