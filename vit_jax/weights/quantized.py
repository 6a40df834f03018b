"""Kernels in int8: a quarter of the bytes, for a model that only predicts.

Weights alone are quantized (by qwix): the layers compute in floats as before.
A layer reads its kernel as floats where it uses it, in the compiled program, so
that neither a model nor a scan over its layers has to know.

qwix can also change a model's products itself (`quantize_model`), but not ours:
queries, keys and values are three products with parts of one kernel, of which
it would store the last one alone, and it does not see the operator `@`.
"""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from vit_jax import models
from vit_jax.config import check_package
from vit_jax.config import UserError

KINDS = ('none', 'int8')
# With fewer inputs than this, a scale is more than half as large as its values.
_LEAST = 8


@struct.dataclass
class Kernel:
  """A quantized kernel, which `jnp.asarray` and `astype` turn into floats.

  Attributes:
    stored: A `qwix.QArray`: int8 values, and float32 scales with as many axes.
  """

  stored: Any

  def __jax_array__(self) -> jax.Array:
    import qwix

    return qwix.dequantize(self.stored)

  def astype(self, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Returns the kernel in floats."""
    return jnp.asarray(self).astype(dtype)

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the kernel in floats."""
    return tuple(self.stored.qvalue.shape)

  @property
  def size(self) -> int:
    """Number of weights."""
    return int(self.stored.qvalue.size)


def leaves(params: Any) -> list[Any]:
  """Returns the arrays and the quantized kernels of a tree."""
  return jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, Kernel))


def is_quantized(params: Any) -> bool:
  """Whether a tree has quantized kernels."""
  return any(isinstance(x, Kernel) for x in leaves(params))


def check(kind: str | None, params: Any = ()) -> None:
  """Checks that a model can be quantized so, before anything slow."""
  if is_quantized(params):
    raise UserError(
      'the model is quantized, and changes no more: make all changes in one'
      ' call, or before'
    )
  if kind not in (None, *KINDS):
    raise UserError(f'quantize is {kind!r}: choose {" or ".join(KINDS)}')
  if kind == 'int8':
    check_package('int8', 'qwix', 'quantize')


def quantize(params: Any) -> Any:
  """Returns a tree with a `Kernel` in place of each array named `kernel`."""
  return jax.tree_util.tree_map_with_path(_quantized, params)


def _quantized(path: tuple[Any, ...], x: Any) -> Any:
  """Returns an array, quantized if it is a kernel with enough inputs.

  Each scale is for the longest axis before the last one. That is the axis of
  the inputs, or of the larger part of them, whatever is beside it: the layers
  of a scan, experts, heads, or the places of a convolution.
  """
  sides = x.shape[:-1]
  if path[-1].key != 'kernel' or max(sides, default=0) < _LEAST:
    return x
  import qwix

  other_axes = [i for i in range(x.ndim) if i != sides.index(max(sides))]
  return Kernel(
    qwix.quantize(
      jnp.asarray(x, jnp.float32), jnp.int8, channelwise_axes=other_axes
    )
  )


def can_scan(model: models.Model, objective_params: Any) -> bool:
  """Whether a model's layers can be scanned; quantized ones then are.

  So one layer at a time has its kernels in floats. If they are unrolled, the
  compiler for CPUs begins with all layers, which needs the memory of floats. If
  there are `objective_params` beside it, the run has the model its way.
  """
  return not objective_params and models.has_equal_layers(model)


def num_bytes(params: Any) -> int:
  """Returns the bytes of parameters in memory."""
  return sum(x.nbytes for x in jax.tree.leaves(params))
