"""How many places of a split's maps each class has."""

import dataclasses
from typing import Any

from absl import logging
import numpy as np

from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import input_kinds
from vit_jax.data import stored as stored_lib
from vit_jax.data import target_kinds
from vit_jax.data.host import maps
from vit_jax.data.host import threads

_FEW, _FEW_SCANS = 64, 8  # maximum number of maps that a run reads as it starts
_AHEAD = 16  # maximum number of maps that threads read ahead of the counting


@dataclasses.dataclass(frozen=True)
class ClassAreas:
  """Counted maps."""

  feature: target_kinds.SegmentationMap  # their classes
  # Of each class, and last those that do not count; int64 [K + 1].
  places: np.ndarray
  maps: int

  def absent(self) -> list[str]:
    """Returns the classes that no map has."""
    return [
      name
      for i, name in enumerate(self.feature.classes)
      if not self.places[i] and i != self.feature.ignore
    ]

  def is_useless(self) -> bool:
    """Whether there is nothing to tell apart, though several are named."""
    present = len(self.feature.classes) - len(self.absent())
    return self.maps > 0 and present < 2 <= len(self.feature.classes)

  def to_dict(self) -> dict[str, Any]:
    """Returns JSON: the places of each class, and of what does not count."""
    *places, ignored = self.places.tolist()
    classes = dict(zip(self.feature.classes, places, strict=True))
    return {'maps': self.maps, 'classes': classes, 'ignored': ignored}

  def problem(self, split: str, total: int) -> str:
    """Returns a sentence on classes that none of `total` maps has, or ''."""
    absent = self.absent()
    if not absent or not self.maps:
      return ''
    some_of = f' of {total:,} that were read' if self.maps < total else ''
    sentence = (
      f'{split}: none of the {self.maps:,} maps{some_of} has'
      f' {join_first(absent)}'
    )
    ignored = self.places[-1] / self.places.sum()
    if not ignored:
      return f'{sentence}: mend the maps, or leave out the name of the class'
    return (
      f'{sentence}, and {ignored:.1%} of their places do not count, as they'
      f' hold {self.feature.ignore} or the code of no class: if they belong to'
      ' a class, store its number, or (of images) list the stored numbers in'
      ' config.data.map.labels, as (0, 255)'
    )


def count(
  labels: np.ndarray, feature: target_kinds.SegmentationMap
) -> np.ndarray:
  """Returns the places of each class, and of none, int64 [K + 1]."""
  size, ignore = len(feature.classes), feature.ignore
  counts = np.bincount(labels.ravel(), minlength=max(size, ignore + 1))
  places = np.append(counts[:size], counts[ignore])
  if ignore < size:
    places[ignore] = 0
  return places


def check(split: str, source: base.Source, name: str) -> None:
  """Checks that the training maps have the classes that are named.

  It reads maps until each class occurred, at most 64 images or 8 volumes, drawn
  with a fixed seed. Logs which classes do not occur in them. It is an error if
  all maps were read, and there are not two classes in them.
  """
  feature = source.features[name]
  assert isinstance(feature, target_kinds.SegmentationMap)
  is_volume = isinstance(source.features['image'], input_kinds.Volume)

  def read(position: int) -> np.ndarray:
    example = source.read(position)
    labels, origin = example.values[name], example.feature_origin(name)
    if isinstance(labels, bytes):
      labels = maps.decode_map(labels, origin)
    return count(feature.encode(labels, origin), feature)

  areas = ClassAreas(feature, np.zeros(len(feature.classes) + 1, np.int64), 0)
  positions = stored_lib.sample(source, _FEW_SCANS if is_volume else _FEW)
  for places in threads.in_threads(read, positions, ahead=_AHEAD):
    areas = ClassAreas(feature, areas.places + places, areas.maps + 1)
    if not areas.absent():
      return
  problem = areas.problem(split, len(source))
  if areas.is_useless() and areas.maps == len(source):
    raise UserError(problem)
  if problem:
    logging.warning('warning: %s', problem)
