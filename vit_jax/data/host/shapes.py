"""Shapes of the images and maps of an example in a batch, by name."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import features
from vit_jax.data.host import geometry

Views = Mapping[str, geometry.View]


def example_shapes(
  kinds: features.Features,
  views: Views,
  channels: int,
  dtype: np.dtype,
  is_training: bool,
) -> dict[str, tuple[tuple[int, ...], Any]]:
  """Returns the shape and type of each feature of an example in a batch."""
  stored = features.image(kinds).whole_size(is_training)
  images = image_shapes(stored, views, channels)
  maps, map_kinds = map_sizes(stored, views, kinds), features.maps(kinds)
  targets = features.targets(kinds)
  return {
    **{name: (shape, dtype) for name, shape in images.items()},
    **{name: (size, map_kinds[name].dtype) for name, size in maps.items()},
    **{name: (x.shape, x.dtype) for name, x in targets.items()},
  }


def image_shapes(
  stored: geometry.Size | None, views: Views, channels: int
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of images by name: the `stored` one, or of crops."""
  if stored is not None:
    return {'image': (*stored, channels)}
  shapes = {}
  for name, view in views.items():
    count = () if view.count is None else (view.count,)
    shapes[name] = (*count, *view.crop.size, channels)
  return shapes


def map_sizes(
  stored: geometry.Size | None, views: Views, kinds: features.Features
) -> dict[str, geometry.Size]:
  """Returns the sizes of an example's maps of classes in a batch, by name.

  Maps follow the one crop of their image; they are left out of several.
  """
  if stored is None and not geometry.is_single(views):
    return {}
  size = stored or views['image'].crop.size
  return dict.fromkeys(features.maps(kinds), size)
