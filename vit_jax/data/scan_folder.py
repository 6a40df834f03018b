"""Scans with maps of classes, in folders.

    dataset.json  imagesTr/*  labelsTr/*      Medical Segmentation Decathlon
    images/[{train,val,...}/]**  masks/...    as images with maps: `pairs.py`

The Decathlon's dataset.json names the classes and lists the pairs; its imagesTs
have no maps and are left out, so that its one split is 'train'. A map is
turned to the axes of its scan, and must then have the same places of the body.
All scans have the same number of modalities, and may differ in size:
`input_kinds.Volume` says how batches are made of them.
"""

import os
from typing import cast

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import codes
from vit_jax.data import folder
from vit_jax.data import input_kinds
from vit_jax.data import pairs
from vit_jax.data import scans
from vit_jax.data import stored as stored_lib
from vit_jax.runs import safe_io

_TRAIN = 'train'


class ScansSource(pairs.PairedSource):
  """The scans and maps of a split, ordered by a hash of their paths."""

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    """Lists the files of the folder, and reads their headers.

    A header that cannot be read raises a UserError, as does a file without the
    other of its pair.
    """
    self._root = root = stored_lib.data_path(config.data.name)
    self._preparation = scans.from_config(config)
    if os.path.isfile(os.path.join(root, folder.DECATHLON)):
      classes, path_pairs = _decathlon(root)
      by_split = {_TRAIN: path_pairs}
    else:
      by_split = {
        name: pairs.match(*folders, scans.below, scans.stem)
        for name, folders in pairs.split_folders(root).items()
      }
      classes = pairs.read_classes(root)
    aliases = folder.other_names(root, split, list(by_split))
    super().__init__(split, by_split, root, aliases)
    headers = [
      self._checked_header(image, labels, config)
      for _, (image, labels) in self.selected()
    ]
    self._dtype = max(x.dtype.itemsize for x in headers)
    largest = [self._preparation.size(x) for x in headers]
    crop = config_lib.sides(config.data.image_size)
    if len(crop) == 3:  # else checks of the objective say what is wrong
      largest.append(cast(scans.Size, crop))
    self.features = {
      'image': input_kinds.Volume(
        cast(scans.Size, tuple(map(max, zip(*largest, strict=True)))),
        headers[0].channels,
        fixed=False,
      ),
      'map': codes.Codes().feature(classes, root),
    }

  @classmethod
  def split_names(cls, name: str) -> list[str]:
    """Returns the splits of a folder, in order; 'train' of the Decathlon."""
    root = stored_lib.data_path(name)
    return list(pairs.split_folders(root)) or [_TRAIN]

  def example(self, split: str, row: pairs.Pair, index: int) -> base.Example:
    """Returns a scan, resampled and windowed, and its map."""
    image, labels = row
    values, header = scans.read(image)
    classes, _ = scans.read_labels(labels, header)
    parts = {
      'image': self._preparation.volume(values, header, image),
      # The spacings of both files may differ by rounding.
      'map': scans.fitted(classes, self._preparation.size(header)),
    }
    return base.Example(parts, index, image, {'map': labels})

  def bits(self) -> int:
    """Returns 16 where a window is scaled, or values are stored so, else 8."""
    return 8 if self._preparation.window == 'type' and self._dtype == 1 else 16

  def fingerprint(self) -> str:
    """Returns a digest of names, classes and preparation, not of the scans."""
    names = self._names(pair for _, pair in self.selected())
    # Written under the class's first name: work directories hold this digest.
    spacing, window = self._preparation.spacing, self._preparation.window
    settings = f'How(spacing={spacing!r}, window={window!r})'
    return base.digest([*self.classes, settings, *names])

  def _checked_header(
    self, image: str, labels: str, config: ml_collections.ConfigDict
  ) -> scans.Header:
    header = scans.header(image)
    of_map = scans.header(labels, header)
    if header.size != of_map.size:
      raise UserError(
        f'{labels} has (depth, height, width) {of_map.size}, but its scan'
        f' {image} has {header.size}: both must have one size'
      )
    if (header.spacing is None) != (of_map.spacing is None):
      raise UserError(
        f'{labels} and its scan {image} must both be NIfTI or both .npy, whose'
        ' axes may differ: convert one of them'
      )
    if difference := scans.distance(header, of_map):
      raise UserError(
        f'{labels} and its scan {image} have different affines: {difference};'
        ' resample the map to the places of the scan, or remove both'
      )
    if header.channels != config.data.channels:
      raise UserError(
        f'{image} has {header.channels} channels, but config.data.channels is'
        f' {config.data.channels}: write that number, or remove the scan'
      )
    size, patch = self._preparation.size(header), config.model.patch_size
    is_patch = isinstance(patch, tuple | list) and len(patch) == 3
    if is_patch and np.any(np.less(size, tuple(patch))):
      raise UserError(
        f'{image} has {size} places, and is thinner than a patch of'
        f' {tuple(patch)}: leave it out, or set config.data.volume.spacing to'
        ' smaller distances'
      )
    return header


def find_source(root: str) -> type[base.Source] | None:
  """Returns the class that reads a folder with maps; None: it has none."""
  if os.path.isfile(os.path.join(root, folder.DECATHLON)):
    return ScansSource
  if folders := pairs.split_folders(root):
    images, _ = next(iter(folders.values()))
    has_scans = scans.below(images) and not folder.below(images)
    return ScansSource if has_scans else pairs.PairsSource
  return pairs.PairsSource if pairs.voc_lists(root) else None


def _decathlon(root: str) -> tuple[tuple[str, ...], list[pairs.Pair]]:
  path = os.path.join(root, folder.DECATHLON)
  try:
    text = safe_io.read_bytes(path, safe_io.MOST_TEXT)  # any UTF, any BOM
    content = safe_io.parse_json(text)
    by_number = {}
    for number, name in content['labels'].items():
      if not str(number).isdecimal():  # as newer files have it
        number, name = name, number
      by_number[int(number)] = str(name)
    if sorted(by_number) != list(range(len(by_number))):
      raise ValueError(f'labels are {sorted(by_number)}, and not 0, 1, 2, ...')
    listed = [(str(x['image']), str(x['label'])) for x in content['training']]
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
    raise UserError(
      f'{path} is not that of the Medical Segmentation Decathlon'
      f' ({config_lib.one_line(e)}): it needs labels, as {{"0": "background",'
      ' "1": "organ"}, and training, a list of {"image": ..., "label": ...}'
    ) from None
  path_pairs = pairs.existing(root, path, {pair[0]: pair for pair in listed})
  return tuple(by_number[i] for i in range(len(by_number))), path_pairs
