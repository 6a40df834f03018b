"""The structure of parameters that optimizers use: layers, matrices and units.

In comments: L layers, D hidden size, H heads, K = D / H, M MLP size.
"""

from collections.abc import Callable
import re
from typing import Any

import jax
import optax

from vit_jax.models import stack

Axes = tuple[int, ...]

_CONVOLUTIONS = r'(patch_embedding|conv\d*|conv_proj)/kernel$'
# The input axes and the output axes of kernels, counted from the end, for
# optimizers that see kernels as matrices. Other axes are batch axes. The first
# match wins.
_MATRICES: tuple[tuple[str, tuple[Axes, Axes]], ...] = (
  (r'(qkv|key_value)/kernel$', ((-4,), (-2, -1))),  # [D, 3 or 2, H, K]
  (r'query/kernel$', ((-3,), (-2, -1))),  # [D, H, K]
  (r'(attention|map_head)/out/kernel$', ((-3, -2), (-1,))),  # [H, K, D]
  (_CONVOLUTIONS, ((-4, -3, -2), (-1,))),  # [h, w, C, F]
  (r'kernel$', ((-2,), (-1,))),  # [D, M]
)

# Parameters that are no kernels and have several units: the axes of one unit.
_UNITS: tuple[tuple[str, Axes], ...] = (
  (r'(qkv|key_value)/bias$', (-2, -1)),  # [3, H, K]
  (r'(^|_)(position_embedding|tokens?|probe)$', (-1,)),  # [1, T, D]
)


def matrix_axes(name: str) -> tuple[Axes, Axes]:
  """Returns the input axes and the output axes of the kernel of a path.

  They are counted from the end. Other axes are batch axes: the array holds
  several matrices, as of stacked layers.
  """
  return next(axes for pattern, axes in _MATRICES if re.search(pattern, name))


def unit_axes(name: str, ndim: int) -> Axes | None:
  """Returns the axes of the weights of one unit; None: all axes of a layer.

  A unit of a kernel is one of its outputs, with all its input weights. `ndim`
  is the number of axes of the parameter, without that of stacked layers.
  """
  if re.search(_CONVOLUTIONS, name):  # of images, or of volumes
    return tuple(range(-ndim, -1))
  if name.endswith('kernel'):
    return matrix_axes(name)[0]
  matches = (axes for pattern, axes in _UNITS if re.search(pattern, name))
  return next(matches, None)


def per_layer(
  inner: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Applies a transformation to each layer of stacked arrays separately.

  Updates and state then equal the unrolled model's, stacked. The
  transformation must treat each array independently.
  """

  def init(params: optax.Params) -> Any:
    return _map_layers(inner.init, params)

  def update(updates: Any, state: Any, params: Any = None) -> Any:
    return _map_layers(inner.update, updates, state, params)

  return optax.GradientTransformation(init, update)


def _map_layers(fn: Callable[..., Any], *args: Any) -> Any:
  """Calls a function of trees, vectorized over the layers of stacked arrays."""
  axes, result_axes = _axes(args), _axes(jax.eval_shape(fn, *args))
  if 0 in jax.tree.leaves(axes):
    fn = jax.vmap(fn, axes, result_axes)
  return fn(*args)


def _axes(tree: Any) -> Any:
  """Returns 0 for arrays of stacked layers, and None for others."""
  return jax.tree_util.tree_map_with_path(
    lambda path, x: 0 if stack.layer_names(path, x)[1] else None, tree
  )
