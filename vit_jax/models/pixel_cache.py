"""Draws images from an iGPT, pixel by pixel, with a cache of keys and values.

A step passes one token of each image through the layers, and attends to the
keys and values of the tokens before it, which are kept. So only attention
depends on the number of pixels.

In comments: B images, N pixels, D hidden size, H heads, K = D / H, L layers.
"""

from collections.abc import Mapping
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import attention
from vit_jax.models import igpt
from vit_jax.models import layouts
from vit_jax.models.context import Context
from vit_jax.models.context import Outputs
from vit_jax.models.parts import as_class

# Keys and values of the tokens so far, [B, N, H, K] each; of all layers with a
# leading axis L.
Cache = tuple[jax.Array, jax.Array]


class CachedAttention(attention.Attention):
  """Attention of one token to itself and those before it: [B, 1, D].

  The context's `previous` has the cache of the tokens before it, as `keys` and
  `values`, and its `position`, an int32 scalar. The cache with this token is
  returned in `outputs`.
  """

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns [B, 1, D]."""
    query, key, value = self.prepare(*self.project(x, context), context)
    position = context.previous['position']
    for name, new in (('keys', key), ('values', value)):
      context.outputs[name] = jax.lax.dynamic_update_slice_in_dim(
        context.previous[name], new, position, axis=1
      )
    keys, values = context.outputs['keys'], context.outputs['values']
    scores = jnp.einsum(
      'bqhk,bthk->bhqt',
      query * query.shape[-1] ** -0.5,
      keys,
      preferred_element_type=jnp.float32,
    )
    is_known = jnp.arange(keys.shape[1]) <= position
    weights = nn.softmax(jnp.where(is_known, scores, -jnp.inf))
    y = jnp.einsum('bhqt,bthk->bqhk', weights.astype(values.dtype), values)
    return attention.Output(name='out')(self, y)


def step(
  model: igpt.IGPT,
  params: Mapping[str, Any],
  token: jax.Array,
  position: jax.Array,
  cache: Cache,
) -> tuple[jax.Array, Cache]:
  """Returns the logits of the next pixel, float32 [B, colours], and the cache.

  Args:
    model: The model.
    params: Its parameters, with stacked layers.
    token: int32 [B], the pixel before it; model.colours: the start token.
    position: Position of the next pixel, from 0, an int32 scalar.
    cache: Of the tokens before this one.
  """
  block: Any = model.block
  block = block.clone(attention=as_class(block.attention, CachedAttention))
  x = params['token_embedding'].astype(model.dtype)[token]
  x += params['position_embedding'].astype(model.dtype)[0, position]

  def apply(x: jax.Array, layer: tuple[Any, Cache]) -> Any:
    of_layer, (keys, values) = layer
    context = Context(
      previous={'keys': keys, 'values': values, 'position': position},
      outputs=(outputs := Outputs()),
    )
    x = jnp.asarray(block.apply({'params': of_layer}, x, context))
    return x, (outputs['keys'], outputs['values'])

  x, cache = jax.lax.scan(apply, x[:, None], (params['blocks'], cache))
  x = model.norm.apply({'params': params['norm']}, x[:, 0])
  logits = igpt.output_layer(model).apply({'params': params['output']}, x)
  return jnp.asarray(logits, jnp.float32), cache


@functools.partial(jax.jit, static_argnums=0)
def draw(
  model: igpt.IGPT,
  params: Mapping[str, Any],
  key: jax.Array,
  pixels: jax.Array,
  rows: jax.Array,
  temperature: jax.typing.ArrayLike,
) -> tuple[jax.Array, jax.Array]:
  """Draws the pixels of images that are not given.

  Returns all colours, int32 [B, N], and the logits, float32 [B, N, colours].

  Args:
    model: The model.
    params: Its parameters; layers stacked or unrolled.
    key: Random key.
    pixels: int32 [B, N], colours in raster order; -1 where one is drawn.
    rows: int32 [B], numbers of the images; what is drawn for one depends on its
      number, and not on the other images.
    temperature: Divides the logits; 0: the most probable colour is taken.
  """
  b, n = pixels.shape
  if 'blocks' not in params:
    params = layouts.stack_layers(params)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows)

  def draw_pixel(
    state: tuple[jax.Array, Cache], inputs: tuple[jax.Array, jax.Array]
  ) -> Any:
    (token, cache), (position, colour) = state, inputs
    logits, cache = step(model, params, token, position, cache)
    now = jax.vmap(jax.random.fold_in, (0, None))(keys, position)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, (model.colours,)))(now)
    # The largest of logits with Gumbel noise is drawn from their softmax.
    drawn = (logits + temperature * noise).argmax(axis=-1).astype(jnp.int32)
    token = jnp.where(colour < 0, drawn, colour)
    return (token, cache), (token, logits)

  start = jnp.full((b,), model.colours, jnp.int32)
  heads = model.block.attention.num_heads
  shape = model.depth, b, n, heads, model.hidden_size // heads
  empty = jnp.zeros(shape, model.dtype), jnp.zeros(shape, model.dtype)
  inputs = jnp.arange(n, dtype=jnp.int32), pixels.astype(jnp.int32).T
  _, (ids, logits) = jax.lax.scan(draw_pixel, (start, empty), inputs)
  return ids.T, jnp.moveaxis(logits, 0, 1)
