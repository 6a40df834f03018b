"""What the attention kernel does to the heads of a TPU's registers.

A register has 128 lanes, so it may hold the channels of several heads, and a
head may have some of two registers. To move lanes costs more than to multiply
by zeros, and a product takes as long for 64 channels as for 128: so these
functions read whole registers, and mask the lanes of other heads.

In comments: T tokens, D hidden size, H heads, K = D / H channels of a head.
"""

from collections.abc import Iterator
from typing import Any

import flax
import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

# Lanes of a vector register.
LANES = 128


@flax.struct.dataclass
class Turn:
  """How queries and keys are rotated.

  Attributes:
    cos: Cosines by token and channel of a head, [T, K].
    sin: Sines.
    distance: Between the two channels of a pair.
  """

  cos: jax.Array
  sin: jax.Array
  distance: int = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class Norms:
  """How the queries and keys of each head are normalised.

  Attributes:
    scales: float32 [2, 2, K]: of queries, then of keys, a scale and a bias.
    epsilon: Added to the variance.
    centers: Whether the mean is subtracted: LayerNorm; else RMSNorm.
  """

  scales: jax.Array
  epsilon: float = flax.struct.field(pytree_node=False)
  centers: bool = flax.struct.field(pytree_node=False)


def heads(width: int, size: int) -> Iterator[tuple[slice, jax.Array]]:
  """Yields the lanes to read for each head, and which of them are its own."""
  for start in range(0, width, size):
    low = start // LANES * LANES
    high = min(-(-(start + size) // LANES) * LANES, width)
    lane = low + jax.lax.broadcasted_iota(jnp.int32, (1, high - low), 1)
    yield slice(low, high), (lane >= start) & (lane < start + size)


def table_width(width: int, size: int) -> int:
  """Returns the lanes of a table that repeats for each head of `size`."""
  return width if LANES % size else LANES


def columns(table: Any, lanes: slice) -> slice:
  """Returns where the values for some lanes of [T, D] are in a table."""
  return lanes if table.shape[-1] > LANES else slice(None)


def lane_scales(
  norms: Norms | None, row: int, lanes: slice
) -> jax.Array | None:
  """Returns scale and bias of queries (row 0) or keys (1), [2, lanes]."""
  if norms is None:
    return None
  return norms.scales[row, :, columns(norms.scales, lanes)]


def normed(
  x: jax.Array,
  scales: jax.Array | None,
  norms: Norms | None,
  head_lanes: jax.Array,
  size: int,
) -> jax.Array:
  """Normalises a head's queries or keys.

  Args:
    x: [T, lanes].
    scales: Scale and bias, [2, lanes]; None with `norms`.
    norms: How; None: x stays as it is.
    head_lanes: Which lanes are the head's. The others' values are of no use.
    size: K.

  Returns:
    float32 [T, lanes], or x.
  """
  if norms is None or scales is None:
    return x
  x = x.astype(jnp.float32)
  if norms.centers:
    x -= only(head_lanes, x).sum(axis=-1, keepdims=True) / size
  variance = only(head_lanes, x * x).sum(axis=-1, keepdims=True) / size
  return x * jax.lax.rsqrt(variance + norms.epsilon) * scales[:1] + scales[1:]


def turned(
  x: jax.Array, lanes: slice, turn: Turn | None, direction: int = 1
) -> jax.Array:
  """Rotates the pairs of channels of all heads in some lanes.

  Args:
    x: Queries, keys or their gradients, [T, lanes].
    lanes: Where they are in [T, D].
    turn: How; None: x stays as it is.
    direction: -1: backwards, as gradients are.
  """
  if turn is None:
    return x
  read = columns(turn.cos, lanes)
  cos, sin = turn.cos[:, read], turn.sin[:, read]
  wide, width, distance = x.astype(jnp.float32), x.shape[-1], turn.distance
  lane = lanes.start + jax.lax.broadcasted_iota(jnp.int32, (1, width), 1)
  is_first = lane % (2 * distance) < distance
  partner = jnp.where(
    is_first,
    pltpu.roll(wide, width - distance, 1),
    pltpu.roll(wide, distance, 1),
  )
  sin = jnp.where(is_first, -direction, direction) * sin
  return (wide * cos + partner * sin).astype(x.dtype)


def normed_heads(x: jax.Array, scales: jax.Array, norms: Norms) -> jax.Array:
  """Normalises float32 [B, T, H, K] in plain JAX; scale and bias are [2, K]."""
  if norms.centers:
    x -= x.mean(axis=-1, keepdims=True)
  variance = (x * x).mean(axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(variance + norms.epsilon) * scales[0] + scales[1]


def turned_heads(x: jax.Array, turn: Turn) -> jax.Array:
  """Rotates float32 [B, T, H, K] in plain JAX."""
  pairs = x.reshape(*x.shape[:-1], -1, 2, turn.distance)
  first, second = pairs[..., 0, :], pairs[..., 1, :]
  partner = jnp.stack([-second, first], axis=-2).reshape(x.shape)
  return x * turn.cos[:, None] + partner * turn.sin[:, None]


def only(head_lanes: jax.Array, x: jax.Array) -> jax.Array:
  """Returns x with zeros in the lanes of other heads."""
  return jnp.where(head_lanes, x, jnp.zeros_like(x))


def write(ref: Any, lanes: slice, head_lanes: jax.Array, x: jax.Array) -> None:
  """Writes a head's lanes of x, and keeps those of other heads."""
  ref[0, :, lanes] = jnp.where(
    head_lanes, x.astype(ref.dtype), ref[0, :, lanes]
  )
