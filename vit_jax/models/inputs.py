"""Checks that images fit a model's parameters, before Flax compares shapes."""

from collections.abc import Sequence
import math
from typing import Any

from flax import linen as nn
import jax

from vit_jax.models.context import Context


def times(size: Sequence[int]) -> str:
  """Returns a size for people, as '16 x 16'."""
  return ' x '.join(map(str, size))


def not_divided(size: Sequence[int], patch: Sequence[int]) -> ValueError:
  """Returns the error about images that are no multiples of a patch."""
  return ValueError(
    f'the image, {times(size)}, is not a multiple of the patch, {times(patch)}'
  )


def check_images(
  model: nn.Module,
  images: jax.Array,
  path: Sequence[str],
  patch_size: Sequence[int] = (1, 1),
) -> None:
  """Checks the axes and the channels of images.

  Args:
    model: The model that is applied.
    images: What it is given.
    path: Path of the kernel that reads them, [..., C, D], or of the clusters of
      their pixels, [K, C].
    patch_size: Sides of its patch; of volumes three numbers.

  Raises:
    ValueError: They are no [B, height, width, C], or C is another one than that
      of the parameters.
  """
  stored = _shape(model, *path)
  axis = -2 if path[-1] == 'kernel' else -1
  channels = None if stored is None else stored[axis]
  shape, sides = images.shape, len(patch_size)
  size = 'height, width' if sides == 2 else 'depth, height, width'
  if len(shape) != sides + 2:
    hint = (
      '; of one image, it is image[None]' if len(shape) == sides + 1 else ''
    )
    raise ValueError(
      f'images have the shape {list(shape)}: it must be [B, {size}, C]{hint}'
    )
  few = channels or 4
  is_last = shape[-1] == channels if channels else shape[-1] <= few
  if not is_last and (shape[1] == channels if channels else shape[1] <= few):
    order = (0, *range(2, sides + 2), 1)
    raise ValueError(
      f'images have the shape {list(shape)}, with channels first: it must be'
      f' [B, {size}, C], as images.transpose{order}'
    )
  if not is_last and channels:
    raise ValueError(
      f'images have {shape[-1]} channels, shape {list(shape)}, but the'
      f' parameters are for {channels}'
    )


def check_positions(
  model: nn.Module, context: Context, count: int, before: int
) -> None:
  """Checks that there are as many learned positions as tokens that have one.

  Args:
    model: The positions.
    context: What they are given.
    count: Number of patches.
    before: How many tokens before them have a position.

  Raises:
    ValueError: There are more, or fewer.
  """
  sizes, path = (context.image_size, context.patch_size), 'position_embedding'
  check_tokens(model, *sizes, before + count, (path,), axis=1, prefix=before)


def check_tokens(
  model: nn.Module,
  size: Sequence[int],
  patch_size: Sequence[int],
  count: int,
  path: Sequence[str],
  axis: int,
  prefix: int = 0,
) -> None:
  """Checks that parameters are for as many tokens as an image has.

  Args:
    model: The model that is applied.
    size: Sides of the images, in pixels; () if they are not known.
    patch_size: Sides of what a token stands for, in pixels; () if not known.
    count: Number of the tokens of an image that the parameters depend on.
    path: Path of a parameter.
    axis: Its axis of tokens.
    prefix: How many of `count` are no patches.

  Raises:
    ValueError: They are for another number.
  """
  stored = _shape(model, *path)
  if stored is None or stored[axis] == count:
    return
  patches = stored[axis] - prefix
  side = math.isqrt(max(patches, 0))
  square = ''
  if len(patch_size) == 2 and side * side == patches:
    square = f', as of {side * patch_size[0]} x {side * patch_size[1]} pixels'
  image_text = f' of {times(size)} pixels' if size else ''
  size_text = ', '.join(map(str, size)) or 'height, width'
  raise ValueError(
    f'an image{image_text} has {count - prefix} patches, but the parameters are'
    f' for {patches}{square}: give images of that size, or load the model for'
    f' these, as vit_jax.load(PATH, image_size=({size_text}))'
  )


def _shape(model: nn.Module, *path: str) -> tuple[int, ...] | None:
  """Returns the shape of a stored parameter; None if there is none."""
  node: Any = model.variables.get('params', {})
  for name in path:
    if name not in node:
      return None
    node = node[name]
  return tuple(node.shape)


def features_error(pool: nn.Module, x: jax.Array, ndim: int) -> ValueError:
  """Returns the error about features that have another number of axes."""
  axes = '[B, D]' if ndim == 2 else '[B, S, D]'
  return ValueError(
    f'{type(pool).__name__} returns features of the shape {list(x.shape)}: they'
    f' must be {axes}'
  )
