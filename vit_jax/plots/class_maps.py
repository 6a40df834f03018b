"""Draws maps of classes in colours."""

import pathlib
from typing import Any

import cv2
import numpy as np

from vit_jax.runs import safe_io

_SHARE = 0.55  # of the colours in an overlay


def palette(count: int) -> np.ndarray:
  """Returns the colours of classes, uint8 [count, 3], red, green and blue.

  They are those of Pascal VOC: the bits of the class, three at a time, are the
  highest bits of red, green and blue. Class 0 is black.
  """
  classes = np.arange(count)
  colours = np.zeros((count, 3), np.int64)
  for i in range(8):
    for channel in range(3):
      bit = (classes >> (3 * i + channel)) & 1
      colours[:, channel] |= bit << (7 - i)
  return colours.astype(np.uint8)


def overlay(
  image: np.ndarray, labels: np.ndarray, colours: np.ndarray
) -> np.ndarray:
  """Returns an image with the colours of its classes, uint8 [h, w, 3].

  Args:
    image: uint8 [h, w, 3].
    labels: int [h, w].
    colours: From `palette`.
  """
  mixed = (1 - _SHARE) * image + _SHARE * colours[labels]
  return np.round(mixed).astype(np.uint8)


def middle_slices(
  volume: np.ndarray, labels: np.ndarray, colours: np.ndarray
) -> np.ndarray:
  """Returns the overlays of a volume's three middle slices beside each other.

  Args:
    volume: uint8 [d, h, w, 3].
    labels: int [d, h, w].
    colours: From `palette`.

  Returns:
    uint8 [H, W, 3]; the slices' rows and columns are the volume's axes.
  """
  tiles = [
    overlay(volume.take(n // 2, axis), labels.take(n // 2, axis), colours)
    for axis, n in enumerate(labels.shape)
  ]
  most = max(len(x) for x in tiles)
  pads = [((0, most - len(x)), (0, 0), (0, 0)) for x in tiles]
  return np.hstack(list(map(np.pad, tiles, pads)))


def save(path: pathlib.Path, pixels: np.ndarray) -> None:
  """Writes a PNG: grey [h, w], or colours, uint8 [h, w, 3]."""
  shown: Any = pixels[..., ::-1] if pixels.ndim == 3 else pixels
  _, encoded = cv2.imencode('.png', shown)
  with safe_io.replacing_path(path) as temporary:
    temporary.write_bytes(encoded.tobytes())


def write(
  stem: pathlib.Path,
  image: np.ndarray,
  labels: np.ndarray,
  colours: np.ndarray,
) -> None:
  """Writes STEM.map.png, STEM.colour.png and STEM.overlay.png.

  Args:
    stem: Folder and name of the files.
    image: uint8 [h, w, 3].
    labels: int [h, w]; the file has 8 bits, or 16 for more than 256 classes.
    colours: From `palette`.
  """
  wide = np.uint8 if len(colours) <= 256 else np.uint16
  for kind, pixels in (
    ('map', labels.astype(wide)),
    ('colour', colours[labels]),
    ('overlay', overlay(image, labels, colours)),
  ):
    save(stem.with_name(f'{stem.name}.{kind}.png'), pixels)
