"""Attention as one TPU kernel, forward and backward, for short sequences.

The scores of an image, [T, T] for each head, stay in the memory of the chip;
only queries, keys, values and outputs are read and written. A ViT's sequences
are short enough that a whole row of scores fits, so the softmax needs no second
pass as in FlashAttention (arXiv:2205.14135). The backward pass computes the
scores again: equations of its appendix B.2, with whole rows. Rotary embeddings
are applied on the chip, too: outside, [B, T, H, K] of 64 channels takes twice
the memory of [B, T, D], and is copied.

In comments: B images, T tokens, D hidden size, H heads, K = D / H channels of a
head.
"""

from collections.abc import Callable
from collections.abc import Iterator
import functools
from typing import Any

import flax
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from vit_jax.models import rotary

# The axis of the mesh that splits heads; all others split the batch.
_HEADS = 'tensor'
# A vector register of a TPU has 128 lanes.
_LANES = 128
# TPU v4 has the least memory on the chip, 16 MiB a core, of which some is the
# compiler's. Newer ones have 64 MiB and more.
_CHIP_BYTES = 12 * 2**20
_MOST_BYTES = 14 * 2**20


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


def turn_of(
  rotation: rotary.Rotation,
  kind: str,
  shape: tuple[int, ...],
  dtype: jax.typing.DTypeLike,
) -> Turn | None:
  """Returns how the kernel rotates, or None if it cannot.

  Args:
    rotation: Cosines and sines; the kernel takes those of all heads and images,
      [T, K].
    kind: A name in `rotary.KINDS`.
    shape: Shape of the tokens, (B, T, D).
    dtype: Type of queries, keys and values.
  """
  cos, sin = rotation
  size = cos.shape[-1]
  if cos.ndim > 2 or not fits(shape, shape[-1] // size, dtype, rotates=True):
    return None
  return Turn(cos, sin, size // 2 if rotary.KINDS[kind].halves else 1)


def fits(
  shape: tuple[int, ...],
  num_heads: int,
  dtype: jax.typing.DTypeLike,
  rotates: bool = False,
) -> bool:
  """Returns whether the kernel can compute a layer's attention.

  Args:
    shape: Shape of the tokens, (B, T, D).
    num_heads: H, which divides D.
    dtype: Type of queries, keys and values.
    rotates: Whether it also rotates queries and keys.
  """
  b, t, d = shape
  batch, ways = _split()
  if num_heads % ways or b % batch or (d // ways) % _LANES:
    return False
  d //= ways
  rows = -(-t // 16) * 16
  columns = -(-t // _LANES) * _LANES
  # The backward program reads and writes seven arrays [T, D], while those of
  # the next and the last image move; and has five of float32 [T, T].
  moved = 7 * 2 * jnp.dtype(dtype).itemsize * rows * d
  if rotates:
    moved += 2 * 2 * 4 * rows * _table_width(d, shape[-1] // num_heads)
  return moved + 5 * 4 * rows * columns <= _CHIP_BYTES


def _split() -> tuple[int, int]:
  """Returns into how many parts the mesh splits the batch, and the heads."""
  mesh = jax.sharding.get_abstract_mesh()
  heads = dict(mesh.shape).get(_HEADS, 1)
  return mesh.size // heads if mesh.shape else 1, heads


def splits_heads() -> bool:
  """Returns whether the mesh splits the heads of a layer."""
  return _split()[1] > 1


def _table_width(width: int, size: int) -> int:
  """Returns the lanes of a table that repeats for each head of `size`."""
  return width if _LANES % size else _LANES


def fused_attention(
  qkv: jax.Array, num_heads: int, turn: Turn | None = None
) -> jax.Array:
  """Multi-head self-attention: [B, T, 3, D] -> [B, T, D].

  The softmax is computed in float32; products have operands of the argument's
  type and float32 results. On a mesh, each device computes its part of the
  batch and of the heads: the compiler cannot split a kernel by itself.

  Args:
    qkv: Queries, keys and values, the heads side by side in the last axis.
    num_heads: H, which divides D. The kernel must fit, see `fits`.
    turn: How queries and keys are rotated first; None: they are not. Its arrays
      are constants, and get no gradient.
  """
  batch, ways = _split()
  compute = functools.partial(_attend, num_heads // ways)
  if batch * ways > 1:
    axes = jax.sharding.get_abstract_mesh().axis_names
    rows = tuple(axis for axis in axes if axis != _HEADS)
    compute = jax.shard_map(
      compute,
      in_specs=(PartitionSpec(rows, None, None, _HEADS), PartitionSpec()),
      out_specs=PartitionSpec(rows, None, _HEADS),
      check_vma=False,
    )
  return compute(qkv, turn)


def _attend(num_heads: int, qkv: jax.Array, turn: Turn | None) -> jax.Array:
  if turn is not None:
    size = qkv.shape[-1] // num_heads
    times = _table_width(qkv.shape[-1], size) // size
    cos, sin = (jnp.tile(x, (1, times)) for x in (turn.cos, turn.sin))
    turn = Turn(cos, sin, turn.distance)
  return _attention(qkv.reshape(*qkv.shape[:2], -1), turn, num_heads)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _attention(qkv: jax.Array, turn: Turn | None, num_heads: int) -> jax.Array:
  """Maps [B, T, 3 D] to [B, T, D]."""
  return _call(_forward_kernel, [qkv] * 3, turn, 1, num_heads)


def _save(
  qkv: jax.Array, turn: Turn | None, num_heads: int
) -> tuple[jax.Array, tuple[jax.Array, Turn | None]]:
  return _attention(qkv, turn, num_heads), (qkv, turn)


def _backward(
  num_heads: int, saved: tuple[jax.Array, Turn | None], grad: jax.Array
) -> tuple[jax.Array, Turn | None]:
  qkv, turn = saved
  found = _call(_backward_kernel, [qkv, qkv, qkv, grad], turn, 3, num_heads)
  return found, jax.tree.map(jnp.zeros_like, turn)


_attention.defvjp(_save, _backward)


def _call(
  kernel: Callable[..., None],
  arrays: list[jax.Array],
  turn: Turn | None,
  width: int,
  num_heads: int,
) -> jax.Array:
  """Runs a kernel for each image; interpreted where there is no TPU.

  Args:
    kernel: Gets [1, T, D] of queries, keys, values and, if there is a fourth
      array, of that, and the tables of `turn`; and writes [1, T, width * D].
    arrays: [B, T, 3 D], three times, and maybe [B, T, D].
    turn: Its tables are those of whole registers; see `_table_width`.
    width: Arrays [T, D] in the result.
    num_heads: H.
  """
  b, t, d = arrays[0].shape
  d //= 3

  def part(index: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, t, d), lambda i: (i, 0, index))

  products = 2 if width == 1 else 5
  specs = [part(0), part(1), part(2), part(0)][: len(arrays)]
  tables = () if turn is None else (turn.cos, turn.sin)
  specs += [pl.BlockSpec(x.shape, lambda i: (0, 0)) for x in tables]
  distance = 0 if turn is None else turn.distance
  call = functools.partial(
    pl.pallas_call,
    functools.partial(kernel, num_heads=num_heads, distance=distance),
    out_shape=jax.ShapeDtypeStruct((b, t, width * d), arrays[0].dtype),
    grid=(b,),
    in_specs=specs,
    out_specs=pl.BlockSpec((1, t, width * d), lambda i: (i, 0, 0)),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel',), vmem_limit_bytes=_MOST_BYTES
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * products * b * t * t * d,
      transcendentals=b * num_heads * t * t,
      bytes_accessed=(len(arrays) + width) * b * t * d * arrays[0].itemsize,
    ),
    name='attention' if width == 1 else 'attention_backward',
  )
  return jax.lax.platform_dependent(
    *arrays, *tables, tpu=call(interpret=False), default=call(interpret=True)
  )


def _forward_kernel(
  query_ref: Any,
  key_ref: Any,
  value_ref: Any,
  *refs: Any,
  num_heads: int,
  distance: int,
) -> None:
  *tables, out_ref = refs
  size = query_ref.shape[-1] // num_heads
  for lanes, mine in _heads(query_ref.shape[-1], size):
    query, key = (
      _turned(x[0, :, lanes], lanes, tables, distance)
      for x in (query_ref, key_ref)
    )
    query = _only(mine, query)
    weights, total = _softmax(query, key, size)
    y = _dot(weights.astype(query.dtype), value_ref[0, :, lanes], (1, 0))
    _write(out_ref, lanes, mine, y / total)


def _backward_kernel(
  query_ref: Any,
  key_ref: Any,
  value_ref: Any,
  grad_ref: Any,
  *refs: Any,
  num_heads: int,
  distance: int,
) -> None:
  *tables, qkv_grad_ref = refs
  width = query_ref.shape[-1]
  size = width // num_heads
  for lanes, mine in _heads(width, size):
    query, key = (
      _turned(x[0, :, lanes], lanes, tables, distance)
      for x in (query_ref, key_ref)
    )
    query = _only(mine, query)
    grad = _only(mine, grad_ref[0, :, lanes])
    weights, total = _softmax(query, key, size)
    weights /= total
    value_grad = _dot(weights.astype(grad.dtype), grad, (0, 0))
    by_weights = _dot(grad, value_ref[0, :, lanes], (1, 1))
    mean = (weights * by_weights).sum(axis=-1, keepdims=True)
    by_scores = size**-0.5 * weights * (by_weights - mean)
    by_scores = by_scores.astype(query.dtype)
    grads = (
      _turned(_dot(by_scores, key, (1, 0)), lanes, tables, distance, -1),
      _turned(_dot(by_scores, query, (0, 0)), lanes, tables, distance, -1),
      value_grad,
    )
    for i, x in enumerate(grads):
      to = slice(i * width + lanes.start, i * width + lanes.stop)
      _write(qkv_grad_ref, to, mine, x)


def _heads(width: int, size: int) -> Iterator[tuple[slice, jax.Array]]:
  """Yields the lanes to read for each head, and which of them are its own.

  The lanes are whole registers, since to move lanes costs more than to multiply
  by zeros: a product takes as long for 64 channels as for 128.
  """
  for start in range(0, width, size):
    low = start // _LANES * _LANES
    high = min(-(-(start + size) // _LANES) * _LANES, width)
    lane = low + jax.lax.broadcasted_iota(jnp.int32, (1, high - low), 1)
    yield slice(low, high), (lane >= start) & (lane < start + size)


def _turned(
  x: jax.Array,
  lanes: slice,
  tables: list[Any],
  distance: int,
  direction: int = 1,
) -> jax.Array:
  """Rotates the pairs of channels of all heads in some lanes.

  Args:
    x: Queries, keys or their gradients, [T, lanes].
    lanes: Where they are in [T, D].
    tables: References to cosines and sines, or nothing: x stays as it is.
    distance: Between the channels of a pair; it divides half a head's.
    direction: -1: backwards, as gradients are.
  """
  if not tables:
    return x
  is_whole = tables[0].shape[-1] > _LANES
  cos, sin = (ref[:, lanes] if is_whole else ref[...] for ref in tables)
  wide, width = x.astype(jnp.float32), x.shape[-1]
  lane = lanes.start + jax.lax.broadcasted_iota(jnp.int32, (1, width), 1)
  is_first = lane % (2 * distance) < distance
  partner = jnp.where(
    is_first,
    pltpu.roll(wide, width - distance, 1),
    pltpu.roll(wide, distance, 1),
  )
  sin = jnp.where(is_first, -direction, direction) * sin
  return (wide * cos + partner * sin).astype(x.dtype)


def _only(mine: jax.Array, x: jax.Array) -> jax.Array:
  """Returns x with zeros in the lanes of other heads."""
  return jnp.where(mine, x, jnp.zeros_like(x))


def _softmax(
  query: jax.Array, key: jax.Array, size: int
) -> tuple[jax.Array, jax.Array]:
  """Returns the exponentials of a head's scores, [T, T], and rows' sums."""
  scores = _dot(query, key, (1, 1)) * size**-0.5
  weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
  return weights, weights.sum(axis=-1, keepdims=True)


def _dot(x: jax.Array, y: jax.Array, axes: tuple[int, int]) -> jax.Array:
  """Returns the product over one axis of each, in float32."""
  contracted = ((axes[0],), (axes[1],)), ((), ())
  return jax.lax.dot_general(
    x, y, contracted, preferred_element_type=jnp.float32
  )


def _write(ref: Any, lanes: slice, mine: jax.Array, x: jax.Array) -> None:
  """Writes a head's lanes of x, and keeps those of other heads."""
  ref[0, :, lanes] = jnp.where(mine, x.astype(ref.dtype), ref[0, :, lanes])
