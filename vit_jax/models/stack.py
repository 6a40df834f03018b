"""A stack of equal layers, unrolled or scanned: the same function.

An unrolled stack has its parameters in `blocks_0`, `blocks_1`, ...; a scanned
one in `blocks`, with a leading axis of depth. All that changes one form into
the other is here.

The gradient of the attention weights is taken through a variable that is added
to them. Linen's own `Module.perturb` does not serve for it. It adds to a value
that is computed, but the weights here are divided by their sum only after the
product with the values, unless they are captured; it keeps a variable in each
module, so that unrolled and scanned models need different collections; and it
makes these variables, as large as all attention, whenever a model is
initialised.

In comments: B images, T tokens, D hidden size, H heads, L layers.
"""

from collections.abc import Mapping
import re
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import dropout
from vit_jax.models import spec as spec_lib


def apply_blocks(
  model: nn.Module,
  block: Any,
  spec: spec_lib.LayerSpec,
  x: jax.Array,
  dropout_key: dropout.DropoutKey | None,
  last: Mapping[str, Any] | None = None,
) -> jax.Array:
  """Applies a stack of blocks to x; sows the intermediates that they return.

  A block is made from `spec` and `capture`, and maps (x, layer, dropout_key) to
  (x, intermediates), a dict. If `intermediates` are asked for and a collection
  `perturbations` has a variable `attention` [L, ...], each block gets its part
  of that as well, and adds it to its attention weights.

  Args:
    model: Linen module, in its compact method, that gets the parameters.
    block: Linen module class.
    spec: Fields of the layers, their number among them.
    x: [B, T, D].
    dropout_key: Key of the step; None when not training.
    last: Further fields of the last block, where the blocks are unrolled and
      capture nothing.

  Returns:
    [B, T, D], or the output of the last block.
  """
  capture = not model.is_initializing() and model.is_mutable_collection(
    'intermediates'
  )
  added = model.get_variable('perturbations', 'attention') if capture else None
  if spec.remat != 'none':
    policy = getattr(jax.checkpoint_policies, spec.remat, None)
    # Inside a scan nothing can be merged across the loop's body anyway.
    block = nn.remat(block, policy=policy, prevent_cse=not spec.scan)
  perturbations: tuple[jax.Array, ...] = () if added is None else (added,)
  inputs = x, dropout_key, perturbations
  if spec.scan:
    x, captured = _scan(block, spec, capture, *inputs)
  else:
    last = {} if capture else last
    x, captured = _unroll(block, spec, capture, last or {}, *inputs)
  for name, value in captured.items():
    model.sow('intermediates', name, value, reduce_fn=lambda _, new: new)
  return x


def _scan(
  block: Any,
  spec: spec_lib.LayerSpec,
  capture: bool,
  x: jax.Array,
  dropout_key: dropout.DropoutKey | None,
  perturbations: tuple[jax.Array, ...],
) -> tuple[jax.Array, dict[str, jax.Array]]:
  scanned = nn.scan(
    block,
    variable_axes={'params': 0},
    split_rngs={'params': True},
    in_axes=(0, nn.broadcast, *(0 for _ in perturbations)),
    length=spec.depth,
  )
  layers = jnp.arange(spec.depth, dtype=jnp.int32)
  return scanned(spec=spec, capture=capture, name='blocks')(
    x, layers, dropout_key, *perturbations
  )


def _unroll(
  block: Any,
  spec: spec_lib.LayerSpec,
  capture: bool,
  last: Mapping[str, Any],
  x: jax.Array,
  dropout_key: dropout.DropoutKey | None,
  perturbations: tuple[jax.Array, ...],
) -> tuple[jax.Array, dict[str, jax.Array]]:
  layers = jnp.arange(spec.depth, dtype=jnp.int32)
  each: list[dict[str, jax.Array]] = []
  for i in range(spec.depth):
    further = last if i == spec.depth - 1 else {}
    one = block(spec=spec, capture=capture, name=f'blocks_{i}', **further)
    x, intermediates = one(
      x, layers[i], dropout_key, *(p[i] for p in perturbations)
    )
    each.append(intermediates)
  return x, jax.tree.map(lambda *layers: jnp.stack(layers), *each)


def stack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns an unrolled model's parameters as its scanned twin has them.

  `blocks_0`, `blocks_1`, ... become `blocks`, with a leading axis of depth.
  NumPy arrays stay such.
  """
  names = [name for name in params if name.startswith('blocks_')]
  names.sort(key=lambda name: int(name.removeprefix('blocks_')))
  stacked = {k: v for k, v in params.items() if k not in names}
  stacked['blocks'] = jax.tree.map(_stack, *(params[name] for name in names))
  return stacked


def _stack(*layers: Any) -> Any:
  is_host = all(isinstance(x, np.ndarray) for x in layers)
  return np.stack(layers) if is_host else jnp.stack(layers)


def unstack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns parameters unrolled, the inverse of `stack_layers`.

  Those that are unrolled already are returned as they are.
  """
  unrolled = {k: v for k, v in params.items() if k != 'blocks'}
  if len(unrolled) < len(params):
    for i in range(len(jax.tree.leaves(params['blocks'])[0])):
      unrolled[f'blocks_{i}'] = jax.tree.map(
        lambda x, i=i: x[i], params['blocks']
      )
  return unrolled


def join_runs(params: Mapping[str, Any]) -> Any:
  """Returns parameters with their layers in one stack.

  Earlier checkpoints of scanned models that train in part have several stacks,
  as `blocks_0-5` and `blocks_6-11`; all others are returned as they are.
  """
  starts = {name: re.fullmatch(r'blocks_(\d+)-\d+', name) for name in params}
  runs = {name: int(match[1]) for name, match in starts.items() if match}
  if not runs:
    return params
  result = {name: x for name, x in params.items() if name not in runs}
  parts = [params[name] for name in sorted(runs, key=lambda name: runs[name])]
  result['blocks'] = jax.tree.map(lambda *each: np.concatenate(each), *parts)
  return result


def relayout(tree: Any, target: Any) -> Any:
  """Returns the values of a tree with its layers kept as in another.

  Args:
    tree: Arrays of a model's shape, as a train state holds several times: the
      layers are unrolled or stacked.
    target: Arrays or shapes of the same model, with the layers kept in the
      other way.
  """
  layers = {}
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    names, is_stacked = layer_names(path, x)
    for i, name in enumerate(names):
      layers[name] = x[i] if is_stacked else x

  def gather(path: tuple[Any, ...], like: Any) -> Any:
    names, is_stacked = layer_names(path, like)
    arrays = [layers[name] for name in names]
    return jnp.stack(arrays) if is_stacked else arrays[0]

  return jax.tree_util.tree_map_with_path(gather, target)


def layer_names(path: tuple[Any, ...], x: Any) -> tuple[list[str], bool]:
  """Returns an array's paths when unrolled, and whether it is a stack."""
  parts = jax.tree_util.keystr(path, simple=True, separator='/').split('/')
  if 'blocks' not in parts:
    return ['/'.join(parts)], False
  i = parts.index('blocks')
  return [
    '/'.join([*parts[:i], f'blocks_{layer}', *parts[i + 1 :]])
    for layer in range(x.shape[0])
  ], True
