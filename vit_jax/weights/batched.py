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
  before = (slice(None),) * axis
  results: Any = None
  for start in range(0, count, size):
    batch = [x[start : start + size] for x in inputs]
    if missing := size - len(batch[0]):
      batch = [
        np.concatenate([x, np.repeat(x[-1:], missing, axis=0)]) for x in batch
      ]
    outputs = jax.tree.map(np.asarray, apply(*batch))
    if size == count:
      return outputs
    if results is None:
      results = jax.tree.map(
        lambda x: np.empty(
          (*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype
        ),
        outputs,
      )
    rows = (*before, slice(start, start + size))
    unpadded = (*before, slice(count - start))
    for array, batch_array in zip(
      jax.tree.leaves(results), jax.tree.leaves(outputs), strict=True
    ):
      array[rows] = batch_array[unpadded]
  return results


@functools.partial(jax.jit, static_argnums=0)
def _apply(model: models.Model, params: Any, images: jax.Array) -> Any:
  return model.apply({'params': params}, images)
