"""A stack of equal layers, unrolled or scanned: the same function.

An unrolled stack has its parameters in `blocks_0`, `blocks_1`, ...; a scanned
stack in `blocks`, with a leading axis of depth. The functions that convert one
form into the other are here.

The gradient of the attention weights is the gradient of a variable that is
added to them. Linen's own `Module.perturb` does not work here, for three
reasons. It needs the value itself, but the attention normalises its weights
only after the product with the values. It keeps a variable in each module, so
unrolled and scanned models would need different collections. And it makes these
variables, as large as all attention weights, whenever a model is initialised.

In comments: B images, T tokens, D hidden size, H heads, L layers.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import re
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import dropout
from vit_jax.models import spec as spec_lib

# Collection that gets the tokens of all layers where it is mutable.
LEVELS = 'levels'


def apply_blocks(
  model: nn.Module,
  block: Any,
  spec: spec_lib.LayerSpec,
  x: jax.Array,
  dropout_key: dropout.DropoutKey | None,
  last: Mapping[str, Any] | None = None,
  context: spec_lib.Context | None = None,
  each: Sequence[Mapping[str, Any]] = (),
) -> Any:
  """Applies a stack of blocks to x; sows the intermediates that they return.

  A block is made from `spec` and `capture`, and maps (x, layer, dropout_key,
  context) to (x, dict of intermediates). If the collection `intermediates` is
  mutable and the collection `perturbations` has a variable `attention`
  [L, ...], each block also gets its layer of that variable, and adds it to its
  attention weights.

  If the collection `levels` is mutable instead, the blocks return their tokens
  alone, and it gets `tokens` [L, B, T, D], for heads that read several layers.

  Args:
    model: Linen module that gets the parameters; in its compact method.
    block: Linen module class.
    spec: Fields of the layers, including the depth.
    x: [B, T, D], or what the blocks take instead.
    dropout_key: Key of the step; None when not training.
    last: Additional fields of the last block; used only if the blocks are
      unrolled and capture nothing.
    context: What all blocks are given beside x.
    each: Additional fields of each block, which are then unrolled.

  Returns:
    The output of the last block: [B, T, D], or fewer tokens as `last` says.
  """
  capture, keep = (
    not model.is_initializing() and model.is_mutable_collection(name)
    for name in ('intermediates', LEVELS)
  )
  added = model.get_variable('perturbations', 'attention') if capture else None
  perturbations: tuple[jax.Array, ...] = () if added is None else (added,)
  inputs = x, dropout_key, context, perturbations
  fields = {'spec': spec, 'capture': capture}
  if keep:
    fields['keep_tokens'] = True
  block = _recomputed(block, spec)
  if spec.scan:
    x, captured = _scan(block, fields, *inputs)
  else:
    last = {} if capture or keep else last
    further = [dict(x) for x in each or [{}] * spec.depth]
    further[-1] |= last or {}
    x, captured = _unroll(block, fields, further, *inputs)
  for name, value in captured.items():
    collection = 'intermediates' if capture else LEVELS
    model.sow(collection, name, value, reduce_fn=lambda _, new: new)
  return x


def _recomputed(block: Any, spec: spec_lib.LayerSpec) -> Any:
  """Returns a block that recomputes in the backward pass what it shall."""
  remat = spec_lib.remat_on(jax.default_backend(), spec.scan, spec.remat)
  if remat in ('none', 'activations'):  # `Mlp` does the latter
    return block
  policy = getattr(jax.checkpoint_policies, remat, None)
  if remat == 'products':
    policy = spec_lib.products_policy()
  # Inside a scan, XLA cannot merge the recomputation with the forward pass
  # anyway (CSE), so nothing has to prevent that.
  return nn.remat(block, policy=policy, prevent_cse=not spec.scan)


def _scan(
  block: Any,
  fields: dict[str, Any],
  x: jax.Array,
  dropout_key: dropout.DropoutKey | None,
  context: spec_lib.Context | None,
  perturbations: tuple[jax.Array, ...],
) -> tuple[jax.Array, dict[str, jax.Array]]:
  depth = fields['spec'].depth
  scanned = nn.scan(
    block,
    variable_axes={'params': 0},
    split_rngs={'params': True},
    in_axes=(0, nn.broadcast, nn.broadcast, *(0 for _ in perturbations)),
    length=depth,
  )
  layers = jnp.arange(depth, dtype=jnp.int32)
  return scanned(**fields, name='blocks')(
    x, layers, dropout_key, context, *perturbations
  )


def _unroll(
  block: Any,
  fields: dict[str, Any],
  further: Sequence[Mapping[str, Any]],
  x: jax.Array,
  dropout_key: dropout.DropoutKey | None,
  context: spec_lib.Context | None,
  perturbations: tuple[jax.Array, ...],
) -> tuple[jax.Array, dict[str, jax.Array]]:
  spec: spec_lib.LayerSpec = fields['spec']
  layers = jnp.arange(spec.depth, dtype=jnp.int32)
  each: list[dict[str, jax.Array]] = []
  for i in range(spec.depth):
    own = fields | {'spec': spec.of_layer(i)}
    one = block(name=f'blocks_{i}', **own, **further[i])
    x, intermediates = one(
      x, layers[i], dropout_key, context, *(p[i] for p in perturbations)
    )
    each.append(intermediates)
  return x, jax.tree.map(lambda *layers: jnp.stack(layers), *each)


def stack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns an unrolled model's parameters in the form of a scanned model.

  `blocks_0`, `blocks_1`, ... become `blocks`, with a leading axis of depth.
  NumPy arrays stay NumPy arrays.
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
  """Returns unrolled parameters: the inverse of `stack_layers`.

  Parameters that are already unrolled are returned unchanged.
  """
  unrolled = {k: v for k, v in params.items() if k != 'blocks'}
  if len(unrolled) < len(params):
    for i in range(len(jax.tree.leaves(params['blocks'])[0])):
      unrolled[f'blocks_{i}'] = jax.tree.map(
        lambda x, i=i: x[i], params['blocks']
      )
  return unrolled


def unstack_all(tree: Any) -> Any:
  """Returns a tree with the layers of all its stacks unrolled.

  Args:
    tree: Nested dicts of arrays, with `blocks` at any depth.
  """
  if not isinstance(tree, Mapping):
    return tree
  return unstack_layers({key: unstack_all(x) for key, x in tree.items()})


def join_runs(params: Mapping[str, Any]) -> Any:
  """Joins the stacks of older checkpoints into one.

  Older checkpoints of scanned models with frozen layers have several stacks, as
  `blocks_0-5` and `blocks_6-11`. Other parameters are returned unchanged.
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
  """Stacks or unrolls the layers of a tree, so that it is like `target`.

  Args:
    tree: A tree with parameters, or arrays like them, such as a train state.
    target: Arrays or shapes of the same model, with layers stacked or unrolled.
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
  """Returns the unrolled paths of an array, and whether it is a stack."""
  parts = jax.tree_util.keystr(path, simple=True, separator='/').split('/')
  if 'blocks' not in parts:
    return ['/'.join(parts)], False
  i = parts.index('blocks')
  return [
    '/'.join([*parts[:i], f'blocks_{layer}', *parts[i + 1 :]])
    for layer in range(x.shape[0])
  ], True
