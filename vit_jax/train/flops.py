"""Floating-point operations of matrix products and convolutions, exactly.

They are counted in a function's jaxpr, 2 per multiply-add, after dead code is
removed. Other operations, such as elementwise ones, are not counted.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import math
import re
from typing import Any

from flax import linen as nn
import jax
from jax.extend import core
from jax.interpreters import partial_eval
import numpy as np

# Primitives that run the jaxpr among their parameters once.
_CALLS = {
  'jit',
  'pjit',
  'closed_call',
  'core_call',
  'eval_jaxpr',  # JAX 0.12
  'remat',
  'remat2',
  'checkpoint',
  'custom_jvp_call',
  'custom_vjp_call',
}
_MODULE = 'module:'


def count(fn: Callable[..., Any], *args: Any) -> int:
  """Returns the operations of `fn(*args)`; evaluates only shapes.

  Raises:
    ValueError: There are products in a loop of unknown length, or in an unknown
      primitive.
  """
  return count_jaxpr(jax.make_jaxpr(fn)(*args))


def count_jaxpr(
  jaxpr: core.ClosedJaxpr, outputs: Sequence[bool] | None = None
) -> int:
  """Returns the operations that a traced function takes; errors as of `count`.

  `outputs` says which of its flat results are needed; None: all.
  """
  return sum(flops for flops, _ in _products(_live(jaxpr, outputs)))


def by_module(
  fn: Callable[..., Any], *args: Any
) -> dict[tuple[str, ...], tuple[int, tuple[int, ...] | None]]:
  """Returns the operations of each Linen module in `fn(*args)`.

  Returns:
    By the path of the module (the outermost is ()), in the order of calls: its
    operations, but for inner modules, and the shape of its (first) output.
  """
  shapes: dict[tuple[str, ...], tuple[int, ...] | None] = {}

  def intercept(
    call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext
  ) -> Any:
    if context.method_name != '__call__':
      return call(*args, **kwargs)
    path = context.module.path
    shapes[path] = None  # outer modules come first
    with jax.named_scope(f'{_MODULE}{".".join(path)};'):
      result = call(*args, **kwargs)
    arrays = jax.tree.leaves(result)
    shapes[path] = arrays[0].shape if arrays else None
    return result

  with nn.intercept_methods(intercept):
    jaxpr = jax.make_jaxpr(fn)(*args)
  totals = dict.fromkeys(shapes, 0)
  for flops, scope in _products(_live(jaxpr, None)):
    *_, innermost = ('', *re.findall(f'{_MODULE}([^;]*);', scope))
    totals[tuple(innermost.split('.')) if innermost else ()] += flops
  return {path: (totals[path], shape) for path, shape in shapes.items()}


def _live(jaxpr: core.ClosedJaxpr, outputs: Sequence[bool] | None) -> Any:
  """Returns the jaxpr without operations that no needed output depends on."""
  if outputs is None:
    outputs = [True] * len(jaxpr.jaxpr.outvars)
  return partial_eval.dce_jaxpr(jaxpr.jaxpr, list(outputs))[0]


def _products(jaxpr: Any, scope: str = '') -> Iterator[tuple[int, str]]:
  """Yields each product's operations and the named scopes that it is in."""
  for eqn in jaxpr.eqns:
    name = eqn.primitive.name
    inner = f'{scope}/{eqn.source_info.name_stack}'
    if name == 'dot_general':
      yield _dot(eqn), inner
    elif name == 'conv_general_dilated':
      yield _conv(eqn), inner
    else:
      yield from _within(eqn, inner)


def _within(eqn: Any, scope: str) -> Iterator[tuple[int, str]]:
  """Yields the products of what an equation calls."""
  name = eqn.primitive.name
  bodies = [list(_products(body, scope)) for body in _jaxprs(eqn.params)]
  if name == 'cond':  # counts the most expensive branch
    bodies = [max(bodies, key=lambda body: sum(flops for flops, _ in body))]
  elif name not in (*_CALLS, 'scan') and any(bodies):
    raise ValueError(
      f'products in {name!r} cannot be counted: how often they are computed'
      ' does not show'
    )
  times = eqn.params['length'] if name == 'scan' else 1
  for body in bodies:
    for flops, inner in body:
      yield times * flops, inner


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
  for value in params.values():
    for x in value if isinstance(value, tuple | list) else (value,):
      if isinstance(x, core.ClosedJaxpr):
        yield x.jaxpr
      elif isinstance(x, core.Jaxpr):
        yield x


def _dot(eqn: Any) -> int:
  (contracted, _), _ = eqn.params['dimension_numbers']
  lhs = eqn.invars[0].aval.shape
  summed = math.prod(lhs[axis] for axis in contracted)
  return 2 * math.prod(eqn.outvars[0].aval.shape) * summed


def _conv(eqn: Any) -> int:
  """Counts padding, but not the zeros that input dilation inserts."""
  numbers = eqn.params['dimension_numbers']
  kernel = eqn.invars[1].aval.shape
  out = eqn.outvars[0].aval.shape
  _, channels, *kernel_axes = numbers.rhs_spec
  batch, features, *out_axes = numbers.out_spec
  total = 2 * out[batch] * out[features] * kernel[channels]
  for i, (axis, kernel_axis) in enumerate(
    zip(out_axes, kernel_axes, strict=True)
  ):
    starts = np.arange(out[axis]) * eqn.params['window_strides'][i]
    taps = np.arange(kernel[kernel_axis]) * eqn.params['rhs_dilation'][i]
    position = starts[:, None] + taps - eqn.params['padding'][i][0]
    total *= int((position % eqn.params['lhs_dilation'][i] == 0).sum())
  return total
