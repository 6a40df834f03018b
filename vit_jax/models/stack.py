"""A stack of equal layers, unrolled or scanned: the same function.

An unrolled stack has its parameters in `blocks_0`, `blocks_1`, ...; a scanned
stack in `blocks`, with a leading axis of depth. `layouts` converts one form
into the other.

In comments: B images, T tokens, D hidden size, H heads, L layers.
"""

import dataclasses
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import context as context_lib
from vit_jax.models import fields

# Collections: of all layers' tokens, where it is mutable; of parts' losses.
LEVELS, LOSSES = 'levels', 'losses'

# Names of results that the backward pass does not recompute: of dense layers,
# attention and kernels with remat='products', and of activation functions with
# remat='activations'.
PRODUCTS, ACTIVATED = 'kept', 'activated'
# 'none'; 'activations', those within the MLP's activation function, and its
# dropout; 'products', all but the results of dense layers and of attention;
# 'full', all of them; or a name of `jax.checkpoint_policies`. 'auto' is one of
# these by the platform, see `on_platform`.
POLICIES = (
  'auto',
  'none',
  'activations',
  'products',
  'full',
  'dots_saveable',
  'dots_with_no_batch_dims_saveable',
)
REMAT = fields.Field(fields.Kind.EXECUTION, choices=POLICIES)


def apply(
  model: Any,
  x: jax.Array,
  context: context_lib.Context,
  num_read: int | None = None,
  block: nn.Module | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Applies the layers of a model to x; sows what they capture.

  A block maps (x, context) to x. What it captures, as `attention` and `tokens`,
  goes to the collection `intermediates`, [L, ...] each, or the `tokens` alone
  to `levels`, for heads that read several layers. If there is a variable
  `attention` [L, B, H, T, T] in the collection `perturbations`, each layer adds
  its own to the weights of attention, and has its gradient as theirs.

  Returns the output of the last block, [B, T, D], or fewer tokens; and what the
  layers returned beside them, but for intermediates, each [L', ...] of the L'
  layers that returned it, or a tuple where these have several shapes.

  Args:
    model: In its compact method; it has a `block`, `depth`, `scan`, `remat`.
    x: Tokens [B, T, D].
    context: Its `dropout_key` is that of the step.
    num_read: Number of first tokens that the last layer may compute alone; used
      only if the layers are unrolled, capture nothing and have no experts.
    block: A layer in place of the model's.
  """
  captures, remat, scan = _captures(model), model.remat, model.scan
  perturbation: jax.Array | None = None
  if 'attention' in captures:
    perturbation = model.get_variable('perturbations', 'attention')
  layer, platform = _layer, jax.default_backend()
  if remat != 'none' and (remat, platform) != ('auto', 'cpu'):
    remat = on_platform(platform, scan, remat)
    layer = recomputed(_layer, remat, scan)
    context = context.replace(remat=remat)
  context = context.replace(
    captures=captures, depth=model.depth, num_tokens=x.shape[1]
  )
  block = block or model.block
  layers = jnp.arange(model.depth, dtype=jnp.int32)
  if scan:
    scanned = nn.scan(
      layer,
      variable_axes={'params': 0},
      split_rngs={'params': True},
      in_axes=(0, nn.broadcast if perturbation is None else 0, nn.broadcast),
      length=model.depth,
      # The check traces a layer once more, which initial values depend on.
      check_constancy_invariants=model.is_initializing(),
    )
    block = block.copy(parent=model, name='blocks')
    x, outputs = scanned(block, x, layers, perturbation, context)
  else:
    # Experts take all tokens together, so that all are needed.
    parts = fields.inner_parts(block)
    if captures or any(hasattr(part, 'routes_tokens') for part in parts):
      num_read = None
    gathered: dict[str, list[jax.Array]] = {}
    for i in range(model.depth):
      part = at_layer(block, i, model.depth)
      part = part.copy(parent=model, name=f'blocks_{i}')
      context = context.replace(
        num_read=num_read if i == model.depth - 1 else None,
        num_tokens=x.shape[1],
      )
      added = None if perturbation is None else perturbation[i]
      x, layer_outputs = layer(part, x, layers[i], added, context)
      context = context.replace(previous=layer_outputs)
      for name, value in layer_outputs.items():
        gathered.setdefault(name, []).append(value)
    outputs = {name: _stacked(values) for name, values in gathered.items()}
  collection = LEVELS if captures == ('tokens',) else 'intermediates'
  homes = dict.fromkeys(captures, collection) | {'balance': LOSSES}
  for name, home in homes.items():
    if name in outputs:
      value = outputs.pop(name)
      model.sow(home, name, value, reduce_fn=lambda _, new: new)
  return x, outputs


def on_platform(platform: str, scan: bool, remat: str) -> str:
  """Returns the policy that 'auto' stands for on 'cpu', 'tpu' or 'gpu'.

  A compiler keeps every value that the backward pass takes out of a scan. Where
  layers are unrolled, TPUs' compiler recomputes elementwise functions by
  itself; that of GPUs does not, and would keep several values of [B, T, M]
  within the activation function. On CPUs memory is plentiful, and to compute
  is slow.
  """
  if remat != 'auto':
    return remat
  if platform == 'cpu':
    return 'none'
  if scan:
    return 'products'
  return 'none' if platform == 'tpu' else 'activations'


def recomputed(layer: Any, policy: str, scan: bool) -> Any:
  """Returns a layer that recomputes in the backward pass what it shall."""
  if policy in ('none', 'activations'):  # `Mlp` does the latter
    return layer
  if policy == 'products':
    # Unlike `dots_saveable` this keeps results after their bias is added, which
    # the compiler does in the same operation, and the results of kernels.
    saveable = jax.checkpoint_policies.save_only_these_names(PRODUCTS)
  else:
    saveable = getattr(jax.checkpoint_policies, policy, None)
  # Inside a scan, XLA cannot merge the recomputation with the forward pass
  # anyway (CSE), so nothing has to prevent that.
  return nn.remat(layer, policy=saveable, prevent_cse=not scan)


def activations(finish: Any) -> Any:
  """Returns the second half of an MLP that recomputes its activation function.

  The argument and the result of the activation function are kept, since one
  product of the forward pass writes both. What its derivative needs is
  recomputed. To recompute the result as well would read and write [B, T, M]
  four more times.
  """
  policy = jax.checkpoint_policies.save_only_these_names(ACTIVATED)
  return nn.remat(finish, policy=policy)


def _captures(model: nn.Module) -> tuple[str, ...]:
  if model.is_initializing():
    return ()
  if model.is_mutable_collection('intermediates'):
    return ('attention', 'tokens')
  return ('tokens',) if model.is_mutable_collection(LEVELS) else ()


def _layer(
  block: nn.Module,
  x: jax.Array,
  layer: jax.Array,
  perturbation: jax.Array | None,
  context: context_lib.Context,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Applies one layer; returns x, and what it returns beside it."""
  outputs = context_lib.Outputs()
  key = context.dropout_key
  context = context.replace(
    dropout_key=None if key is None else key.fold(layer),
    layer=layer,
    perturbation=perturbation,
    outputs=outputs,
  )
  x = block(x, context)
  if 'tokens' in context.captures:
    context.capture('tokens', x)
  return x, dict(outputs)


def _stacked(values: list[jax.Array]) -> Any:
  is_equal = len({x.shape for x in values}) == 1
  return jnp.stack(values) if is_equal else tuple(values)


def at_layer(part: nn.Module, layer: int, depth: int) -> nn.Module:
  """Returns the part of one layer, which may differ from other layers' parts.

  A part whose layers differ has a method `at_layer(layer, depth)`; parts that
  hold such a part differ with it. `part` is not bound; `layer` counts from 0.
  """
  changes: dict[str, Any] = {}
  for field in dataclasses.fields(part):
    inner = getattr(part, field.name)
    if field.name != 'parent' and isinstance(inner, nn.Module):
      changes[field.name] = at_layer(inner, layer, depth)
  part = part.clone(**changes)
  method = getattr(part, 'at_layer', None)
  return part if method is None else method(layer, depth)


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
