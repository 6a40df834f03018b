"""How maps of classes are stored: numbers or colours of the classes.

ADE20K stores 1 to 150, and 0 where nothing counts; Cityscapes 19 of 34 numbers,
or a colour for each class.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import ml_collections
import numpy as np

from vit_jax.config import UserError
from vit_jax.data import target_kinds
from vit_jax.data.host import decode
from vit_jax.data.host import maps

_MOST = 2**16 - 1  # the largest stored number
_IGNORE, _WIDE_IGNORE = 2**8 - 1, 2**16 - 1  # labels that do not count


@dataclasses.dataclass(frozen=True)
class Codes:
  """Stored numbers and colours, and names of files; see `config.data.map`."""

  # Stored number of each class; (): the class itself.
  labels: tuple[int, ...] = ()
  # (red, green, blue) of each class; (): maps hold numbers.
  colours: tuple[tuple[int, int, int], ...] = ()
  image_suffix: str = ''  # end of an image's name
  suffix: str = ''  # end of a map's name
  classes: tuple[str, ...] = ()  # names of the classes; (): the data has them

  def feature(
    self, classes: tuple[str, ...], class_list: str
  ) -> target_kinds.SegmentationMap:
    """Returns the feature of maps; `class_list` is their list, for errors."""
    for key, codes in (('labels', self.labels), ('colours', self.colours)):
      if codes and len(codes) != len(classes):
        raise UserError(
          f'config.data.map.{key} has {len(codes)} values, but {class_list}'
          f' names {len(classes)} classes: write one for each'
        )
    ignore = _IGNORE if len(classes) <= _IGNORE else _WIDE_IGNORE
    return target_kinds.SegmentationMap(classes, ignore)

  def decoded(self, data: bytes, ignore: int, origin: str) -> Any:
    """Returns a map: the file itself, or labels [H, W] if they have codes.

    `ignore` is the label of places whose code is that of no class.
    """
    if self.labels:
      table = _label_table(self.labels, _MOST, ignore)
      return table[maps.decode_map(data, origin)]
    if not self.colours:
      return data
    pixels = decode.as_stored(data, origin=origin)
    if pixels.dtype != np.uint8 or pixels.ndim != 3:
      raise UserError(
        f'{origin} holds numbers, but config.data.map.colours says that maps'
        ' are colours: leave that out, or bring the maps in colours'
      )
    red, green, blue = np.moveaxis(pixels[..., :3].astype(np.int32), -1, 0)
    numbers = [(r << 16) | (g << 8) | b for r, g, b in self.colours]
    table = _label_table(numbers, 2**24 - 1, ignore)
    return table[(red << 16) | (green << 8) | blue]


def _label_table(codes: Sequence[int], most: int, ignore: int) -> np.ndarray:
  """Returns the label of each code, uint8 or uint16 [most + 1]."""
  wide = max(ignore, len(codes)) > 2**8 - 1
  table = np.full(most + 1, ignore, np.uint16 if wide else np.uint8)
  table[list(codes)] = np.arange(len(codes))
  return table


def from_config(config: ml_collections.ConfigDict) -> Codes:
  """Returns the codes of a config."""
  map_config = config.data.map
  return Codes(
    tuple(map_config.labels),
    tuple(map(tuple, map_config.colours)),
    map_config.image_suffix,
    map_config.suffix,
    tuple(map_config.classes),
  )


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.data.map`."""
  map_config = config.data.map
  labels, colours = tuple(map_config.labels), tuple(map_config.colours)
  names = tuple(map_config.classes)
  if not all(isinstance(x, str) and x for x in names) or _repeats(names):
    raise UserError(
      f'config.data.map.classes is {names}: write different names, the first of'
      ' label 0'
    )
  if config.data.columns.map and not names:
    raise UserError(
      'config.data.columns.map needs the names of the classes: list them in'
      ' config.data.map.classes'
    )
  if labels and colours:
    raise UserError(
      'config.data.map has labels and colours: leave one of them out'
    )
  if not _are_numbers(labels, _MOST) or _repeats(labels):
    raise UserError(
      f'config.data.map.labels is {labels}: write different numbers from 0 to'
      f' {_MOST}, one for each class'
    )
  good = all(
    isinstance(x, tuple | list) and len(x) == 3 and _are_numbers(x, 255)
    for x in colours
  )
  if not good or _repeats(tuple(map(tuple, colours))):
    raise UserError(
      f'config.data.map.colours is {colours}: write different (red, green,'
      ' blue), each from 0 to 255, one for each class'
    )


def _are_numbers(values: Sequence[Any], most: int) -> bool:
  return all(type(x) is int and 0 <= x <= most for x in values)


def _repeats(values: tuple[Any, ...]) -> bool:
  return len(set(values)) < len(values)
