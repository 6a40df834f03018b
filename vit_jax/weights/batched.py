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
  """Returns the outputs of a model.

  Args:
    model: Linen module: [B, H, W, C] -> [B, ...].
    params: Its parameters.
    images: float32 [B, H, W, C], as the model takes them.
    batch_size: Maximum number of images at a time.

  Returns:
    [B, ...].
  """
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
    axis: The axis of B in the results.

  Returns:
    The results for all inputs, as NumPy arrays.
  """
  count = len(inputs[0])
  size = -(-count // -(-count // batch_size))  # equal parts: little padding
  results = []
  for start in range(0, count, size):
    batch = [x[start : start + size] for x in inputs]
    padding = [np.repeat(x[-1:], size - len(x), axis=0) for x in batch]
    padded = map(np.concatenate, zip(batch, padding, strict=True))
    results.append(jax.tree.map(np.asarray, apply(*padded)))
  if len(results) == 1:
    return results[0]
  index = (slice(None),) * axis + (slice(count),)
  return jax.tree.map(
    lambda *parts: np.concatenate(parts, axis)[index], *results
  )


@functools.partial(jax.jit, static_argnums=0)
def _apply(model: models.Model, params: Any, images: jax.Array) -> Any:
  return model.apply({'params': params}, images)
