"""Dropout and stochastic depth whose masks do not depend on how a step runs.

Linen's own RNG streams depend on the path of a module. Here a step has one key.
Each block folds its layer and the mask's purpose into it, and each example's
position in the global batch gives the key of its mask. So masks do not depend
on scan, gradient accumulation or the number of devices.
"""

import enum
import functools
from typing import NamedTuple
from typing import Self

from flax import linen as nn
import jax
from jax.extend import random as jex_random
import jax.numpy as jnp
import numpy as np

# int32 [B], positions of a model's examples in the global batch, if they are a
# part of one; None: 0 to B - 1.
Rows = jax.Array | None


class DropoutKey(NamedTuple):
  """Key from which the random masks of a batch are drawn.

  Attributes:
    key: Random key, of the step, of a layer or of a purpose.
    rows: int32 [B], positions of the examples in the global batch.
  """

  key: jax.Array
  rows: jax.Array

  def fold(self, data: int | jax.Array) -> Self:
    """Folds a layer or a purpose into the key."""
    return self._replace(key=jax.random.fold_in(self.key, data))

  def per_row(self) -> jax.Array:
    """Returns a key for each example, [B]."""
    return jax.vmap(jax.random.fold_in, (None, 0))(self.key, self.rows)


def make_key(model: nn.Module, batch: jax.Array, rows: Rows) -> DropoutKey:
  """Returns a model's key for a step, given its batch [B, ...]."""
  if not model.has_rng('dropout'):
    raise ValueError(
      'train=True needs a key for dropout: model.apply(..., train=True,'
      " rngs={'dropout': jax.random.key(0)})"
    )
  if rows is None:
    # Not len(batch), since the batch size may be symbolic.
    rows = jnp.arange(batch.shape[0], dtype=jnp.int32)
  return DropoutKey(model.make_rng('dropout'), rows)


class Purpose(enum.IntEnum):
  """Uses of random masks in a layer; folded into the layer's key."""

  EMBEDDING = 0
  ATTENTION_WEIGHTS = 1
  ATTENTION_OUTPUT = 2
  MLP_HIDDEN = 3
  MLP_OUTPUT = 4
  ATTENTION_PATH = 5
  MLP_PATH = 6
  PATCHES = 7
  ROUTING = 8
  BRANCHES = 9


def keep_mask(
  dropout_key: DropoutKey, rate: float | jax.Array, shape: tuple[int, ...]
) -> jax.Array:
  """Draws True with probability 1 - `rate`, to a precision of 2^-16.

  A Threefry call makes two 32-bit words. 16 bits per element are enough here,
  and take a quarter of the calls of `jax.random.bernoulli`. The mask is bool
  [B, *shape]; `shape` is that of one row.
  """
  key, rows = dropout_key
  count = int(np.prod(shape))
  if 'threefry' in str(jax.random.key_impl(key)):
    words = -(-count // 2)
    draw = functools.partial(
      jex_random.threefry_2x32, count=jnp.arange(words, dtype=jnp.uint32)
    )
    bits32 = jax.vmap(draw)(jax.random.key_data(dropout_key.per_row()))
    bits = jax.lax.bitcast_convert_type(bits32, jnp.uint16)
    bits = bits.reshape(len(rows), 2 * words)[:, :count]
  else:
    # Other generators are fast only with one draw for all rows. Folding in the
    # first row's number gives each microbatch of a step its own mask.
    key = jax.random.fold_in(key, rows[0])
    bits = jax.random.bits(key, (len(rows), *shape), jnp.uint16)
  threshold = jnp.round(jnp.float32(rate) * 2**16).astype(jnp.uint32)
  return bits.reshape(len(rows), *shape).astype(jnp.uint32) >= threshold


def dropout(
  x: jax.Array,
  rate: float | jax.Array,
  dropout_key: DropoutKey | None,
  full_shape: tuple[int, ...] | None = None,
) -> jax.Array:
  """Zeroes each element of x [B, ...] with probability `rate`, scales the rest.

  Without a key (not training), or at a rate of 0 that is no array, x is
  returned. `full_shape` is that of one row of the full array, if x holds only
  its first elements along some dimensions: x gets the same mask as it would as
  a part of that.
  """
  is_zero = not isinstance(rate, jax.Array) and rate == 0
  if dropout_key is None or is_zero:
    return x
  keep = keep_mask(dropout_key, rate, full_shape or x.shape[1:])
  keep = keep[tuple(map(slice, x.shape))]
  return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), 0)


def drop_path(
  x: jax.Array,
  rate: float,
  dropout_key: DropoutKey,
  layer: jax.Array | None,
  depth: int,
) -> jax.Array:
  """Stochastic depth (arXiv:1603.09382): zeroes x [B, T, D] for whole examples.

  Args:
    x: Output of a branch, before it is added to the residual.
    rate: Probability of zero in the last layer. It grows linearly from 0, as in
      the paper.
    dropout_key: Key of the residual in this layer.
    layer: Index of the layer, from 0, as an int32 scalar; None: all layers have
      the same rate (DeiT III, arXiv:2204.07118).
    depth: Number of layers.
  """
  layer_rate = jnp.float32(rate)
  if layer is not None:
    layer_rate = rate * layer / max(depth - 1, 1)
  # Kept rows are scaled up, so that the expected value stays the same.
  keep = keep_mask(dropout_key, layer_rate, (1, 1))
  return jnp.where(keep, x / (1 - layer_rate).astype(x.dtype), 0)


def embedded(
  x: jax.Array, rate: float, depth: int, dropout_key: DropoutKey | None
) -> jax.Array:
  """Applies dropout to embedded tokens [B, T, D], with the key of a step.

  Layers fold their indices 0 to L - 1 into the key; the embedding folds L.
  """
  if dropout_key is None:
    return x
  return dropout(x, rate, dropout_key.fold(depth).fold(Purpose.EMBEDDING))
