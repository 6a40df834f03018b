"""Maps of classes for whole images, as files."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import pathlib

import numpy as np

from vit_jax.config import UserError
from vit_jax.data import scans
from vit_jax.objectives import segmenter
from vit_jax.plots import class_colours
from vit_jax.plots import class_maps
from vit_jax.plots import paper


def write(
  segment: segmenter.Segmenter,
  paths: Sequence[str],
  folder: pathlib.Path,
  report: Callable[[UserError], None],
) -> Iterator[tuple[str, np.ndarray]]:
  """Writes three files for each image; yields its path and shares of classes.

  NAME.map.png has the position of each pixel's class, NAME.colour.png its
  colour (`class_colours.label_colours`), and NAME.overlay.png both the image
  and these colours. The map of a scan is a file like the scan, NAME.map.nii.gz
  or so, and its overlay shows the three middle slices; there is no third file.

  The folder is made if it is not there. `report` is called with the error of
  each image that is left out.
  """
  folder.mkdir(parents=True, exist_ok=True)
  palette = class_colours.label_colours(segment.classes)
  stem_counts: dict[str, int] = {}
  names: set[str] = set()
  for path in paths:
    try:
      image, labels = segment(path)
    except UserError as e:
      report(e)
      continue
    stem = pathlib.Path(scans.stem(path)).name
    while (name := _numbered(stem, stem_counts)) in names:
      pass  # another image has this name by itself
    names.add(name)
    # The file has 8 bits, or 16 for more than 256 classes.
    numbers = labels.astype(np.uint8 if len(palette) <= 256 else np.uint16)
    if segment.takes_volumes:
      ending = path[len(scans.stem(path)) :].lower()
      scans.write(folder / f'{name}.map{ending}', numbers, path)
      small = scans.fitted(labels, image.shape[:3])
      overlay = _middle_slices(image, small, palette)
    else:
      paper.save(folder / f'{name}.map.png', numbers)
      paper.save(folder / f'{name}.colour.png', palette[labels])
      overlay = class_maps.overlay(image, labels, palette)
    paper.save(folder / f'{name}.overlay.png', overlay)
    counts = np.bincount(labels.ravel(), minlength=len(segment.classes))
    yield path, counts / labels.size


def _numbered(stem: str, stem_counts: dict[str, int]) -> str:
  """Returns the next name for a stem: `a`, then `a-2` and so on."""
  stem_counts[stem] = number = stem_counts.get(stem, 0) + 1
  return stem if number == 1 else f'{stem}-{number}'


def _middle_slices(
  volume: np.ndarray, labels: np.ndarray, colours: np.ndarray
) -> np.ndarray:
  """Returns the overlays of a volume's three middle slices beside each other.

  The volume is uint8 [d, h, w, 3], and its labels int [d, h, w]. The rows and
  columns of the slices are the volume's axes.
  """
  tiles = [
    class_maps.overlay(
      volume.take(n // 2, axis), labels.take(n // 2, axis), colours
    )
    for axis, n in enumerate(labels.shape)
  ]
  most = max(len(x) for x in tiles)
  pads = [((0, most - len(x)), (0, 0), (0, 0)) for x in tiles]
  return np.hstack(list(map(np.pad, tiles, pads)))
