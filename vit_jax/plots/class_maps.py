"""Draws maps of classes in colours."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from vit_jax.plots import class_colours
from vit_jax.plots import paper as paper_lib
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles

WRONG = np.array([220, 0, 0], np.uint8)  # of pixels; no class has it
_SHARE = 0.55  # of the colours in an overlay
_CONTRAST = 0.45  # of the grey image below wrong pixels
_GROUPS = 2  # images of a row, each with its maps
_LIMITS = (128, 288)  # pixels of a tile's longer side, in the file
LINE, GAP = paper_lib.LINE, paper_lib.GAP
_SWATCH = 28  # side of a colour in a legend
_HEADS = ('image', 'ground truth', 'prediction', 'errors')


def coloured(names: Sequence[str], maps: np.ndarray) -> np.ndarray:
  """Returns labels, int [...], in the colours of classes, uint8 [..., 3].

  What is no position in `names` does not count, and has `style.VOID`.
  """
  colours = class_colours.label_colours(names)
  colours = np.concatenate([colours, [style.rgb(style.VOID)]])
  classes = np.where(maps < len(names), maps, -1)
  return colours[classes].astype(np.uint8)


def overlay(
  image: np.ndarray, labels: np.ndarray, colours: np.ndarray
) -> np.ndarray:
  """Returns an image with the colours of its classes, uint8 [h, w, 3].

  A background stays as it is in the image. Labels are int [h, w], and colours
  from `class_colours.label_colours`.
  """
  mixed = (1 - _SHARE) * image + _SHARE * colours[labels]
  is_class = (colours != style.rgb(style.BACKGROUND)).any(-1)[labels]
  return np.where(is_class[..., None], np.round(mixed), image).astype(np.uint8)


def compared(
  image: np.ndarray,
  maps: Mapping[str, np.ndarray],
  colours: np.ndarray,
  ignore: int,
) -> list[np.ndarray]:
  """Returns maps in the colours of their classes, uint8 [h, w, 3] each.

  Colours, from `class_colours.label_colours`, are not mixed with the image.
  Pixels that do not count, whose label is `ignore`, have the colour
  `style.VOID`. The maps are `segments`, the prediction, and perhaps `map`, the
  ground truth, int [h, w]. With both, the result is the ground truth, the
  prediction, and the errors over the image in pale grey.
  """
  predicted = maps['segments']
  if 'map' not in maps:
    return [colours[predicted]]
  labels = maps['map']
  counts = (labels != ignore)[..., None]
  void = np.array(style.rgb(style.VOID), np.uint8)
  grey = 255 - _CONTRAST * (255 - image.mean(axis=-1, keepdims=True))
  pale = np.repeat(np.round(grey).astype(np.uint8), 3, axis=-1)
  is_wrong = (labels != predicted)[..., None]
  drawn = (
    colours[np.where(labels == ignore, 0, labels)],
    colours[predicted],
    np.where(is_wrong, WRONG, pale),
  )
  return [np.where(counts, x, void) for x in drawn]


def draw(
  names: Sequence[str],
  ignore: int,
  images: np.ndarray,
  maps: Mapping[str, np.ndarray],
  captions: Sequence[str],
) -> np.ndarray:
  """Returns a sheet with a group of tiles for each image, and a legend.

  `compared` lists the maps, [B, H, W]. The images are uint8 [B, H, W, 3].
  Captions are below the images.
  """
  colours = class_colours.label_colours(names)
  shape = tiles.tile_shape(
    images.shape[1:3], images.shape[1:3], 1, limits=_LIMITS
  )
  groups = []
  for i, caption in enumerate(captions):
    label_maps = {name: labels[i] for name, labels in maps.items()}
    drawn = compared(images[i], label_maps, colours, ignore)
    group = [sheet.Tile(sheet.fit(images[i], shape), caption)]
    group += [sheet.Tile(sheet.fit(x, shape, mixes=False)) for x in drawn]
    groups.append(group)
  heads = _HEADS if 'map' in maps else (_HEADS[0], _HEADS[2])
  return sheet.draw(
    sheet.grouped(groups, _GROUPS * len(heads)),
    heads=heads,
    group=len(heads),
    legend=[
      *legend(names, maps.values(), ignore),
      *([('wrong', WRONG)] if 'map' in maps else []),
    ],
  )


def legend(
  names: Sequence[str], maps: Iterable[np.ndarray], ignore: int
) -> list[tuple[str, np.ndarray]]:
  """Returns the names and colours of the classes that occur in maps.

  The maps are labels, int [...] each. `ignore` is the label of pixels that do
  not count.
  """
  colours = class_colours.label_colours(names)
  classes = {i for labels in maps for i in np.unique(labels).tolist()}
  entries = [(names[i], colours[i]) for i in sorted(classes - {ignore})]
  if ignore in classes:
    void = np.array(style.rgb(style.VOID), np.uint8)
    entries.append(('does not count', void))
  return entries


def swatches(
  legend: Sequence[tuple[str, np.ndarray]], right: int
) -> np.ndarray:
  """Returns names beside their colours, in as many lines as they need."""
  names = paper_lib.shorten([name for name, _ in legend], right / 2)
  places = []
  x, line = GAP, 0
  for name in names:
    wide = _SWATCH + GAP + round(paper_lib.width(name)) + 2 * GAP
    if x > GAP and x + wide > right:
      x, line = GAP, line + 1
    places.append((x, GAP + line * (LINE + GAP // 2)))
    x += wide
  paper = paper_lib.Paper(right, places[-1][1] + LINE)
  for (x, y), name, (_, colour) in zip(places, names, legend, strict=True):
    top = y + (LINE - _SWATCH) / 2
    paper.fill(x, top, _SWATCH, _SWATCH, style.FAINT)
    shape = _SWATCH - 2, _SWATCH - 2, 3
    paper.paste(np.broadcast_to(colour, shape), x + 1, top + 1)
    paper.write([name], x + _SWATCH + GAP / 2, y)
  return paper.pixels
