"""Masked autoencoders (MAE, He et al., arXiv:2111.06377).

In comments: B images, N patches, K of them seen, M = p * q * C numbers of a
patch.
"""

from typing import Any
from typing import ClassVar
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import features as features_lib
from vit_jax.models import decoder
from vit_jax.models import embedding
from vit_jax.models import spec as spec_lib
from vit_jax.models import stack
from vit_jax.models import vit
from vit_jax.objectives import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import whole

_EPSILON = 1e-6  # of the targets' variance


class Masks(NamedTuple):
  """Which patches of images are seen.

  Attributes:
    kept: int32 [B, K], the seen patches, in the order in which they are seen.
    places: int32 [B, N], each patch's place in (seen, then removed) patches.
    removed: float32 [B, N], 1 for patches that are not seen.
  """

  kept: jax.Array
  places: jax.Array
  removed: jax.Array


def num_kept(count: int, ratio: float) -> int:
  """Returns K, of `count` patches of which the share `ratio` is removed."""
  return int(count * (1 - ratio))


def masks(noise: jax.Array, ratio: float) -> Masks:
  """Returns masks that keep the patches with the least noise [B, N]."""
  k = num_kept(noise.shape[1], ratio)
  order = jnp.argsort(noise, axis=1)
  places = jnp.argsort(order, axis=1)
  removed = (places >= k).astype(jnp.float32)
  return Masks(order[:, :k], places, removed)


def patchify(images: jax.Array, patch_size: tuple[int, int]) -> jax.Array:
  """Returns patches [B, N, M] of images [B, H, W, C], row by row."""
  b, height, width, c = images.shape
  p, q = patch_size
  x = images.reshape(b, height // p, p, width // q, q, c)
  return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, p * q * c)


def unpatchify(
  patches: jax.Array, grid: tuple[int, int], patch_size: tuple[int, int]
) -> jax.Array:
  """Returns the images of patches: the inverse of `patchify`."""
  (h, w), (p, q) = grid, patch_size
  x = patches.reshape(len(patches), h, w, p, q, -1)
  x = x.transpose(0, 1, 3, 2, 4, 5)
  return x.reshape(len(patches), h * p, w * q, -1)


def normalized(patches: jax.Array) -> jax.Array:
  """Returns patches [B, N, M], each with mean 0 and variance 1 (section 3).

  The variance is the unbiased one, as in the authors' code.
  """
  variance = patches.var(axis=-1, keepdims=True, ddof=1)
  mean = patches.mean(axis=-1, keepdims=True)
  return (patches - mean) / jnp.sqrt(variance + _EPSILON)


def reconstruction_loss(
  predicted: jax.Array, target: jax.Array, removed: jax.Array
) -> jax.Array:
  """Returns the mean squared error over removed patches.

  Args:
    predicted: [B, N, M].
    target: [B, N, M].
    removed: [B, N], 1 where the loss counts, else 0.
  """
  each = jnp.square(predicted - target).mean(axis=-1)
  return (each * removed).sum() / removed.sum()


class MAE(base.Objective):
  """The pixels of removed patches from those that the encoder sees.

  A random share `mask_ratio` of the patches is removed, and the encoder sees
  the others alone. A small decoder sees its outputs, and a mask token in the
  place of each removed patch. With `normalize_targets` it predicts pixels that
  are normalised within their patch.

  The authors' code differs in two points: its class token and the biases of its
  MLPs do not start at zero, and its patch embedding starts as a dense layer.
  """

  metrics: ClassVar = {'loss': 'min', 'examples': 'max'}
  options: ClassVar = {
    'mask_ratio': 0.75,
    'normalize_targets': True,
    'decoder_width': 512,
    'decoder_depth': 8,
    'decoder_heads': 16,
    'decoder_mlp_dim': 0,  # 0: four times the width
  }

  def __init__(
    self, config: ml_collections.ConfigDict, features: features_lib.Features
  ):
    """Makes the trunk and the decoder.

    Raises:
      UserError: The model or its size does not suit the method.
    """
    super().__init__(config, features)
    self._options = config.objective.options
    self.model = models.from_config(config.model, 0, config.train.dtype).clone(num_classes=0)
    _check_model(self.model, self._options, self.image_shape)
    p, q = self.model.patch_size
    height, width, channels = self.image_shape
    self._grid = height // p, width // q
    self.decoder = decoder.Decoder(
      _decoder_spec(self.model, self._options),
      self.model.prefix_length,
      p * q * channels,
    )

