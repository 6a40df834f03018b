"""Parameters of layers, unrolled or stacked: one form from the other.

`stack` has both forms.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import stack


def stack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns an unrolled model's parameters in the form of a scanned model.

  `blocks_0`, `blocks_1`, ... become `blocks`, with a leading axis of depth.
  NumPy arrays stay NumPy arrays.
  """
  names = [name for name in params if name.startswith('blocks_')]
  names.sort(key=lambda name: int(name.removeprefix('blocks_')))
  stacked = {k: v for k, v in params.items() if k not in names}

  def join(*layers: Any) -> Any:
    is_host = all(isinstance(x, np.ndarray) for x in layers)
    return np.stack(layers) if is_host else jnp.stack(layers)

  stacked['blocks'] = jax.tree.map(join, *(params[name] for name in names))
  return stacked


def unstack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns unrolled parameters: as they are, or `stack_layers`' inverse."""
  unrolled = {k: v for k, v in params.items() if k != 'blocks'}
  if len(unrolled) < len(params):
    for i in range(len(jax.tree.leaves(params['blocks'])[0])):
      unrolled[f'blocks_{i}'] = jax.tree.map(
        lambda x, i=i: x[i], params['blocks']
      )
  return unrolled


def unstack_all(tree: Any) -> Any:
  """Returns nested dicts with the layers of `blocks` at any depth unrolled."""
  if not isinstance(tree, Mapping):
    return tree
  return unstack_layers({key: unstack_all(x) for key, x in tree.items()})


def relayout(tree: Any, target: Any) -> Any:
  """Stacks or unrolls the layers of a tree, so that it is like `target`.

  The tree has parameters, or arrays like them, as a train state; the target has
  arrays or shapes of the same model.
  """
  layers = {}
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    names, is_stacked = stack.layer_names(path, x)
    for i, name in enumerate(names):
      layers[name] = x[i] if is_stacked else x

  def gather(path: tuple[Any, ...], like: Any) -> Any:
    names, is_stacked = stack.layer_names(path, like)
    arrays = [layers[name] for name in names]
    return jnp.stack(arrays) if is_stacked else arrays[0]

  return jax.tree_util.tree_map_with_path(gather, target)
