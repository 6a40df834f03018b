"""Sheets of a report: each image beside its maps.

In comments: B images, L layers, (h, w) the grid of patches.
"""

from collections.abc import Iterable
from collections.abc import Sequence

import numpy as np

from vit_jax.explore import subject as subject_lib
from vit_jax.plots import sheet
from vit_jax.plots import tiles
from vit_jax.weights import features

LIMITS = (224, 288)  # pixels of a tile's longer side: its caption needs them


def whole_groups(size: int, most: int) -> int:
  """Returns the columns of as many groups of `size` tiles as fit in `most`."""
  return max(1, most // size) * size


def image_tiles(
  subject: subject_lib.Subject,
  columns: int,
  limits: tuple[int, int] = (80, 288),
) -> list[np.ndarray]:
  """Returns the images as tiles for a sheet with some columns.

  `limits` are the minimum and maximum of a tile's longer side, in pixels.
  """
  size, grid = (
    subject.vit.preprocess.image_size,
    features.patch_grid(subject.vit),
  )
  shape = tiles.tile_shape(size, grid, columns, limits=limits)
  return tiles.fit_all(subject.pixels, shape)


def colored(
  maps: Iterable[np.ndarray], images: Sequence[np.ndarray], scale: sheet.Scale
) -> list[sheet.Tile]:
  """Returns maps [h, w] in colours, as large as the images."""
  shape, limits = images[0].shape[:2], (scale.low, scale.high)
  return [
    sheet.Tile(tiles.color(x, shape, limits, scale.colours)) for x in maps
  ]


def layer_rows(
  subject: subject_lib.Subject,
  maps: np.ndarray,
  scale: sheet.Scale,
  marked: tuple[int, int] | None = None,
  marks_maps: bool = False,
) -> np.ndarray:
  """Returns a row for each image: itself, and its map in each layer shown.

  Args:
    subject: The model and the images.
    maps: [L, B, h, w].
    scale: Scale of all maps.
    marked: (row, column) of a patch to frame in the image.
    marks_maps: Whether the patch is framed in the maps, too.
  """
  layers, grid = list(subject.options.layers), features.patch_grid(subject.vit)
  images = image_tiles(subject, len(layers) + 1)
  rows = []
  for i, image in enumerate(images):
    row = [sheet.Tile(image), *colored(maps[layers, i], images, scale)]
    if marked is not None:
      for j in range(len(row) if marks_maps else 1):
        row[j] = sheet.Tile(tiles.mark(row[j].image, marked, grid))
    rows.append(row)
  return sheet.draw(
    rows,
    heads=['image', *(f'layer {layer}' for layer in layers)],
    names=subject.captions,
    scale=scale,
  )


def groups(
  subject: subject_lib.Subject,
  images: Sequence[np.ndarray],
  maps: Iterable[Sequence[sheet.Tile]],
  heads: Sequence[str],
  columns: int,
  scale: sheet.Scale | None = None,
) -> np.ndarray:
  """Returns a group for each image: its tile with a caption, and its maps.

  There are K tiles of maps for each image, which `heads` names. A row has
  `columns` tiles. Without a `scale` of all maps, none is drawn.
  """
  image_groups = [
    [sheet.Tile(image, caption), *row]
    for image, caption, row in zip(images, subject.captions, maps, strict=True)
  ]
  return sheet.draw(
    sheet.grouped(image_groups, columns),
    heads=['image', *heads],
    group=len(heads) + 1,
    scale=scale,
  )
