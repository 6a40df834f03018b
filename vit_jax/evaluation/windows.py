"""Predictions for images and volumes that are larger than a model's input.

A model sees windows, which overlap; where several windows predict a place, the
mean counts. In comments: B images, C channels, K classes.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import maps

# Logits [B, ..., K] of images or volumes [B, ..., C], of any batch size.
Apply = Callable[[np.ndarray], np.ndarray]

_LEAST = 1e-3  # least weight of a place in a window
_ROWS = 64  # of a map that are resized at a time


def starts(
  size: Sequence[int], window: Sequence[int], stride: Sequence[int]
) -> np.ndarray:
  """Returns the first places of all windows, int64 [windows, axes].

  Windows are `stride` apart, and the last one along an axis ends where the
  image ends. The last axis changes fastest.

  Args:
    size: Lengths of the image's axes.
    window: Lengths of a window's axes, at most the image's.
    stride: Distances of windows along each axis.
  """
  axis_starts = []
  for n, length, step in zip(size, window, stride, strict=True):
    count = max(n - length + step - 1, 0) // step + 1
    axis_starts.append(
      [min(i * step, max(n - length, 0)) for i in range(count)]
    )
  return np.array(list(itertools.product(*axis_starts)), np.int64)


def strides(window: Sequence[int], overlap: float) -> tuple[int, ...]:
  """Returns the distances of windows along each axis, at least 1.

  Neighbouring windows share `overlap` of their length, from 0 to 1.
  """
  return tuple(max(int(n * (1 - overlap)), 1) for n in window)


def gaussian(window: Sequence[int], sigma: float = 0.125) -> np.ndarray:
  """Returns weights of a window's places, float32 [window], as MONAI's.

  They are a Gaussian around the window's centre, so that a prediction counts
  less near the edges, where the model sees less of a place's surroundings.

  Args:
    window: Lengths of a window's axes.
    sigma: Standard deviation as a share of these lengths.
  """
  weights = np.ones((), np.float64)
  for n in window:
    distance = (np.arange(n) - (n - 1) / 2) / (sigma * n)
    weights = weights[..., None] * np.exp(-0.5 * distance**2)
  least = max(float(weights.min()), _LEAST)
  return np.maximum(weights, least).astype(np.float32)


class _Windows:
  """The windows of an image.

  Attributes:
    corners: Their first places, int64 [windows, axes].
    weights: Weights of a window's places, float32 [window, 1].
  """

  def __init__(
    self,
    size: Sequence[int],
    window: Sequence[int],
    stride: Sequence[int],
    weights: np.ndarray | None,
  ):
    self._size, self._window = tuple(size), tuple(window)
    self.corners = starts(size, window, stride)
    if weights is None:
      weights = np.ones(self._window, np.float32)
    self.weights = weights[..., None]

  def slices(self, corner: np.ndarray) -> tuple[slice, ...]:
    """Returns the places of the window at a corner."""
    pairs = zip(corner.tolist(), self._window, strict=True)
    return tuple(slice(at, at + n) for at, n in pairs)

  def counts(self) -> np.ndarray:
    """Returns the sums of weights at each place, float32 [..., 1]."""
    counts = np.zeros((*self._size, 1), np.float32)
    for corner in self.corners:
      counts[self.slices(corner)] += self.weights
    return counts

  def logits(
    self, apply: Apply, images: np.ndarray, batch_size: int
  ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields an image's number, a window's corner, and its weighted logits."""
    tasks = list(itertools.product(range(len(images)), self.corners))
    for first in range(0, len(tasks), batch_size):
      part = tasks[first : first + batch_size]
      inputs = [images[i][self.slices(corner)] for i, corner in part]
      outputs = np.asarray(apply(np.stack(inputs)))
      for (i, corner), logits in zip(part, outputs, strict=True):
        yield i, corner, self.weights * logits


def slide(
  apply: Apply,
  images: np.ndarray,
  window: Sequence[int],
  stride: Sequence[int],
  *,
  weights: np.ndarray | None = None,
  pad: bool = False,
  batch_size: int = 4,
) -> np.ndarray:
  """Returns logits of images, float32 [B, ..., K], from the logits of windows.

  Only the sum of the logits and one batch of windows are in memory beside the
  images.

  Args:
    apply: The model.
    images: [B, ..., C].
    window: Lengths of a window's axes.
    stride: Distances of windows, see `strides`.
    weights: Weights of a window's places, [window]; None: all 1.
    pad: Whether an image that is smaller than a window is padded with zeros on
      both sides and its prediction cropped, as in MONAI; otherwise its window
      is as small as the image, as in mmsegmentation.
    batch_size: Windows, also of several images, that the model sees at once.
  """
  if pad:
    images, inner = _padded(images, window)
  else:
    window = tuple(map(min, window, images.shape[1:-1]))
    inner = (slice(None),)
  size = images.shape[1:-1]
  windows = _Windows(size, window, stride, weights)
  total = np.zeros(0, np.float32)
  for i, corner, logits in windows.logits(apply, images, batch_size):
    if not total.size:
      total = np.zeros((len(images), *size, logits.shape[-1]), np.float32)
    total[i][windows.slices(corner)] += logits
  total /= windows.counts()
  return total[(slice(None), *inner)]


def labels(
  apply: Apply,
  volume: np.ndarray,
  window: Sequence[int],
  stride: Sequence[int],
  weights: np.ndarray | None = None,
) -> np.ndarray:
  """Returns the most likely classes of a large volume, int32 [D, ...].

  They are the same as from `slide` with padding. The logits of a slab as deep
  as a window are in memory beside the volume, however deep it is.

  Args:
    apply: The model.
    volume: [D, ..., C].
    window: Lengths of a window's axes.
    stride: Distances of windows, see `strides`.
    weights: As for `slide`.
  """
  padded, inner = _padded(volume[None], window)
  size = padded.shape[1:-1]
  windows = _Windows(size, window, stride, weights)
  labels = np.zeros(size, np.int32)
  total = np.zeros(0, np.float32)  # of the places from `first` on
  first = 0
  for _, corner, logits in windows.logits(apply, padded, batch_size=1):
    if not total.size:
      shape = (window[0], *size[1:], logits.shape[-1])
      total = np.zeros(shape, np.float32)
    ready = int(corner[0]) - first
    if ready:  # no later window has these places
      labels[first : first + ready] = total[:ready].argmax(axis=-1)
      total[:-ready] = total[ready:].copy()
      total[-ready:] = 0
      first += ready
    total[(slice(None), *windows.slices(corner)[1:])] += logits
  labels[first:] = total.argmax(axis=-1)
  return labels[inner]


def slide_compiled(
  apply: Callable[[jax.Array], jax.Array],
  images: jax.Array,
  window: Sequence[int],
  stride: Sequence[int],
  weights: np.ndarray | None,
) -> jax.Array:
  """Returns logits [B, ..., K] as `slide`, under jit.

  Only the sum of the logits and one window of each image are in memory beside
  the images.

  Args:
    apply: The model, of images [B, *window, C].
    images: [B, ..., C], at least as large as a window.
    window: Lengths of a window's axes.
    stride: Distances of windows, see `strides`.
    weights: As for `slide`.
  """
  b, *size, channels = images.shape
  windows = _Windows(size, window, stride, weights)
  shape = (b, *window, channels)
  outputs = jax.eval_shape(apply, jax.ShapeDtypeStruct(shape, images.dtype))
  places = jnp.asarray(windows.corners, jnp.int32)

  def add(i: jax.Array, total: jax.Array) -> jax.Array:
    corner = (0, *places[i], 0)
    part = jax.lax.dynamic_slice(images, corner, shape)
    logits = windows.weights * apply(part)
    before = jax.lax.dynamic_slice(total, corner, logits.shape)
    return jax.lax.dynamic_update_slice(total, before + logits, corner)

  total = jnp.zeros((b, *size, outputs.shape[-1]), outputs.dtype)
  return jax.lax.fori_loop(0, len(places), add, total) / windows.counts()


def _padded(
  images: np.ndarray, window: Sequence[int]
) -> tuple[np.ndarray, tuple[slice, ...]]:
  """Pads images to a window's size; returns also where they are in it."""
  sizes, sides, inner = images.shape[1:-1], [(0, 0)], []
  for n, length in zip(sizes, window, strict=True):
    missing = max(length - n, 0)
    sides.append((missing // 2, missing - missing // 2))
    inner.append(slice(missing // 2, missing // 2 + n))
  return np.pad(images, [*sides, (0, 0)]), tuple(inner)


def views(
  image: np.ndarray, ratios: Sequence[float], flip: bool = True
) -> Iterator[tuple[np.ndarray, bool]]:
  """Yields an image at several sizes, [h, w, C], and whether it is mirrored.

  Args:
    image: The image as the model takes it, float32 [H, W, C].
    ratios: Factors of both sides.
    flip: Whether each size also comes with left and right exchanged.
  """
  for ratio in ratios:
    size = [int(n * ratio + 0.5) for n in image.shape[:2]]
    resized = np.asarray(maps.resize(jnp.asarray(image)[None], size))[0]
    yield resized, False
    if flip:
      yield resized[:, ::-1], True


def multi_scale(
  apply: Apply,
  image: np.ndarray,
  ratios: Sequence[float],
  flip: bool = True,
) -> np.ndarray:
  """Returns mean probabilities over sizes and mirror images, [H, W, K].

  Logits are resized to the image before the softmax, as in mmsegmentation. The
  logits of one view are in memory at a time. `apply` is the model, or `slide`
  of it; the rest is for `views`.
  """
  total: Any = 0
  count = 0
  for view in views(image, ratios, flip):
    logits = view_logits(apply, *view, image.shape[:2])
    total = total + np.asarray(jax.nn.softmax(logits, axis=-1))
    count += 1
  return total / count


def most_likely(scores: np.ndarray, size: Sequence[int]) -> np.ndarray:
  """Returns the classes of the greatest scores in another size, int32 [H, W].

  The scores are float32 [h, w, K]. Some rows of the resized ones are in memory
  at a time.
  """
  rows = maps.linear_weights(len(scores), size[0])
  columns = maps.linear_weights(scores.shape[1], size[1])
  labels = np.empty(tuple(size), np.int32)
  for start in range(0, size[0], _ROWS):
    part = rows[start : start + _ROWS]
    used = np.flatnonzero(part.any(axis=0))
    used_rows = slice(used[0], used[-1] + 1)
    narrow = np.tensordot(
      part[:, used_rows], scores[used_rows], axes=1
    )  # [rows, w, K]
    wide = np.einsum('Ww,rwk->rWk', columns, narrow, optimize=True)
    labels[start : start + _ROWS] = wide.argmax(axis=-1)
  return labels


def view_logits(
  apply: Apply, image: np.ndarray, mirrored: bool, size: Sequence[int]
) -> np.ndarray:
  """Returns the logits of one of `views` in the place of the image, [H, W, K].

  `size` is that of the image itself, (H, W).
  """
  logits = np.asarray(apply(image[None]))
  if mirrored:
    logits = logits[:, :, ::-1]
  return np.asarray(maps.resize(jnp.asarray(logits), size))[0]
