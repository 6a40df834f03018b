"""Images of their own shapes as sequences of patches (NaFlex).

SigLIP 2 (arXiv:2502.14786, section 2.4), in the form of transformers: an image
is resized to a multiple of the patch that nearly keeps its shape and has no
more patches than a given number; its patches are padded to that number.
"""

import math

import numpy as np

_PRECISION = 1e-5  # of the search for the scale, as in transformers
_LARGEST = 100.0  # scale


def size(image: tuple[int, int], patch: int, most: int) -> tuple[int, int]:
  """Returns the (height, width) to which an image is resized.

  Args:
    image: (height, width).
    patch: Side of a patch.
    most: Largest number of patches.
  """

  def scaled(length: int, scale: float) -> int:
    return max(patch, math.ceil(length * scale / patch) * patch)

  low, high = _PRECISION / 10, _LARGEST
  while high - low >= _PRECISION:
    middle = (low + high) / 2
    height, width = (scaled(n, middle) for n in image)
    fits = (height // patch) * (width // patch) <= most
    low, high = (middle, high) if fits else (low, middle)
  return scaled(image[0], low), scaled(image[1], low)


def padded(
  image: np.ndarray, patch: tuple[int, int], count: int
) -> tuple[np.ndarray, tuple[int, int]]:
  """Returns the patches of an image, and their grid.

  Args:
    image: [H, W, C], a multiple of the patch.
    patch: Patch size (height, width).
    count: N, patches with padding.

  Returns:
    [N, p * q * C], with zeros behind; and rows and columns.
  """
  grid = image.shape[0] // patch[0], image.shape[1] // patch[1]
  # [h, p, w, q, C] -> [h, w, p, q, C]
  found = image.reshape(grid[0], patch[0], grid[1], patch[1], -1)
  found = found.swapaxes(1, 2).reshape(math.prod(grid), -1)
  missing = count - len(found)
  return np.pad(found, ((0, missing), (0, 0))), grid
