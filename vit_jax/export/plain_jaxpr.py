"""Rewrites traced functions with fewer primitives, for converters.

Calls (jit, custom derivatives) are inlined, constants are folded, and
primitives that jax2onnx does not support, or not well, are replaced by others.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax import lax
from jax.extend import core
import jax.numpy as jnp

_NESTED = {'jaxpr', 'call_jaxpr'}  # parameters with the jaxpr of a call
_CALLS = ('jit', 'pjit', 'closed_call', 'custom_jvp_call', 'custom_vjp_call')


def plain(
  function: Callable[[jax.Array], jax.Array], images: jax.ShapeDtypeStruct
) -> Callable[[jax.Array], jax.Array]:
  """Returns the same function of an array, whose shape may be symbolic."""
  traced = jax.make_jaxpr(function)(images)
  rewritten = jax.make_jaxpr(lambda x: _evaluate(traced, x))(images)
  return lambda x: core.jaxpr_as_fun(rewritten)(x)[0]


def _evaluate(closed: core.ClosedJaxpr, *arguments: Any) -> list[Any]:
  jaxpr = closed.jaxpr
  values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
  values |= dict(zip(jaxpr.invars, arguments, strict=True))

  def read(atom: Any) -> Any:
    return atom.val if isinstance(atom, core.Literal) else values[atom]

  for equation in jaxpr.eqns:
    inputs = [read(atom) for atom in equation.invars]
    # Values and the shapes of the results are known.
    is_constant = not any(isinstance(x, jax.core.Tracer) for x in inputs) and (
      all(isinstance(n, int) for x in equation.outvars for n in x.aval.shape)
    )
    if is_constant:
      with jax.ensure_compile_time_eval():
        outputs = _apply(equation, inputs)
    else:
      outputs = _apply(equation, inputs)
    values |= dict(zip(equation.outvars, outputs, strict=True))
  return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, inputs: Sequence[Any]) -> Sequence[Any]:
  name, params = equation.primitive.name, equation.params
  if name in _CALLS:
    (key,) = _NESTED & params.keys()
    return _evaluate(params[key], *inputs)
  if name in _REWRITTEN:
    return _REWRITTEN[name](*inputs, **params)
  # In a jaxpr of its own: binding a primitive differs between versions of JAX.
  values = {
    atom: x
    for atom, x in zip(equation.invars, inputs, strict=True)
    if not isinstance(atom, core.Literal)
  }
  alone = core.Jaxpr([], list(values), equation.outvars, [equation])
  evaluate = core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))
  return evaluate(*values.values())


def _unstack(x: jax.Array, *, axis: int, **_: Any) -> list[jax.Array]:
  return [
    lax.squeeze(lax.slice_in_dim(x, i, i + 1, axis=axis), [axis])
    for i in range(x.shape[axis])
  ]


def _pad(
  x: jax.Array,
  value: jax.Array | float,
  *,
  padding_config: Sequence[Any],
  **_: Any,
) -> list[jax.Array]:
  """`lax.pad` without negative or interior padding."""
  for axis, (low, high, interior) in enumerate(padding_config):
    if interior or low < 0 or high < 0:
      raise NotImplementedError(f'padding by {padding_config}')
    border = [
      lax.full((*x.shape[:axis], n, *x.shape[axis + 1 :]), value, x.dtype)
      for n in (low, high)
    ]
    parts = [part for part in (border[0], x, border[1]) if part.shape[axis]]
    x = lax.concatenate(parts, axis) if len(parts) > 1 else x
  return [x]


def _max_pool(
  x: jax.Array,
  *,
  window_dimensions: Sequence[int],
  window_strides: Sequence[int],
  padding: Sequence[tuple[int, int]],
  **_: Any,
) -> list[jax.Array]:
  """`lax.reduce_window_max` as the maximum of shifted slices, by axis."""
  (x,) = _pad(
    x, -jnp.inf, padding_config=[(low, high, 0) for low, high in padding]
  )
  for axis, (size, stride) in enumerate(
    zip(window_dimensions, window_strides, strict=True)
  ):
    if size == stride == 1:  # includes the batch, whose size may be symbolic
      continue
    stop = x.shape[axis] - size + 1
    shifted = [
      lax.slice_in_dim(x, i, i + stop, stride, axis) for i in range(size)
    ]
    x = functools.reduce(lax.max, shifted)
  return [x]


_REWRITTEN: dict[str, Callable[..., list[jax.Array]]] = {
  'optimization_barrier': lambda *arrays, **_: list(arrays),
  'pad': _pad,
  'reduce_window_max': _max_pool,
  'stack': lambda *arrays, axis, **_: [
    lax.concatenate([lax.expand_dims(x, [axis]) for x in arrays], axis)
  ],
  'unstack': _unstack,
}
