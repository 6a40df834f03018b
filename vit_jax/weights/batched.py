"""Applies a model to images in memory, batch by batch.

For a split or many files, `evaluation.loaded` reads images as needed and uses
all devices.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import models


def apply(
  model: models.Model, params: Any, images: np.ndarray, batch_size: int = 32
) -> np.ndarray:
  """Returns the outputs [B, ...] of a model for float32 [B, H, W, C]."""
  params = jax.tree.map(jnp.asarray, params)
  return in_batches(lambda x: _apply(model, params, x), [images], batch_size)


def in_batches(
  apply: Callable[..., Any],
  inputs: Sequence[np.ndarray],
  batch_size: int,
  axis: int = 0,
) -> Any:
  """Applies a function to batches of equal size; the last one is padded.

  Args:
    apply: Maps a batch of each input to an array or a tree of arrays.
    inputs: Arrays [B, ...].
    batch_size: Maximum size of a batch.
    axis: The axis of B in the results, which are NumPy arrays.
  """
  count = len(inputs[0])
  size = -(-count // -(-count // batch_size))  # equal parts: little padding
  results: Any = None
  for start in range(0, count, size):
    batch = [_padded(x[start : start + size], size) for x in inputs]
    outputs = jax.tree.map(np.asarray, apply(*batch))
    if size == count:
      return outputs
    if results is None:
      results = jax.tree.map(lambda x: _empty(x, count, axis), outputs)
    put = functools.partial(_put, start=start, axis=axis)
    jax.tree.map(put, results, outputs)
  return results


def _padded(x: np.ndarray, size: int) -> np.ndarray:
  if len(x) == size:
    return x
  return np.concatenate([x, np.repeat(x[-1:], size - len(x), axis=0)])


def _empty(like: np.ndarray, count: int, axis: int) -> np.ndarray:
  shape = (*like.shape[:axis], count, *like.shape[axis + 1 :])
  return np.empty(shape, like.dtype)


def _put(results: np.ndarray, batch: np.ndarray, start: int, axis: int) -> None:
  """Copies a batch, but for its padding, into the results."""
  target = np.moveaxis(results, axis, 0)[start:]
  source = np.moveaxis(batch, axis, 0)
  count = min(len(target), len(source))
  target[:count] = source[:count]


@functools.partial(jax.jit, static_argnums=0)
def _apply(model: models.Model, params: Any, images: jax.Array) -> Any:
  return model.apply({'params': params}, images)
