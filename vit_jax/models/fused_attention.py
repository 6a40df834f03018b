"""Attention as one TPU kernel, forward and backward, for short sequences.

The scores of an image, [T, T] for each head, stay in the memory of the chip;
only queries, keys, values and outputs are read and written. A ViT's sequences
are short enough that a whole row of scores fits, so the softmax needs no second
pass as in FlashAttention (arXiv:2205.14135). The backward pass computes the
scores again: equations of its appendix B.2, with whole rows. Rotary embeddings
and QK-norm are applied on the chip, too: outside, [B, T, H, K] of 64 channels
takes twice the memory of [B, T, D], and is copied.

In comments: B images, T tokens, D hidden size, H heads, K = D / H channels of a
head.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from vit_jax.models import rotary
from vit_jax.models import vector_lanes

# The axis of the mesh that splits heads; all others split the batch.
_HEADS = 'tensor'
# TPU v4 has the least memory on the chip, 16 MiB a core, of which some is the
# compiler's. Newer ones have 64 MiB and more.
_CHIP_BYTES = 12 * 2**20
_MOST_BYTES = 14 * 2**20

# What precedes the scores.
_Before = tuple[vector_lanes.Turn | None, vector_lanes.Norms | None]


def turn_of(
  rotation: rotary.Rotation,
  kind: str,
  shape: tuple[int, ...],
  dtype: jax.typing.DTypeLike,
  normalizes: bool = False,
) -> vector_lanes.Turn | None:
  """Returns how the kernel rotates, or None if it cannot.

  Args:
    rotation: Cosines and sines; the kernel takes those of all heads and images,
      [T, K].
    kind: A name in `rotary.KINDS`.
    shape: Shape of the tokens, (B, T, D).
    dtype: Type of queries, keys and values.
    normalizes: Whether the kernel normalises them, too.
  """
  cos, sin = rotation
  size = cos.shape[-1]
  heads = shape[-1] // size
  if cos.ndim > 2 or not fits(shape, heads, dtype, True, normalizes):
    return None
  return vector_lanes.Turn(
    cos, sin, size // 2 if rotary.KINDS[kind].halves else 1
  )


def fits(
  shape: tuple[int, ...],
  num_heads: int,
  dtype: jax.typing.DTypeLike,
  rotates: bool = False,
  normalizes: bool = False,
) -> bool:
  """Returns whether the kernel can compute a layer's attention.

  Args:
    shape: Shape of the tokens, (B, T, D).
    num_heads: H, which divides D.
    dtype: Type of queries, keys and values.
    rotates: Whether it also rotates queries and keys.
    normalizes: Whether it also normalises them.
  """
  b, t, d = shape
  batch, ways = _split()
  if num_heads % ways or b % batch or (d // ways) % vector_lanes.LANES:
    return False
  size, d = d // num_heads, d // ways
  rows = -(-t // 16) * 16
  columns = -(-t // vector_lanes.LANES) * vector_lanes.LANES
  # The backward program reads and writes seven arrays [T, D], while those of
  # the next and the last image move; and has five of float32 [T, T].
  moved = 7 * 2 * jnp.dtype(dtype).itemsize * rows * d
  if rotates:
    moved += 2 * 2 * 4 * rows * vector_lanes.table_width(d, size)
  if normalizes:
    # Queries and keys of a head in float32: centred, squares and gradients.
    width = vector_lanes.LANES * (1 if vector_lanes.LANES % size == 0 else 2)
    moved += 2 * 3 * 4 * rows * width
  return moved + 5 * 4 * rows * columns <= _CHIP_BYTES


def _split() -> tuple[int, int]:
  """Returns into how many parts the mesh splits the batch, and the heads."""
  mesh = jax.sharding.get_abstract_mesh()
  heads = dict(mesh.shape).get(_HEADS, 1)
  return mesh.size // heads if mesh.shape else 1, heads


def splits_heads() -> bool:
  """Returns whether the mesh splits the heads of a layer."""
  return _split()[1] > 1


def fused_attention(
  qkv: jax.Array,
  num_heads: int,
  turn: vector_lanes.Turn | None = None,
  norms: vector_lanes.Norms | None = None,
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
    norms: How they are normalised before that; None: they are not.
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
  return compute(qkv, (turn, norms))


def _attend(num_heads: int, qkv: jax.Array, before: _Before) -> jax.Array:
  size = qkv.shape[-1] // num_heads
  times = vector_lanes.table_width(qkv.shape[-1], size) // size
  before = jax.tree.map(lambda x: jnp.concat([x] * times, axis=-1), before)
  return _attention(qkv.reshape(*qkv.shape[:2], -1), before, num_heads)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _attention(qkv: jax.Array, before: _Before, num_heads: int) -> jax.Array:
  """Maps [B, T, 3 D] to [B, T, D].

  Args:
    qkv: Queries, keys and values.
    before: Arrays as wide as whole registers; see `vector_lanes.table_width`.
    num_heads: H.
  """
  shape = jax.ShapeDtypeStruct((*qkv.shape[:2], qkv.shape[2] // 3), qkv.dtype)
  (y,) = _call(_forward_kernel, [qkv] * 3, before, [shape], num_heads)
  return y


def _save(
  qkv: jax.Array, before: _Before, num_heads: int
) -> tuple[jax.Array, tuple[jax.Array, _Before]]:
  return _attention(qkv, before, num_heads), (qkv, before)


def _backward(
  num_heads: int, saved: tuple[jax.Array, _Before], grad: jax.Array
) -> tuple[jax.Array, _Before]:
  qkv, (turn, norms) = saved
  shapes = [jax.ShapeDtypeStruct(qkv.shape, qkv.dtype)]
  if norms is not None:  # a gradient from each image
    scales = norms.scales
    shapes.append(jax.ShapeDtypeStruct((len(qkv), *scales.shape), scales.dtype))
  found, *of_scales = _call(
    _backward_kernel, [qkv, qkv, qkv, grad], saved[1], shapes, num_heads
  )
  if norms is not None:
    norms = dataclasses.replace(norms, scales=of_scales[0].sum(axis=0))
  return found, (jax.tree.map(jnp.zeros_like, turn), norms)


_attention.defvjp(_save, _backward)


def _call(
  kernel: Callable[..., None],
  arrays: list[jax.Array],
  before: _Before,
  shapes: list[jax.ShapeDtypeStruct],
  num_heads: int,
) -> list[jax.Array]:
  """Runs a kernel for each image; interpreted where there is no TPU.

  Args:
    kernel: Gets [1, T, D] of queries, keys, values and, if there is a fourth
      array, of that, and the arrays of `before`; and writes an image's part of
      the results.
    arrays: [B, T, 3 D], three times, and maybe [B, T, D].
    before: Arrays as wide as whole registers.
    shapes: Of the results; the first is [B, T, D] or [B, T, 3 D].
    num_heads: H.
  """
  b, t, d = arrays[0].shape
  d //= 3

  def part(index: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, t, d), lambda i: (i, 0, index))

  def image(x: jax.ShapeDtypeStruct) -> pl.BlockSpec:
    rest = (0,) * (x.ndim - 1)
    return pl.BlockSpec((1, *x.shape[1:]), lambda i: (i, *rest))

  tables, form = jax.tree.flatten(before)
  specs = [part(0), part(1), part(2), part(0)][: len(arrays)]
  specs += [pl.BlockSpec(x.shape, lambda i, n=x.ndim: (0,) * n) for x in tables]
  width = shapes[0].shape[-1] // d
  products = 2 if width == 1 else 5
  call = functools.partial(
    pl.pallas_call,
    functools.partial(kernel, num_heads=num_heads, form=form),
    out_shape=shapes,
    grid=(b,),
    in_specs=specs,
    out_specs=[image(x) for x in shapes],
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
  form: Any,
) -> None:
  *tables, out_ref = refs
  turn, norms = jax.tree.unflatten(form, tables)
  size = query_ref.shape[-1] // num_heads
  for lanes, mine in vector_lanes.heads(query_ref.shape[-1], size):
    normed = functools.partial(
      vector_lanes.normed, norms=norms, mine=mine, size=size
    )
    query, key = (
      normed(ref[0, :, lanes], vector_lanes.scales_of(norms, i, lanes))
      for i, ref in enumerate((query_ref, key_ref))
    )
    query, key = (
      vector_lanes.turned(x, lanes, turn).astype(query_ref.dtype)
      for x in (query, key)
    )
    query = vector_lanes.only(mine, query)
    weights, total = _softmax(query, key, size)
    y = _dot(weights.astype(query.dtype), value_ref[0, :, lanes], (1, 0))
    vector_lanes.write(out_ref, lanes, mine, y / total)


def _backward_kernel(
  query_ref: Any,
  key_ref: Any,
  value_ref: Any,
  grad_ref: Any,
  *refs: Any,
  num_heads: int,
  form: Any,
) -> None:
  turn, norms = jax.tree.unflatten(form, refs[: form.num_leaves])
  qkv_grad_ref, *scales_grad_ref = refs[form.num_leaves :]
  for ref in scales_grad_ref:
    ref[...] = jnp.zeros_like(ref)
  width, dtype = query_ref.shape[-1], query_ref.dtype
  size = width // num_heads
  for lanes, mine in vector_lanes.heads(width, size):
    normed = functools.partial(
      vector_lanes.normed, norms=norms, mine=mine, size=size
    )
    sides = [
      jax.vjp(normed, ref[0, :, lanes], vector_lanes.scales_of(norms, i, lanes))
      for i, ref in enumerate((query_ref, key_ref))
    ]
    query, key = (
      vector_lanes.turned(x, lanes, turn).astype(dtype) for x, _ in sides
    )
    query = vector_lanes.only(mine, query)
    grad = vector_lanes.only(mine, grad_ref[0, :, lanes])
    grads = _grads(query, key, value_ref[0, :, lanes], grad, size)
    for i, (_, pull_back) in enumerate(sides):
      grads[i] = vector_lanes.turned(grads[i], lanes, turn, -1)
      if norms is not None:
        grads[i], change = pull_back(vector_lanes.only(mine, grads[i]))
        to = vector_lanes.columns(norms.scales, lanes)
        scales_grad_ref[0][0, i, :, to] += change
    for i, x in enumerate(grads):
      to = slice(i * width + lanes.start, i * width + lanes.stop)
      vector_lanes.write(qkv_grad_ref, to, mine, x)


def _grads(
  query: jax.Array, key: jax.Array, value: jax.Array, grad: jax.Array, size: int
) -> list[jax.Array]:
  """Returns the gradients of a head's queries, keys and values, in float32.

  Args:
    query: [T, lanes], 0 in those of other heads.
    key: [T, lanes].
    value: [T, lanes].
    grad: Of the output, [T, lanes], 0 in the lanes of other heads.
    size: K.
  """
  weights, total = _softmax(query, key, size)
  weights /= total
  by_weights = _dot(grad, value, (1, 1))
  mean = (weights * by_weights).sum(axis=-1, keepdims=True)
  by_scores = size**-0.5 * weights * (by_weights - mean)
  by_scores = by_scores.astype(query.dtype)
  return [
    _dot(by_scores, key, (1, 0)),
    _dot(by_scores, query, (0, 0)),
    _dot(weights.astype(grad.dtype), grad, (0, 0)),
  ]


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
