"""Resizing of positions, patch kernels and input channels.

All resizing is separable: one small matrix for each axis.
In comments: [h, w] grid of patches, [p, q] patch, D hidden size, C channels.
"""

import math

import numpy as np

from vit_jax.config import UserError

Pair = tuple[int, int]

METHODS = (
  'corner',
  'half_pixel',
  'linear_antialias',
  'bicubic',
  'bicubic_antialias',
  'dino',
  'geometric',
)


def check_method(method: str) -> None:
  """Raises a UserError unless `method` is one of `METHODS`."""
  if method not in METHODS:
    raise UserError(
      f'there is no method {method!r} to resize with: choose one of'
      f' {", ".join(METHODS)}'
    )


def resize_matrix(old: int, new: int, method: str) -> np.ndarray:
  """Returns the matrix that resizes one axis: new values = matrix @ old values.

  Methods:
    - 'corner': linear, with the first and last samples kept in place. This is
      `scipy.ndimage.zoom(order=1)`, as in google-research/vision_transformer.
    - 'half_pixel': linear between pixel centres, without antialias: torch's
      `interpolate(mode='bilinear', align_corners=False)`, and
      `jax.image.resize(antialias=False)`.
    - 'linear_antialias': the same with antialias: when shrinking, the kernel
      widens with the new samples. FlexiViT (arXiv:2212.08013, its code) resizes
      positions so.
    - 'bicubic': torch's `interpolate(mode='bicubic', align_corners=False)`:
      a = -0.75, edges repeated, without antialias. Hugging Face's ViT, DeiT and
      DINOv2 use it.
    - 'bicubic_antialias': the same with `antialias=True`: a = -0.5, samples
      outside are left out, and when shrinking, the kernel widens with the new
      samples. timm and Hugging Face's DINOv2 with registers use it. It also
      differs from 'bicubic' when enlarging.
    - 'dino': 'bicubic' with a scale of (new + 0.1) / old, as in the code of
      DINO and DINOv2: sample i is read at (i + 0.5) * old / (new + 0.1) - 0.5.
      So an axis that keeps its size is resampled, too, if the other changes.
    - 'geometric': that of BEiT's fine-tuning, which differs only for relative
      positions, see `relative_positions`; otherwise 'bicubic'.

  Args:
    old: Number of samples before.
    new: Number of samples after.
    method: One of `METHODS`.

  Returns:
    float64 [new, old]; each row sums to 1.
  """
  check_method(method)
  if method == 'corner':
    return _linear(np.arange(new) * (old - 1) / max(new - 1, 1), old)
  scaled = new + 0.1 if method == 'dino' else new
  x = (np.arange(new) + 0.5) * old / scaled - 0.5
  if method == 'half_pixel':
    return _linear(np.clip(x, 0, old - 1), old)
  if method in ('bicubic', 'dino', 'geometric'):
    # Two samples on each side; edge samples are repeated beyond the edges.
    taps = np.floor(x).astype(int)[:, None] + np.arange(-1, 3)
    matrix = np.zeros((new, old))
    rows = np.arange(new)[:, None]
    weights = _cubic(x[:, None] - taps, -0.75)
    np.add.at(matrix, (rows, np.clip(taps, 0, old - 1)), weights)
    return matrix
  # Antialiased.
  distance = (x[:, None] - np.arange(old)) / max(old / new, 1)
  if method == 'linear_antialias':
    matrix = np.maximum(0, 1 - np.abs(distance))
  else:
    matrix = _cubic(distance, -0.5)
  return matrix / matrix.sum(axis=1, keepdims=True)


def positions(
  table: np.ndarray, old: tuple[int, ...], new: tuple[int, ...], method: str
) -> np.ndarray:
  """Resizes position embeddings [1, h * w, D] from one grid (h, w) to another.

  Grids of volumes are (d, h, w); a new one (t, h, w) of a video repeats the
  positions of (h, w) in each of its t frames, as in ViViT (arXiv:2103.15691,
  section 3.4). Returns float32 [1, patches of the new grid, D].
  """
  if len(old) == 2 and len(new) == 3:
    return np.tile(positions(table, old, new[1:], method), (1, new[0], 1))
  if len(old) == 3:
    x = table.reshape(*old, -1).astype(np.float32)
    for axis, sizes in enumerate(zip(old, new, strict=True)):
      x = np.moveaxis(x, axis, -1) @ resize_matrix(*sizes, method).T
      x = np.moveaxis(x, -1, axis)
    return x.reshape(1, math.prod(new), -1).astype(np.float32)
  rows, columns = (
    resize_matrix(*x, method) for x in zip(old, new, strict=True)
  )
  resized = _resize(table.reshape(*old, 1, -1), rows, columns)
  return resized.reshape(1, new[0] * new[1], -1)


def relative_positions(
  table: np.ndarray, old: Pair, new: Pair, method: str
) -> np.ndarray:
  """Resizes a table of relative positions from one grid (h, w) to another.

  The table is [(2 h - 1) (2 w - 1) + 3, H]: a row for each distance between two
  patches, and three rows for the class token, which are kept. 'geometric' is
  the method of BEiT (arXiv:2106.08254, its code of fine-tuning): a cubic spline
  through the old distances, which are spread so that they grow geometrically. A
  near distance, in patches, then keeps almost its value, however large the grid
  is; the other methods stretch the table like an image.
  """
  rows, columns = (_distances(*x, method) for x in zip(old, new, strict=True))
  distances = table[:-3].reshape(rows.shape[1], columns.shape[1], 1, -1)
  resized = _resize(distances, rows, columns).reshape(-1, table.shape[1])
  return np.concatenate([resized, table[-3:]]).astype(np.float32)


def _distances(old: int, new: int, method: str) -> np.ndarray:
  """Returns the matrix that resizes one axis of a table of distances."""
  if old == new:
    return np.eye(2 * old - 1)
  if method != 'geometric':
    return resize_matrix(2 * old - 1, 2 * new - 1, method)
  if old < 3:  # too few distances for a spline
    return resize_matrix(2 * old - 1, 2 * new - 1, 'corner')
  from scipy import interpolate  # here, since its import is slow

  # 1 + q + ... + q^(old - 2) = new - 1 gives the ratio q, by bisection.
  low, high = 1.01, 1.5
  while high - low > 1e-6:
    q = (low + high) / 2
    too_far = (1 - q ** (old - 1)) / (1 - q) > new - 1
    low, high = (low, q) if too_far else (q, high)
  distances = np.cumsum(q ** np.arange(old - 1))
  x = np.concatenate([-distances[::-1], [0], distances])
  targets = np.clip(np.arange(1 - new, new), x[0], x[-1])
  return interpolate.CubicSpline(x, np.eye(len(x)))(targets)


def patch_matrices(
  old: Pair, new: Pair, method: str = 'half_pixel'
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the matrices of `patch_kernel` for rows and columns.

  The pseudo-inverse of a Kronecker product is the product of its factors'
  pseudo-inverses. So each axis has its own matrix: float64 [new p, p] and
  [new q, q].
  """
  rows, columns = (
    np.linalg.pinv(resize_matrix(*x, method).T)
    for x in zip(old, new, strict=True)
  )
  return rows, columns


def patch_kernel(
  kernel: np.ndarray, size: Pair, method: str = 'half_pixel'
) -> np.ndarray:
  """Resizes a patch embedding's kernel [p, q, C, D] to patches of `size`.

  This is FlexiViT's PI-resize (arXiv:2212.08013, section 3.4): if B resizes a
  patch, the new kernel is pinv(B^T) times the old one. When enlarging, the
  resized patch gives exactly the same embedding as before. When shrinking, the
  embedding is as close as possible, in expectation over white-noise patches. By
  default B is bilinear between pixel centres, without antialias, as in the
  paper's code; timm's is 'bicubic_antialias'.
  """
  p, q = kernel.shape[:2]
  return _resize(kernel, *patch_matrices((p, q), size, method))


def channels(
  kernel: np.ndarray, count: int, *, is_standardized: bool = False
) -> np.ndarray:
  """Fits a kernel [p, q, C, D] to another number of input channels.

  That of volumes is [p, q, r, C, D]. 4 channels are colours and alpha. The
  kernel of a new alpha channel is zero; an old one is dropped. For one channel
  the kernels of the colours are summed, so a grey image gives the same response
  as its three equal channels did. For other numbers they are repeated in turn
  and scaled by old / new, as in timm, which keeps the response to equal
  channels.

  Standardisation (each filter to mean 0 and variance 1) would break this, since
  subtracting the mean makes a zero kernel nonzero. So filters of a kernel that
  the model standardises are centred first, which does not change the function,
  and rescaled to their old variance. Then adding alpha or repeating grey scales
  all filters by the same factor, which the next GroupNorm removes. Summed
  filters keep their shape, but not their scales relative to each other:
  standardisation fixes these.
  """
  if kernel.ndim > 4:  # of volumes
    flat = channels(kernel.reshape(-1, 1, *kernel.shape[-2:]), count)
    return flat.reshape(*kernel.shape[:-2], *flat.shape[-2:])
  wide = kernel.astype(np.float64)
  if is_standardized:
    wide -= wide.mean(axis=(0, 1, 2))
  colours = wide[:, :, :3] if kernel.shape[2] == 4 else wide
  old, new = colours.shape[2], 3 if count == 4 else count
  if new == 1:
    colours = colours.sum(axis=2, keepdims=True)
  elif new != old:
    colours = colours[:, :, np.arange(new) % old] * (old / new)
  if count == 4:
    colours = np.pad(colours, [(0, 0), (0, 0), (0, 1), (0, 0)])
  if is_standardized:
    std = wide.std(axis=(0, 1, 2))
    new_std = colours.std(axis=(0, 1, 2))
    colours *= std / np.where(new_std > 0, new_std, 1)
  return colours.astype(np.float32)


def _resize(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
  """Applies a matrix to each of the first two axes of x [h, w, C, D]."""
  resized = np.einsum('ij,jwcd->iwcd', rows, x, optimize=True)
  resized = np.einsum('ij,hjcd->hicd', columns, resized, optimize=True)
  return resized.astype(np.float32)


def _linear(x: np.ndarray, old: int) -> np.ndarray:
  """Returns linear weights of `old` samples at positions x in [0, old - 1]."""
  return np.maximum(0, 1 - np.abs(x[:, None] - np.arange(old)))


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
  """Keys' cubic convolution kernel."""
  x = np.abs(x)
  inner_values = ((a + 2) * x - (a + 3)) * x**2 + 1
  outer_values = a * (((x - 5) * x + 8) * x - 4)
  return np.where(x <= 1, inner_values, np.where(x < 2, outer_values, 0))
