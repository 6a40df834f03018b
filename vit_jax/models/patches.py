"""Tokens of images: patches and learned positions.

Equation 1 of the ViT paper (arXiv:2010.11929). In comments: B images, [h, w]
grid of patches, N patches, P tokens before them, D hidden size.
"""

import math
from typing import Annotated
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.config import registry
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models.context import Context
from vit_jax.models.fields import Field
from vit_jax.models.fields import Kind

TOKENS = ('all', 'class', 'patches')
# How positions are resized to a grid: linear or cubic (a = -0.5), both with a
# kernel that widens when shrinking (antialias); 'plain': linear without that;
# 'corner': the same, with the first and last positions kept in place.
RESIZES = ('linear', 'bicubic', 'plain', 'corner')


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
    """Returns one token per patch.

    Raises:
      ValueError: The images are not those of the parameters, or patches do not
        divide them.
    """
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
      x = self._cut(images)
    starts = initializers_lib.INITIALIZERS[self.initializers]
    shape = *patch, channels, self.hidden_size
    kernel = jnp.asarray(self.param('kernel', starts.patch, shape))
    kernel = kernel.reshape(-1, self.hidden_size).astype(self.dtype)
    x = x.astype(self.dtype) @ kernel
    if not self.bias:
      return x
    bias = self.param('bias', nn.initializers.zeros, (self.hidden_size,))
    return x + bias.astype(self.dtype)

  def _cut(self, images: jax.Array) -> jax.Array:
    """Returns the patches of images, [B, h, w, p * q * C]."""
    (b, *size, c), patch = images.shape, self.patch_size
    grid = [n // p for n, p in zip(size, patch, strict=True)]
    cropped_size = [n * p for n, p in zip(grid, patch, strict=True)]
    if 0 in grid or (size != cropped_size and not self.crop):
      raise registry.wing('vit_jax.models.inputs:not_divided')(size, patch)
    if self.crop:
      images = images[:, *map(slice, cropped_size)]
    # [B, h, p, w, q, C] -> [B, h, w, p, q, C]
    sides = [n for pair in zip(grid, patch, strict=True) for n in pair]
    axes = range(1, len(sides) + 1)
    x = images.astype(self.dtype).reshape(b, *sides, c)
    x = x.transpose(0, *axes[::2], *axes[1::2], len(sides) + 1)
    return x.reshape(b, *grid, math.prod(patch) * c)


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

  tokens: Annotated[str, Field(Kind.FITTED, choices=TOKENS)] = 'all'
  resize: Annotated[
    str, Field(Kind.FUNCTION, is_visible=False, choices=RESIZES)
  ] = 'linear'
  keep_aspect: Annotated[bool, fields.UNSEEN] = False
  grid: Annotated[tuple[int, ...] | None, fields.GRID] = None
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """Adds positions to tokens [B, P + N, D].

    Raises:
      ValueError: The parameters are for another number of patches, or a model
        is initialised with images of different shapes.
    """
    before = {
      'all': context.prefix,
      'class': int(context.class_token),
      'patches': 0,
    }[self.tokens]
    table = self._table(x, context, before).astype(x.dtype)
    if before < context.prefix:
      gap = (0, 0), (0, context.prefix - before), (0, 0)
      first = jnp.pad(table[:, :before], gap)
      table = jnp.concatenate([first, table[:, before:]], axis=1)
    return x + table, context

  def _table(self, x: jax.Array, context: Context, before: int) -> jax.Array:
    """Returns the positions of some tokens and of patches, [1 or B, n, D]."""
    count, d = x.shape[1] - context.prefix, x.shape[2]
    table: jax.Array | None = self.get_variable('params', 'position_embedding')
    if context.grids is None:
      shape = 1, before + count, d
      if table is not None and table.shape[1] != shape[1]:
        check = registry.wing('vit_jax.models.inputs:check_positions')
        check(self, context, count, before)
      init = initializers_lib.INITIALIZERS[self.initializers].position
      return self.param('position_embedding', init, shape)
    resized = registry.wing('vit_jax.models.packing:positions')
    positions: jax.Array = resized(self, table, context, count, before)
    return positions
