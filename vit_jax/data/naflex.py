"""Images of their own shapes as sequences of patches (NaFlex).

SigLIP 2 (arXiv:2502.14786, section 2.4), in the form of transformers: an image
is resized to a multiple of the patch that nearly keeps its shape and has no
more patches than a given number; its patches are padded to that number.
"""

from collections.abc import Sequence
import math

import numpy as np

_PRECISION = 1e-5  # of the search for the scale, as in transformers
_LARGEST = 100.0  # scale


def size(image: tuple[int, int], patch: int, most: int) -> tuple[int, int]:
  """Returns the (height, width) of an image of at most `most` patches."""
  factor = scale(image, patch, most)
  return _scaled(image[0], factor, patch), _scaled(image[1], factor, patch)


def scale(image: tuple[int, int], patch: int, most: int) -> float:
  """Returns the factor by which an image is resized; arguments as of `size`."""
  low, high = _PRECISION / 10, _LARGEST
  while high - low >= _PRECISION:
    middle = (low + high) / 2
    height, width = (_scaled(n, middle, patch) for n in image)
    fits = (height // patch) * (width // patch) <= most
    low, high = (middle, high) if fits else (low, middle)
  return low


def _scaled(length: int, scale: float, patch: int) -> int:
  return max(patch, math.ceil(length * scale / patch) * patch)


def packed(counts: Sequence[int], most: int) -> list[list[int]]:
  """Returns the images of each sequence, by first fit of falling size.

  NaViT (arXiv:2307.06304) packs greedily, too. `counts` has the patches of each
  image; one with more than a sequence holds is a ValueError.
  """
  sequences: list[list[int]] = []
  left: list[int] = []
  for i in sorted(range(len(counts)), key=lambda i: -counts[i]):
    if counts[i] > most:
      raise ValueError(
        f'image {i} has {counts[i]} patches, and a sequence at most {most}:'
        ' resize it by `size`'
      )
    row = next((r for r, n in enumerate(left) if n >= counts[i]), None)
    if row is None:
      row = len(sequences)
      sequences.append([])
      left.append(most)
    sequences[row].append(i)
    left[row] -= counts[i]
  return sequences


def padded(
  image: np.ndarray, patch: tuple[int, int], count: int
) -> tuple[np.ndarray, tuple[int, int]]:
  """Returns the patches of an image, and their grid.

  The image, [H, W, C], is a multiple of the patch. Its patches, [N, p * q * C],
  have zeros behind, up to N = `count`.
  """
  grid = image.shape[0] // patch[0], image.shape[1] // patch[1]
  # [h, p, w, q, C] -> [h, w, p, q, C]
  patches = image.reshape(grid[0], patch[0], grid[1], patch[1], -1)
  patches = patches.swapaxes(1, 2).reshape(math.prod(grid), -1)
  missing = count - len(patches)
  return np.pad(patches, ((0, missing), (0, 0))), grid
