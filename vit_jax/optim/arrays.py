"""What an optimizer has to know of parameters: their layers, and their units.

In comments: L layers, D hidden size, H heads, K = D / H, M MLP size.
"""

from collections.abc import Callable
import re
from typing import Any

import jax
import optax

from vit_jax.models import stack

Axes = tuple[int, ...]

# Of kernels: axes of what a matrix reads, and of what it makes. Counted from
# the end; all others count matrices. The first match wins.
_MATRICES: tuple[tuple[str, tuple[Axes, Axes]], ...] = (
  # [D, 3, H, K] and [D, 2, H, K]
  (r'(qkv|key_value)/kernel$', ((-4,), (-2, -1))),
  (r'query/kernel$', ((-3,), (-2, -1))),  # [D, H, K]
  (r'(attention|map_head)/out/kernel$', ((-3, -2), (-1,))),  # [H, K, D]
  # [h, w, C, F]
  (r'(patch_embedding|conv\d*|conv_proj)/kernel$', ((-4, -3, -2), (-1,))),
  (r'kernel$', ((-2,), (-1,))),  # [D, M]
)

# Of other parameters: the axes of one unit, where that is not the whole array.
_UNITS: tuple[tuple[str, Axes], ...] = (
  (r'(qkv|key_value)/bias$', (-2, -1)),  # [3, H, K]
  (r'(^|_)(position_embedding|tokens?|probe)$', (-1,)),  # [1, T, D]
)


def name(path: tuple[Any, ...]) -> str:
  """Returns a path as a string, `blocks_3/norm1/scale`."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def matrix_axes(name: str) -> tuple[Axes, Axes]:
  """Returns the axes of a kernel as a matrix.

  Args:
    name: Path of the kernel; its layers may be stacked.

  Returns:
    Axes of what it reads, and of what it makes, counted from the end. Along the
    others the array holds several matrices.
  """
  return next(axes for pattern, axes in _MATRICES if re.search(pattern, name))


def unit_axes(name: str) -> Axes | None:
  """Returns the axes of the weights of one unit; None: the whole layer's.

  A unit of a kernel is one number that it makes.

  Args:
    name: Path of a parameter.
  """
  if name.endswith('kernel'):
    return matrix_axes(name)[0]
  found = (axes for pattern, axes in _UNITS if re.search(pattern, name))
  return next(found, None)


def per_layer(
  inner: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Applies a transformation to each layer of stacked arrays by itself.

  Updates and state are those of the unrolled model, stacked.

  Args:
    inner: What it makes of an array must depend on no other array.
  """

  def init(params: optax.Params) -> Any:
    return _map_layers(inner.init, params)

  def update(updates: Any, state: Any, params: Any = None) -> Any:
    return _map_layers(inner.update, updates, state, params)

  return optax.GradientTransformation(init, update)


def _map_layers(fn: Callable[..., Any], *args: Any) -> Any:
  """Calls a function of trees with the layers of stacked arrays mapped."""
  paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(args)]
  runs = sorted({run for run in map(_run, paths) if run is not None})
  result = jax.eval_shape(fn, *args)
  for run in runs:  # each has a length of its own
    fn = jax.vmap(fn, _axes(args, run), _axes(result, run))
  return fn(*args)


def _axes(tree: Any, run: str) -> Any:
  """Returns 0 for arrays of a run of layers, and None for others."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: 0 if _run(path) == run else None, tree
  )


def _run(path: tuple[Any, ...]) -> str | None:
  """Returns the part of a path that names stacked layers."""
  for part in name(path).split('/'):
    if part == 'blocks' or ('-' in part and stack.layer_range(part)):
      return part
  return None
