"""A stack of equal layers, unrolled or scanned: the same function.

An unrolled stack has its parameters in `blocks_0`, `blocks_1`, ...; a scanned
stack in `blocks`, with a leading axis of depth. `layouts` converts one form
into the other.

In comments: B images, T tokens, D hidden size, H heads, L layers.
"""

from collections.abc import Iterator
import dataclasses
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import context as context_lib
from vit_jax.models import remat as remat_lib

# Collection that gets the tokens of all layers where it is mutable.
LEVELS = 'levels'


def apply(
  model: nn.Module,
  block: nn.Module,
  x: jax.Array,
  context: context_lib.Context,
  *,
  depth: int,
  scan: bool = False,
  remat: str = 'auto',
  num_read: int | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Applies a stack of blocks to x; sows the intermediates that they capture.

  A block maps (x, context) to x. What it captures, as `attention` and `tokens`,
  goes to the collection `intermediates`, [L, ...] each, or the `tokens` alone
  to `levels`, for heads that read several layers. It is given its layer of the
  variable `attention` of the collection `perturbations`.

  Args:
    model: Linen module that gets the parameters; in its compact method.
    block: The part that each layer is a copy of. Where layers differ, it has a
      method, see `at_layer`.
    x: Tokens [B, T, D].
    context: What all layers are given; its `dropout_key` is that of the step.
    depth: Number of layers, L.
    scan: Whether one layer is compiled and run L times.
    remat: One of `remat.POLICIES`.
    num_read: Number of first tokens that the last layer may compute alone; used
      only if the layers are unrolled and capture nothing.

  Returns:
    The output of the last block, [B, T, D], or fewer tokens; and what the
    layers returned beside them, but for intermediates, each [L', ...] of the L'
    layers that returned it, or a tuple where these have several shapes.
  """
  captures = _captures(model)
  perturbation: jax.Array | None = None
  if 'attention' in captures:
    perturbation = model.get_variable('perturbations', 'attention')
  layer, platform = _layer, jax.default_backend()
  if remat != 'none' and (remat, platform) != ('auto', 'cpu'):
    remat = remat_lib.on_platform(platform, scan, remat)
    layer = remat_lib.recomputed(_layer, remat, scan)
    context = context.replace(remat=remat)
  context = context.replace(
    captures=captures, depth=depth, num_tokens=x.shape[1]
  )
  if scan:
    x, outputs = _scan(model, layer, block, x, context, perturbation)
  else:
    num_read = None if captures else num_read
    x, outputs = _unroll(
      model, layer, block, x, context, perturbation, num_read
    )
  collection = LEVELS if captures == ('tokens',) else 'intermediates'
  homes = dict.fromkeys(captures, collection) | {'balance': 'losses'}
  for name, home in homes.items():
    if name in outputs:
      value = outputs.pop(name)
      model.sow(home, name, value, reduce_fn=lambda _, new: new)
  return x, outputs


def _captures(model: nn.Module) -> tuple[str, ...]:
  """Returns the names of the intermediates that a model is asked for."""
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


def _scan(
  model: nn.Module,
  layer: Any,
  block: nn.Module,
  x: jax.Array,
  context: context_lib.Context,
  perturbation: jax.Array | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  scanned = nn.scan(
    layer,
    variable_axes={'params': 0},
    split_rngs={'params': True},
    in_axes=(0, nn.broadcast if perturbation is None else 0, nn.broadcast),
    length=context.depth,
  )
  layers = jnp.arange(context.depth, dtype=jnp.int32)
  block = block.copy(parent=model, name='blocks')
  return scanned(block, x, layers, perturbation, context)


def _unroll(
  model: nn.Module,
  layer: Any,
  block: nn.Module,
  x: jax.Array,
  context: context_lib.Context,
  perturbation: jax.Array | None,
  num_read: int | None,
) -> tuple[jax.Array, dict[str, Any]]:
  layers = jnp.arange(context.depth, dtype=jnp.int32)
  gathered: dict[str, list[jax.Array]] = {}
  last = context.depth - 1
  for i in range(context.depth):
    part = at_layer(block, i, context.depth)
    if i == last:  # where tokens are routed together, none may be missing
      routes = any(hasattr(x, 'routes_tokens') for x in inner_parts(part))
      context = context.replace(num_read=None if routes else num_read)
    context = context.replace(num_tokens=x.shape[1])
    part = part.copy(parent=model, name=f'blocks_{i}')
    added = None if perturbation is None else perturbation[i]
    x, outputs = layer(part, x, layers[i], added, context)
    context = context.replace(previous=outputs)
    for name, value in outputs.items():
      gathered.setdefault(name, []).append(value)
  return x, {
    name: jnp.stack(values)
    if len({x.shape for x in values}) == 1
    else tuple(values)
    for name, values in gathered.items()
  }


def at_layer(part: nn.Module, layer: int, depth: int) -> nn.Module:
  """Returns the part of one layer, which may differ from those of others.

  A part whose layers differ has a method `at_layer(layer, depth)`; parts that
  hold such a part differ with it.

  Args:
    part: A part that is not bound.
    layer: Index of the layer, from 0.
    depth: Number of layers.
  """
  changes: dict[str, Any] = {}
  for field in dataclasses.fields(part):
    value = getattr(part, field.name)
    if field.name != 'parent' and isinstance(value, nn.Module):
      inner = at_layer(value, layer, depth)
      if inner is not value:
        changes[field.name] = inner
  if changes:
    part = part.clone(**changes)
  method = getattr(part, 'at_layer', None)
  return part if method is None else method(layer, depth)


def inner_parts(part: Any) -> Iterator[nn.Module]:
  """Yields a part, or each of a tuple, and the parts in its fields."""
  if isinstance(part, tuple | list):
    for x in part:
      yield from inner_parts(x)
  if isinstance(part, nn.Module):
    yield part
    for field in dataclasses.fields(part):
      if field.name not in ('parent', 'name'):
        yield from inner_parts(getattr(part, field.name, None))


def has_equal_layers(part: nn.Module) -> bool:
  """Whether all layers of a stack have this part, without differences."""
  return not any(hasattr(x, 'at_layer') for x in inner_parts(part))
