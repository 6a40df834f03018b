"""Compares the shapes in a checkpoint with those that a model needs."""

from collections.abc import Mapping
import re
from typing import Any
from typing import cast

from flax import traverse_util
import numpy as np

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.weights import resize

_MOST_PIXELS = 2**14  # limit of a side: 1024 patches of 16 pixels


def grid(model: models.Model, size: tuple[int, ...]) -> tuple[int, int]:
  """Returns the grid of patches, (h, w); (1, 1) if the model has no patches.

  That of volumes is (d, h, w).
  """
  if max(size) > _MOST_PIXELS:
    raise UserError(
      f'images of {show(size)} pixels are too large: at most'
      f' {_MOST_PIXELS} a side'
    )
  patch = models.pixels_per_token(model)
  if patch is None:
    return 1, 1
  if len(patch) != len(size):
    raise UserError(
      f'images of {show(size)} pixels have {len(size)} sides, but patches of'
      f' {show(patch)} have {len(patch)}: give another image_size'
    )
  if any(
    models.is_not_filled(model, n, p) for n, p in zip(size, patch, strict=True)
  ):
    raise UserError(
      f'images of {show(size)} pixels do not divide into patches of'
      f' {show(patch)}: give another image_size'
    )
  sides_in_patches = tuple(n // p for n, p in zip(size, patch, strict=True))
  return cast(tuple[int, int], sides_in_patches)


def image_size(model: models.Model, grid: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the (height, width) in pixels for which a model has a grid (h, w).

  Of volumes both have three sides. A model without patches has 32 pixels for
  each position.
  """
  patch = models.pixels_per_token(model) or (32, 32)
  return tuple(n * p for n, p in zip(grid, patch, strict=True))


def pair(image_size: Any) -> tuple[int, int]:
  """Returns (height, width) of a size that a user gave."""
  try:
    return config_lib.pair(image_size, 'data.image_size')
  except UserError as e:
    raise UserError(str(e).removeprefix('config.data.')) from None


def sides(image_size: Any, like: tuple[int, ...]) -> tuple[int, int]:
  """Returns a size that a user gave, with as many sides as another one."""
  if len(like) == 2:
    return pair(image_size)
  if isinstance(image_size, int):
    image_size = (image_size,) * len(like)
  size = config_lib.sides(image_size)
  if len(size) != len(like):
    raise UserError(
      f'image_size is {image_size}, but the model takes volumes: write (depth,'
      ' height, width)'
    )
  return cast(tuple[int, int], size)


def expected_shapes(
  target: models.Model, grid: tuple[int, ...], channels: int
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes that a model needs by path, layers unrolled.

  `grid` is that of the patches, (h, w), after the embedding.
  """
  # Always as a scan, which gets the shapes faster.
  can_scan = models.has_equal_layers(target)
  model = target.clone(scan=True) if can_scan else target
  shape = (*image_size(target, grid), channels)
  params = models.abstract_params(model, shape)
  return _unrolled_shapes(traverse_util.flatten_dict(params, sep='/'))


def patch_kernel(
  model: models.Model, kernel: np.ndarray, size: tuple[int, ...]
) -> np.ndarray:
  """Resizes a kernel [p, q, C, D] to patches of `size`, as its code does.

  If `size` has three sides, as of a video, the kernel is resized to the last
  two. It becomes that of the middle frame, and other frames have zeros, as in
  ViViT (arXiv:2103.15691, section 3.4).
  """
  if kernel.ndim == 4 and len(size) == 3:
    frames, *sides = size
    middle = patch_kernel(model, kernel, tuple(sides))
    inflated = np.zeros((frames, *middle.shape), np.float32)
    inflated[frames // 2] = middle
    return inflated
  if kernel.ndim != 4 or len(size) != 2:
    raise UserError(
      f'the checkpoint has patches of {show(kernel.shape[:-2])}, and the model'
      f' of {show(size)}: those of volumes are not resized, so set'
      " config.model.patch_size to the checkpoint's"
    )
  parts = model.positions if isinstance(model, vit.ViT) else ()
  is_timms = any(getattr(x, 'resize', '') == 'bicubic' for x in parts)
  method = 'bicubic_antialias' if is_timms else 'half_pixel'
  return resize.patch_kernel(kernel, size, method)


def _unrolled_shapes(params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
  shapes: dict[str, tuple[int, ...]] = {}
  for path, x in params.items():
    if path.startswith('blocks/'):
      layer_path = path.removeprefix('blocks/')
      shapes |= {
        f'blocks_{i}/{layer_path}': x.shape[1:] for i in range(x.shape[0])
      }
    else:
      shapes[path] = x.shape
  return shapes


def check(
  params: Mapping[str, Any],
  expected: Mapping[str, tuple[int, ...]],
  source: models.Model,
  target: models.Model,
) -> None:
  """Checks that `target` can use parameters of `source` and computes the same.

  `params` are arrays by path, layers unrolled or stacked; `expected` is from
  `expected_shapes`. The error lists all differences.
  """
  old, new = map(values_lib.model_values, (source, target))
  problems = [  # shapes do not show all of them
    f'{path} is {value!r} in the checkpoint, {new_value!r} in the model'
    for path, (value, new_value) in values_lib.differences(old, new).items()
    if not values_lib.is_fitted(path, new, type(target))
  ]
  places = 'the checkpoint', 'the model'
  problems += different_arrays(params, expected, places)
  if problems:
    raise UserError(
      f'the checkpoint does not fit the model: {"; ".join(problems)}. Give the'
      " model the checkpoint's values, or choose another checkpoint"
    )


def different_arrays(
  params: Mapping[str, Any],
  expected: Mapping[str, tuple[int, ...]],
  places: tuple[str, str] = ('the run', 'config.model'),
) -> list[str]:
  """Lists missing, unexpected and misshapen parameters.

  `params` are arrays or their shapes by path, layers unrolled or stacked, and
  `expected` are shapes, layers unrolled; `places` are words for both. The same
  difference in several layers is one line.
  """
  stored = _unrolled_shapes(params)
  differences: dict[str, list[str]] = {}
  for path in stored.keys() | expected.keys():
    old, new = stored.get(path), expected.get(path)
    if old != new:
      text = f'{show(old)} in {places[0]}, {show(new)} in {places[1]}'
      if old is None or new is None:
        text = f'not in {places[old is not None]}'
      template = re.sub(r'\bblocks_\d+/', 'blocks_*/', path)
      differences.setdefault(f'{template}: {text}', []).append(path)
  problems = []
  for text, paths in sorted(differences.items()):
    if len(paths) > 1:  # the same array of several layers
      text = f'{text} (in {len(paths)} layers)'
    else:
      text = f'{paths[0]}:{text.partition(":")[2]}'
    problems.append(text)
  return problems


def show(shape: tuple[int, ...] | None) -> str:
  """Returns a shape as '16 x 768'; '-' for an array that is not there."""
  return '-' if shape is None else ' x '.join(map(str, shape)) or 'scalar'
