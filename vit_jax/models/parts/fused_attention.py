"""Attention as one TPU kernel, forward and backward, for short sequences.

The scores of an image, [T, T] for each head, stay in the memory of the chip;
only queries, keys, values and outputs are read and written. A ViT's sequences
are short enough that a whole row of scores fits, so the softmax needs no second
pass as in FlashAttention (arXiv:2205.14135). The backward pass computes the
scores again: equations of its appendix B.2, with whole rows. Rotary embeddings
and QK-norm are applied on the chip, too: outside, [B, T, H, K] of 64 channels
takes twice the memory of [B, T, D], and is copied.

Forward-mode and second-order derivatives come from the same function
in plain JAX.

A register has 128 lanes, so it may hold the channels of several heads, and a
head may have some of two registers. To move lanes costs more than to multiply
by zeros, and a product takes as long for 64 channels as for 128: so functions
of lanes read whole registers, and mask the lanes of other heads.

In comments: B images, T tokens, D hidden size, H heads, K = D / H channels of a
head.
"""

from collections.abc import Callable
from collections.abc import Iterator
import concurrent.futures
import dataclasses
import functools
import math
from typing import Any
from typing import NamedTuple

import flax
from flax import linen as nn
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.interpreters import batching
from jax.interpreters import mlir
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from vit_jax.config.errors import one_line
from vit_jax.models import refusals
from vit_jax.models.attention import Attention
from vit_jax.models.attention import Projection
from vit_jax.models.block import keep
from vit_jax.models.block import LayerNorm
from vit_jax.models.context import Context
from vit_jax.models.parts import rotary

# Lanes of a vector register.
_LANES = 128
# The axis of the mesh that splits heads; all others split the batch.
_HEADS = 'tensor'
# Their matrix units take no bfloat16 operands from a kernel.
_OLD_CHIPS = ('TPU v2', 'TPU v3')
_TYPES = ('bfloat16', 'float32')
# Values of `jax_default_matmul_precision` with products as fast as without it.
_PRECISIONS = (None, 'default', 'fastest', 'bfloat16')


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


# What precedes the scores.
_Before = tuple[Turn | None, Norms | None]
_Inputs = tuple[jax.Array, _Before]


_MIB = 2**20
# Memory of a core's vector unit, MiB: v5p and v7x have 64.
_MEMORY = {'TPU v4': 16, 'TPU v5 lite': 128, 'TPU v6 lite': 128}
# What a kernel may take of it, MiB: the least of these that suffices, since the
# program around the kernel cannot use it then. A kernel's need is an estimate,
# and the compiler takes up to a fifth more.
_LIMITS = (14, 40, 56, 104)
_SLACK = 1.217
# With more tokens, a loop goes over the registers of all heads: the compiler
# takes minutes for a program that has the code of each head.
_LONG = 512


def attend(attention: Attention, x: jax.Array, context: Context) -> jax.Array:
  """Maps [B, T, D] to the values [B, T, H, K] by the kernel for TPUs."""
  qkv = _PackedProjection(name='qkv')(attention, x)
  num_heads, rotation = attention.num_heads, context.rotation
  heads = *x.shape[:2], num_heads, x.shape[-1] // num_heads
  turn, norms = _turn(attention, x, context), None
  if rotation is not None and turn is None:  # the kernel cannot rotate
    query, key, value = (qkv[:, :, i].reshape(heads) for i in range(3))
    parts = attention.prepare(query, key, value, context)
    qkv = jnp.stack([y.reshape(x.shape) for y in parts], axis=2)
  elif attention.qk_norm:
    has_bias = isinstance(attention.norm, LayerNorm)
    scales = [
      _NormParameters(heads[-1], has_bias, name=name)()
      for name in ('query_norm', 'key_norm')
    ]
    norms = Norms(jnp.stack(scales), attention.norm.epsilon, has_bias)
  y = fused_attention(qkv, num_heads, turn, norms)
  return y.reshape(heads)


class _NormParameters(nn.Module):
  """Scale and bias of a norm, [2, size]; the bias of an `RMSNorm` is 0."""

  size: int
  has_bias: bool

  @nn.compact
  def __call__(self) -> jax.Array:
    shape = (self.size,)
    scale = self.param('scale', nn.initializers.ones, shape)
    if not self.has_bias:
      return jnp.stack([scale, jnp.zeros_like(scale)])
    return jnp.stack([scale, self.param('bias', nn.initializers.zeros, shape)])


class _PackedProjection(Projection):
  """The same as one product and one array, [B, T, D] -> [B, T, 3, D]."""

  @nn.compact
  def __call__(  # type: ignore[override]
    self, attention: Attention, x: jax.Array
  ) -> jax.Array:
    d = x.shape[-1]
    kernel, bias = self.weights(attention, d)  # [D, 3, H, K] and [3, H, K]
    # A product with [D, 3, D] can be split by heads, but TPUs' compiler
    # transposes it to the kernel's order in memory.
    width = (3, d) if _split()[1] > 1 else (3 * d,)
    y = jnp.tensordot(x.astype(attention.dtype), kernel.reshape(d, *width), 1)
    # TPUs would keep [B, T, 3, D] with 8 rows for its 3.
    return keep(y + bias.reshape(width)).reshape(*x.shape[:2], 3, d)


def _turn(attention: Attention, x: jax.Array, context: Context) -> Turn | None:
  """Returns how the kernel rotates queries and keys of [B, T, D], if it can."""
  if context.rotation is None:
    return None
  shape, dtype = x.shape, attention.dtype
  return make_turn(
    context.rotation, context.layer, shape, dtype, attention.qk_norm
  )


def make_turn(
  rotation: rotary.Rotation | rotary.MixedRotation,
  layer: jax.Array | None,
  shape: tuple[int, ...],
  dtype: jax.typing.DTypeLike,
  normalizes: bool = False,
) -> Turn | None:
  """Returns how the kernel rotates tokens [B, T, D]; None: it cannot.

  It takes one rotation of all heads and images, [T, K]. `shape` is (B, T, D);
  `normalizes` says whether it normalises queries and keys, too.
  """
  cos, sin = rotation.tables(layer)
  size = cos.shape[-1]
  heads = shape[-1] // size
  if cos.ndim > 2 or not fits(shape, heads, dtype, True, normalizes):
    return None
  return Turn(cos, sin, size // 2 if rotation.halves else 1)


def refusal(attention: Attention, x: jax.Array, context: Context) -> str:
  """Returns why the kernel cannot compute this; '' if it can; see `fits`."""
  shape, num_heads, dtype = x.shape, attention.num_heads, attention.dtype
  normalizes = attention.qk_norm
  mesh, kind = jax.sharding.get_abstract_mesh(), _device_kind()
  config: Any = jax.config
  precision = config.jax_default_matmul_precision
  explicit = [mesh.shape[axis] for axis in mesh.explicit_axes]
  dtype = jnp.dtype(dtype)
  is_alone = not mesh.empty or jax.device_count() == 1
  is_precise = precision not in _PRECISIONS
  does_fit = fits(shape, num_heads, dtype, normalizes=normalizes)
  reasons = {
    f'{kind} is too old': kind in _OLD_CHIPS,
    f'the type is {dtype.name}': dtype.name not in _TYPES,
    f'jax_default_matmul_precision is {precision}': is_precise,
    'several devices are visible, and jax.set_mesh has set none': not is_alone,
    'axes of the mesh are explicit': math.prod(explicit) > 1,
    f'{shape} with {num_heads} heads does not fit a chip': not does_fit,
  }
  reason, device = refusals.first_reason(reasons), jax.local_devices()[0]
  if reason or device.platform != 'tpu':
    return reason
  return compile_problem(_kernel(attention, x, context), device)


class Kernel(NamedTuple):
  """All that decides how the kernel is compiled for a chip."""

  tokens: int  # T
  width: int  # D, of one device
  num_heads: int  # H, of one device
  dtype: str
  # Whether pairs of channels are half a head apart; None: no rotation.
  rotates_halves: bool | None = None
  # Whether QK-norm subtracts the mean; None: no QK-norm.
  centers: bool | None = None


def _kernel(attention: Attention, x: jax.Array, context: Context) -> Kernel:
  """Returns the kernel that `attend` calls for tokens [B, T, D]."""
  (_, t, d), ways, halves, centers = x.shape, _split()[1], None, None
  can_rotate = _turn(attention, x, context) is not None
  if context.rotation is not None and can_rotate:
    halves = context.rotation.halves
  # What the kernel cannot rotate, it does not normalise either.
  if attention.qk_norm and (context.rotation is None or can_rotate):
    centers = isinstance(attention.norm, LayerNorm)
  dtype = jnp.dtype(attention.dtype).name
  return Kernel(
    t, d // ways, attention.num_heads // ways, dtype, halves, centers
  )


@functools.cache
def compile_problem(kernel: Kernel, device: jax.Device) -> str:
  """Compiles a kernel alone; returns why its compiler refuses it, or ''.

  A refusal within a training step would end the run.
  """
  # A thread of its own has neither the caller's mesh nor its trace.
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    error = thread.submit(_compile, kernel, device).exception()
  if error is None:
    return ''
  reason = f'{type(error).__name__}: {one_line(error)}'
  return f'the compiler refuses it: {reason[:200]}'


def _compile(kernel: Kernel, device: jax.Device) -> None:
  """Compiles the forward and the backward pass of two images for a device."""
  tokens, width, num_heads = kernel[:3]
  sharding = jax.sharding.SingleDeviceSharding(device)
  array = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
  size, turn, norms = width // num_heads, None, None
  if kernel.rotates_halves is not None:
    table: Any = array((tokens, size), jnp.float32)
    turn = Turn(table, table, size // 2 if kernel.rotates_halves else 1)
  if kernel.centers is not None:
    scales: Any = array((2, 2, size), jnp.float32)
    norms = Norms(scales, 0.0, kernel.centers)

  def attend(qkv: jax.Array, before: _Before, grad: jax.Array) -> Any:
    y, pull_back = jax.vjp(functools.partial(_attend, num_heads), qkv, before)
    return y, pull_back(grad)

  qkv = array((2, tokens, 3, width), kernel.dtype)
  grad = array((2, tokens, width), kernel.dtype)
  jax.jit(attend).lower(qkv, (turn, norms), grad).compile()


def fits(
  shape: tuple[int, ...],
  num_heads: int,
  dtype: jax.typing.DTypeLike,
  rotates: bool = False,
  normalizes: bool = False,
) -> bool:
  """Returns whether a layer's attention fits a chip's memory and registers.

  Args:
    shape: Shape of the tokens, (B, T, D).
    num_heads: H, which divides D.
    dtype: Type of queries, keys and values.
    rotates: Whether the kernel also rotates queries and keys.
    normalizes: Whether it also normalises them.
  """
  b, t, d = shape
  batch, ways = _split()
  if num_heads % ways or b % batch or (d // ways) % _LANES:
    return False
  size = d // num_heads
  if t > _LONG and _LANES % size and size % _LANES:
    return False  # a loop over registers needs whole heads in each
  kind = _device_kind()
  memory = _MEMORY.get(kind, 64 if kind.startswith('TPU') else 16)
  itemsize = jnp.dtype(dtype).itemsize
  limit = _limit(t, d // ways, size, itemsize, rotates, normalizes)
  return b > 0 and limit is not None and limit < memory * _MIB


def _limit(
  t: int, d: int, size: int, itemsize: int, rotates: bool, normalizes: bool
) -> int | None:
  """Returns how many bytes of a chip's memory the kernel may take.

  None: it needs more than any chip has.
  """
  rows = -(-t // 16) * 16
  columns = -(-t // _LANES) * _LANES
  # The backward program reads and writes seven arrays [T, D], while the arrays
  # of the next and the last image move; and has five of float32 [T, T].
  moved = 7 * 2 * itemsize * rows * d
  if rotates:
    moved += 2 * 2 * 4 * rows * _table_width(d, size)
  if normalizes:
    # Queries and keys of a head in float32: centred, squares and gradients.
    width = _LANES * (1 if _LANES % size == 0 else 2)
    moved += 2 * 3 * 4 * rows * width
  need = _SLACK * (moved + 5 * 4 * rows * columns)
  return next((x * _MIB for x in _LIMITS if need <= x * _MIB), None)


def _device_kind() -> str:
  """Returns the kind of device of the mesh in the context, or of JAX."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return (device or jax.devices()[0]).device_kind


def _split() -> tuple[int, int]:
  """Returns into how many parts the mesh splits the batch, and the heads."""
  mesh = jax.sharding.get_abstract_mesh()
  sizes = {axis: mesh.shape[axis] for axis in mesh.auto_axes}
  heads = sizes.pop(_HEADS, 1)
  return math.prod(sizes.values()), heads


def fused_attention(
  qkv: jax.Array,
  num_heads: int,
  turn: Turn | None = None,
  norms: Norms | None = None,
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
    axes = jax.sharding.get_abstract_mesh().auto_axes
    rows = tuple(axis for axis in axes if axis != _HEADS)
    heads = _HEADS if _HEADS in axes else None
    compute = jax.shard_map(
      compute,
      in_specs=(PartitionSpec(rows, None, None, heads), PartitionSpec()),
      out_specs=PartitionSpec(rows, None, heads),
      axis_names=set(axes),
      check_vma=False,
    )
  return compute(qkv, (turn, norms))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(num_heads: int, qkv: jax.Array, before: _Before) -> jax.Array:
  """Maps [B, T, 3, D] to [B, T, D]."""
  b, t, _, d = qkv.shape
  flat = qkv.reshape(b, t, 3 * d)
  shape = jax.ShapeDtypeStruct((b, t, d), qkv.dtype)
  tables, _ = _tiled(before, d, num_heads)
  (y,) = _call(_forward_kernel, [flat] * 3, tables, [shape], num_heads)
  return y


@_attend.defjvp
def _attend_jvp(
  num_heads: int, primals: _Inputs, tangents: _Inputs
) -> tuple[jax.Array, jax.Array]:
  arrays, form = jax.tree.flatten(primals)
  tangent = _tangent_p.bind(
    *arrays, *jax.tree.leaves(tangents), num_heads=num_heads, form=form
  )
  return _attend(num_heads, *primals), tangent


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradients(
  num_heads: int, qkv: jax.Array, before: _Before, grad: jax.Array
) -> _Inputs:
  """Returns the gradients of qkv and `before` for that of the output."""
  b, t, _, d = qkv.shape
  flat = qkv.reshape(b, t, 3 * d)
  turn, norms = before
  shapes = [jax.ShapeDtypeStruct(flat.shape, qkv.dtype)]
  tables, times = _tiled(before, d, num_heads)
  if tables[1] is not None:  # a gradient from each image
    scales = tables[1].scales
    shapes.append(jax.ShapeDtypeStruct((b, *scales.shape), scales.dtype))
  qkv_grad, *scales_grad = _call(
    _backward_kernel, [flat, flat, flat, grad], tables, shapes, num_heads
  )
  if norms is not None:
    total = scales_grad[0].sum(axis=0).reshape(2, 2, times, -1).sum(axis=2)
    norms = dataclasses.replace(norms, scales=total)
  return qkv_grad.reshape(qkv.shape), (
    jax.tree.map(jnp.zeros_like, turn),
    norms,
  )


@_gradients.defjvp
def _gradients_jvp(num_heads: int, primals: Any, tangents: Any) -> Any:
  def plain(qkv: jax.Array, before: _Before, grad: jax.Array) -> Any:
    return jax.vjp(functools.partial(_plain, num_heads), qkv, before)[1](grad)

  return _gradients(num_heads, *primals), jax.jvp(plain, primals, tangents)[1]


def _tangent(*arrays: jax.Array, num_heads: int, form: Any) -> jax.Array:
  """Maps qkv and `before`, then their tangents, to the output's tangent."""
  count = form.num_leaves
  primals, tangents = (
    jax.tree.unflatten(form, part) for part in (arrays[:count], arrays[count:])
  )
  return jax.jvp(functools.partial(_plain, num_heads), primals, tangents)[1]


def _transposed_tangent(
  grad: Any, *arrays: Any, num_heads: int, form: Any
) -> list[Any]:
  """Returns the gradients of the `arrays` that are not known."""
  count = form.num_leaves
  primals = jax.tree.unflatten(form, arrays[:count])
  grads = _gradients(num_heads, *primals, ad.instantiate_zeros(grad))
  return [None] * count + [
    x if ad.is_undefined_primal(tangent) else None
    for x, tangent in zip(jax.tree.leaves(grads), arrays[count:], strict=True)
  ]


def _jvp_of_tangent(
  primals: Any, tangents: Any, **form: Any
) -> tuple[jax.Array, jax.Array]:
  tangents = tuple(map(ad.instantiate_zeros, tangents))
  return jax.jvp(functools.partial(_tangent, **form), primals, tangents)


def _batched_tangent(
  arrays: Any, axes: Any, **form: Any
) -> tuple[jax.Array, int]:
  return jax.vmap(functools.partial(_tangent, **form), axes)(*arrays), 0


# `jax.custom_vjp` has no forward mode. This is linear in the tangents, computed
# plainly, and its transpose is the backward kernel.
_tangent_p = Primitive('attention_tangent')
_tangent_p.def_impl(_tangent)
_tangent_p.def_abstract_eval(
  lambda qkv, *_, **form: qkv.update(shape=(*qkv.shape[:2], qkv.shape[3]))
)
mlir.register_lowering(
  _tangent_p, mlir.lower_fun(_tangent, multiple_results=False)
)
ad.primitive_jvps[_tangent_p] = _jvp_of_tangent
ad.primitive_transposes[_tangent_p] = _transposed_tangent
batching.primitive_batchers[_tangent_p] = _batched_tangent


def _plain(num_heads: int, qkv: jax.Array, before: _Before) -> jax.Array:
  """The same function as `_attend`, in plain JAX."""
  turn, norms = before
  b, t, _, d = qkv.shape
  heads = qkv.reshape(b, t, 3, num_heads, d // num_heads).astype(jnp.float32)
  query, key, value = (heads[:, :, i] for i in range(3))
  if norms is not None:
    query, key = (
      _normed_heads(x, scales, norms)
      for x, scales in zip((query, key), norms.scales, strict=True)
    )
  if turn is not None:
    query, key = (_turned_heads(x, turn) for x in (query, key))
  scores = jnp.einsum('bqhk,bthk->bhqt', query, key) * query.shape[-1] ** -0.5
  y = jnp.einsum('bhqt,bthk->bqhk', jax.nn.softmax(scores), value)
  return y.reshape(b, t, d).astype(qkv.dtype)


def _tiled(before: _Before, width: int, num_heads: int) -> tuple[_Before, int]:
  """Returns tables as wide as whole registers, and how often they repeat."""
  size = width // num_heads
  times = _table_width(width, size) // size
  return jax.tree.map(lambda x: jnp.concat([x] * times, axis=-1), before), times


def _call(
  kernel: Callable[..., None],
  arrays: list[jax.Array],
  before: _Before,
  shapes: list[jax.ShapeDtypeStruct],
  num_heads: int,
) -> list[jax.Array]:
  """Runs a kernel for each image; interpreted where there is no TPU.

  It gets [1, T, D] of queries, keys, values and, if there is a fourth array, of
  that, and the arrays of `before`, as wide as whole registers; and writes an
  image's part of the results. Arrays are [B, T, 3 D], three times, and maybe
  [B, T, D]; the first result is [B, T, D] or [B, T, 3 D].
  """
  b, t, d = arrays[0].shape
  d //= 3

  def part(index: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, t, d), lambda i: (i, 0, index))

  def image(x: jax.ShapeDtypeStruct) -> pl.BlockSpec:
    zeros = (0,) * (x.ndim - 1)
    return pl.BlockSpec((1, *x.shape[1:]), lambda i: (i, *zeros))

  limit = _limit(
    *(t, d, d // num_heads, arrays[0].dtype.itemsize),
    *(x is not None for x in before),
  )
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
      dimension_semantics=('parallel',), vmem_limit_bytes=limit
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

  def attend(lanes: Any, head_lanes: jax.Array) -> None:
    normed = functools.partial(
      _normed, norms=norms, head_lanes=head_lanes, size=size
    )
    query, key = (
      normed(ref[0, :, lanes], _lane_scales(norms, i, lanes))
      for i, ref in enumerate((query_ref, key_ref))
    )
    query, key = (
      _turned(x, lanes, turn).astype(query_ref.dtype) for x in (query, key)
    )
    query = _only(head_lanes, query)
    weights, total = _softmax(query, key, size)
    y = _dot(weights.astype(query.dtype), value_ref[0, :, lanes], (1, 0))
    _write(out_ref, lanes, head_lanes, y / total)

  _each_head(query_ref.shape, size, attend)


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

  def pull_back_head(lanes: Any, head_lanes: jax.Array) -> None:
    normed = functools.partial(
      _normed, norms=norms, head_lanes=head_lanes, size=size
    )
    sides = [
      jax.vjp(normed, ref[0, :, lanes], _lane_scales(norms, i, lanes))
      for i, ref in enumerate((query_ref, key_ref))
    ]
    query, key = (_turned(x, lanes, turn).astype(dtype) for x, _ in sides)
    query = _only(head_lanes, query)
    grad = _only(head_lanes, grad_ref[0, :, lanes])
    grads = _grads(query, key, value_ref[0, :, lanes], grad, size)
    for i, (_, pull_back) in enumerate(sides):
      grads[i] = _turned(grads[i], lanes, turn, -1)
      if norms is not None:
        grads[i], change = pull_back(_only(head_lanes, grads[i]))
        to = _columns(norms.scales, lanes)
        scales_grad_ref[0][0, i, :, to] += change
    for i, x in enumerate(grads):
      to = pl.ds(i * width + lanes.start, lanes.size)
      _write(qkv_grad_ref, to, head_lanes, x)

  _each_head(query_ref.shape, size, pull_back_head)


def _grads(
  query: jax.Array, key: jax.Array, value: jax.Array, grad: jax.Array, size: int
) -> list[jax.Array]:
  """Returns the gradients of a head's queries, keys and values, in float32.

  All are [T, lanes]; queries, and the gradient of the output, are 0 in the
  lanes of other heads.
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


# Heads in registers.


def _each_head(
  shape: tuple[int, ...],
  size: int,
  compute: Callable[[Any, jax.Array], None],
) -> None:
  """Calls `compute` for each head of `size` channels; arrays are [1, T, D].

  It gets the lanes to read, and which of them are the head's own.
  """
  _, tokens, width = shape
  if tokens <= _LONG:
    for lanes, head_lanes in _lanes_by_head(width, size):
      compute(lanes, head_lanes)
    return
  step = max(size, _LANES)

  def registers(i: jax.Array, _: None) -> None:
    first = pl.multiple_of(i * step, _LANES)
    for _lanes, head_lanes in _lanes_by_head(step, size):
      compute(pl.ds(first, step), head_lanes)

  jax.lax.fori_loop(0, width // step, registers, None)


def _lanes_by_head(width: int, size: int) -> Iterator[tuple[Any, jax.Array]]:
  """Yields the lanes to read for each head, and which of them are its own."""
  for start in range(0, width, size):
    low = start // _LANES * _LANES
    high = min(-(-(start + size) // _LANES) * _LANES, width)
    lane = low + jax.lax.broadcasted_iota(jnp.int32, (1, high - low), 1)
    yield pl.ds(low, high - low), (lane >= start) & (lane < start + size)


def _table_width(width: int, size: int) -> int:
  """Returns the lanes of a table that repeats for each head of `size`."""
  return width if _LANES % size else _LANES


def _columns(table: Any, lanes: Any) -> Any:
  """Returns where the values for some lanes of [T, D] are in a table."""
  return lanes if table.shape[-1] > _LANES else slice(None)


def _lane_scales(norms: Norms | None, row: int, lanes: Any) -> jax.Array | None:
  """Returns scale and bias of queries (row 0) or keys (1), [2, lanes]."""
  if norms is None:
    return None
  return norms.scales[row, :, _columns(norms.scales, lanes)]


def _normed(
  x: jax.Array,
  scales: jax.Array | None,
  norms: Norms | None,
  head_lanes: jax.Array,
  size: int,
) -> jax.Array:
  """Normalises a head's queries or keys [T, lanes]; scales are [2, lanes]."""
  if norms is None or scales is None:
    return x
  x = x.astype(jnp.float32)
  if norms.centers:
    x -= _only(head_lanes, x).sum(axis=-1, keepdims=True) / size
  variance = _only(head_lanes, x * x).sum(axis=-1, keepdims=True) / size
  return x * jax.lax.rsqrt(variance + norms.epsilon) * scales[:1] + scales[1:]


def _turned(
  x: jax.Array, lanes: Any, turn: Turn | None, direction: int = 1
) -> jax.Array:
  """Rotates [T, lanes] of all heads in some lanes; gradients backwards (-1)."""
  if turn is None:
    return x
  read = _columns(turn.cos, lanes)
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


def _normed_heads(x: jax.Array, scales: jax.Array, norms: Norms) -> jax.Array:
  """Normalises float32 [B, T, H, K] in plain JAX; scale and bias are [2, K]."""
  if norms.centers:
    x -= x.mean(axis=-1, keepdims=True)
  variance = (x * x).mean(axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(variance + norms.epsilon) * scales[0] + scales[1]


def _turned_heads(x: jax.Array, turn: Turn) -> jax.Array:
  """Rotates float32 [B, T, H, K] in plain JAX."""
  pairs = x.reshape(*x.shape[:-1], -1, 2, turn.distance)
  first, second = pairs[..., 0, :], pairs[..., 1, :]
  partner = jnp.stack([-second, first], axis=-2).reshape(x.shape)
  return x * turn.cos[:, None] + partner * turn.sin[:, None]


def _only(head_lanes: jax.Array, x: jax.Array) -> jax.Array:
  """Returns x with zeros in the lanes of other heads."""
  return jnp.where(head_lanes, x, jnp.zeros_like(x))


def _write(ref: Any, lanes: Any, head_lanes: jax.Array, x: jax.Array) -> None:
  """Writes a head's lanes of x, and keeps other heads' lanes."""
  ref[0, :, lanes] = jnp.where(
    head_lanes, x.astype(ref.dtype), ref[0, :, lanes]
  )
