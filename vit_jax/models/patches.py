"""Tokens of images: patches and learned positions.

Equation 1 of the ViT paper (arXiv:2010.11929). In comments: B images, [h, w]
grid of patches, N patches, P tokens before them, D hidden size.
"""

import math
import operator
from typing import Annotated
from typing import Any
from typing import ClassVar
from typing import TypeVar

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.config import registry
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models.context import Context

Array = TypeVar('Array', jax.Array, np.ndarray)
_TABLE = 'position_embedding'
TOKENS = ('all', 'class', 'patches')
# How positions are resized to a grid: linear or cubic (a = -0.5), both with a
# kernel that widens when shrinking (antialias); 'plain': linear without that;
# 'corner': the same, with the first and last positions kept in place.
RESIZES = ('linear', 'bicubic', 'plain', 'corner')


def cut(images: Array, patch_size: tuple[int, ...]) -> Array:
  """Returns the patches of [B, height, width, C], [B, h, w, p * q * C].

  Those of volumes are [B, d, h, w, ...]. Places behind the last whole patch are
  left out.
  """
  b, *size, c = images.shape
  grid = [n // p for n, p in zip(size, patch_size, strict=True)]
  slices: Any = [slice(n * p) for n, p in zip(grid, patch_size, strict=True)]
  # [B, h, p, w, q, C] -> [B, h, w, p, q, C]
  sides = [n for pair in zip(grid, patch_size, strict=True) for n in pair]
  axes = range(1, len(sides) + 1)
  x = images[:, *slices].reshape(b, *sides, c)
  x = x.transpose(0, *axes[::2], *axes[1::2], len(sides) + 1)
  return x.reshape(b, *grid, math.prod(patch_size) * c)


class Patches(nn.Module):
  """Projects patches: images [B, height, width, C] -> [B, h, w, D].

  Volumes [B, depth, height, width, C] become [B, d, h, w, D], and patches that
  are cut already, as by `embedding.patches`, [B, N, p * q * C], become [B, N,
  D]. The kernel [p, q, C, D] is that of a convolution whose stride is its size,
  but it is applied as one matrix product.

  Attributes:
    hidden_size: D.
    patch_size: (height, width) in pixels; (depth, height, width) of volumes.
    bias: Whether there is a bias.
    crop: Whether images lose the rows and columns behind their last whole
      patch, as in a convolution without padding; otherwise a patch must divide
      them.
    initializers: Name of the initial values.
    dtype: Type in which it computes.
  """

  scope_name: ClassVar[str] = 'patch_embedding'

  hidden_size: Annotated[int, fields.SIZE]
  patch_size: Annotated[tuple[int, ...], fields.FITTED]
  bias: Annotated[bool, fields.FUNCTION] = True
  crop: Annotated[bool, fields.UNSEEN] = False
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @property
  def pixels(self) -> tuple[int, ...]:
    """Sides of what a token stands for, in pixels."""
    return self.patch_size

  def __call__(self, images: jax.Array) -> jax.Array:
    """Returns one token per patch."""
    kernel: jax.Array | None = self.get_variable('params', 'kernel')
    channels, axes = images.shape[-1], images.ndim
    if kernel is None:  # more channels may be an axis in a wrong place
      fits = axes == len(self.patch_size) + 2 and channels <= 4
    else:
      first = 0 if axes == 3 else -2
      fits = axes in (3, len(kernel.shape))
      fits = fits and channels == math.prod(kernel.shape[first:-1])
    if not fits:
      check = registry.wing('vit_jax.models.inputs:check_images')
      check(self, images, ('kernel',), self.patch_size)
    return self.project(images)

  @nn.compact
  def project(self, images: jax.Array) -> jax.Array:
    """Returns one token per patch of images of any number of channels."""
    patch, channels = self.patch_size, images.shape[-1]
    if images.ndim == 3:
      x, channels = images, channels // math.prod(patch)
    else:
      size = images.shape[1:-1]
      is_whole = not any(n % p for n, p in zip(size, patch, strict=True))
      if any(map(operator.lt, size, patch)) or not (is_whole or self.crop):
        raise registry.wing('vit_jax.models.inputs:not_divided')(size, patch)
      x = cut(images.astype(self.dtype), patch)
    starts = initializers_lib.INITIALIZERS[self.initializers]
    shape = *patch, channels, self.hidden_size
    kernel = jnp.asarray(self.param('kernel', starts.patch, shape))
    kernel = kernel.reshape(-1, self.hidden_size).astype(self.dtype)
    x = x.astype(self.dtype) @ kernel
    if not self.bias:
      return x
    bias = self.param('bias', nn.initializers.zeros, (self.hidden_size,))
    return x + bias.astype(self.dtype)


class Learned(nn.Module):
  """One learned vector for each token (section 3.1 of the ViT paper).

  Attributes:
    tokens: Tokens with a position: 'all'; 'class', the class token and patches;
      or 'patches'.
    resize: How positions are resized to images of their own grids, one of
      `RESIZES`.
    keep_aspect: Whether they are resized to a square around a grid.
    grid: Grid (h, w) of the positions, if images have their own; None: a
      square.
    initializers: Name of the initial values.
  """

  tokens: Annotated[str, fields.fitted(choices=TOKENS)] = 'all'
  resize: Annotated[str, fields.unseen(choices=RESIZES)] = 'linear'
  keep_aspect: Annotated[bool, fields.UNSEEN] = False
  grid: Annotated[tuple[int, ...] | None, fields.GRID] = None
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """Adds positions to tokens [B, P + N, D]."""
    count, d, p = x.shape[1] - context.prefix, x.shape[2], context.prefix
    before = {'all': p, 'class': int(context.class_token), 'patches': 0}[
      self.tokens
    ]
    stored: jax.Array | None = self.get_variable('params', _TABLE)
    if context.grids is not None:
      resized = registry.wing('vit_jax.models.packing:positions')
      table = resized(self, stored, context, count, before)
    else:
      shape = 1, before + count, d
      if stored is not None and stored.shape[1] != shape[1]:
        check = registry.wing('vit_jax.models.inputs:check_tokens')
        sizes = context.image_size, context.patch_size
        check(self, *sizes, shape[1], (_TABLE,), axis=1, prefix=before)
      init = initializers_lib.INITIALIZERS[self.initializers].position
      table = self.param(_TABLE, init, shape)
    table = table.astype(x.dtype)
    if before < p:
      gap = (0, 0), (0, p - before), (0, 0)
      first = jnp.pad(table[:, :before], gap)
      table = jnp.concatenate([first, table[:, before:]], axis=1)
    return x + table, context
