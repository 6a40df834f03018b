"""Colour jitter, as `config.augment.jitter` names it."""

import dataclasses
from typing import Annotated

import jax

from vit_jax.config import options
from vit_jax.data.device import operations


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
