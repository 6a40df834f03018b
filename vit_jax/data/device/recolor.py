"""Changes the colours of a batch's images as `config.augment` says, under jit.

A policy, colour jitter, grey, blur and solarization need whole grey levels.
Only for them is an interpolated crop rounded, and an image of 16 bits or with
an intensity window reduced to 8 bits.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import ml_collections

from vit_jax.config import options
from vit_jax.data import augmentations
from vit_jax.data.device import operations
from vit_jax.data.device.rng import for_purpose
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


@dataclasses.dataclass(frozen=True)
class Jitter:
  """Changes brightness, contrast, saturation and hue, in random order.

  Attributes:
    brightness: The largest change.
    contrast: The largest change.
    saturation: The largest change.
    hue: The largest change; 0.5 is half of the circle.
    probability: Probability that an image is changed.
  """

  brightness: options.Amount
  contrast: options.Amount
  saturation: options.Amount
  hue: Annotated[float, options.Interval('[0, 0.5]')]
  probability: options.Share = 1.0

  def __call__(self, images: jax.Array, keys: jax.Array) -> jax.Array:
    """Changes uint8 [B, H, W, C], with keys [B]."""
    strengths = self.brightness, self.contrast, self.saturation, self.hue
    return operations.jitter(images, keys, strengths, self.probability)


def recolor(
  images: jax.Array,
  keys: jax.Array,
  augment: ml_collections.ConfigDict,
  levels: levels_lib.Levels,
  number: int,
) -> jax.Array:
  """Changes colours of crops [B, H, W, C], with keys [B].

  The result is float32, scaled to [0, 1].
  """
  probabilities = {}
  for key, name in _BY_CROP.items():
    by_crop = tuple(augment[key]) or (0.0,)
    probabilities[name] = by_crop[min(number, len(by_crop) - 1)]
  if not (augment.policy or augment.jitter or any(probabilities.values())):
    return levels.scale(images)
  if not levels.is_plain:
    images = jnp.round(levels.scale(images) * 255).astype(jnp.uint8)
  elif images.dtype != jnp.uint8:  # interpolated values in [0, 255]
    images = jnp.round(images).astype(jnp.uint8)
  if augment.policy:
    policy = augmentations.make(augment.policy, 'augment.policy')
    images = policy(images, for_purpose(_POLICY, keys))
  if augment.jitter:
    jitter = augmentations.make(augment.jitter, 'augment.jitter')
    images = jitter(images, for_purpose(_JITTER, keys))
  keys = for_purpose(_SOMETIMES, keys)
  for i, (name, probability) in enumerate(probabilities.items()):
    images = operations.sometimes(
      images, for_purpose(i, keys), name, probability
    )
  return levels_lib.EIGHT_BITS.scale(images)
