"""Checks that images fit a model's parameters, before Flax compares shapes."""

from collections.abc import Sequence
import math
from typing import Any

from flax import linen as nn
import jax


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
  """Checks that images are [B, height, width, C], and their channels.

  Args:
    model: The model that is applied.
    images: What it is given.
    path: Path of the kernel that reads them, [..., C, D], or of the clusters of
      their pixels, [K, C].
    patch_size: Sides of its patch; of volumes three numbers.
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


def check_tokens(
  model: nn.Module,
  size: Sequence[int],
  patch_size: Sequence[int],
  count: int,
  path: Sequence[str],
  axis: int,
  prefix: int = 0,
) -> None:
  """Raises a ValueError if parameters are for another number of tokens.

  Args:
    model: The model that is applied.
    size: Sides of the images, in pixels; () if they are not known.
    patch_size: Sides of what a token stands for, in pixels; () if not known.
    count: Number of the tokens of an image that the parameters depend on.
    path: Path of a parameter.
    axis: Its axis of tokens.
    prefix: How many of `count` are no patches.
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
