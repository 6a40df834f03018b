"""Token merging (ToMe, arXiv:2210.09461).

Every layer merges the r pairs of tokens whose keys are most alike, so that
later layers have fewer tokens; nothing is trained. Tokens at even places
propose, each to the one at an odd place that is most like it.

In comments: B images, T tokens, E and O of them at even and odd places, P
protected tokens in front, r merged tokens, D channels.
"""

from typing import Annotated
from typing import Any

import flax
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import context as context_lib
from vit_jax.models import fields
from vit_jax.models import projection
from vit_jax.models import refusals
from vit_jax.models.block import Block
from vit_jax.models.context import Context
from vit_jax.models.parts import positions


@flax.struct.dataclass
class Merge:
  """Which tokens are merged into which.

  Attributes:
    stay: int32 [B, E - r], tokens at even places that are not merged.
    moved: int32 [B, r], those that are.
    into: int32 [B, r], the tokens at odd places that take them.
    order: int32 [T - r], output tokens in (staying, odd) tokens.
    places: int32 [B, T], the output token that has each token.
  """

  stay: jax.Array
  moved: jax.Array
  into: jax.Array
  order: np.ndarray = flax.struct.field(pytree_node=False)
  places: jax.Array

  def total(self, x: jax.Array) -> jax.Array:
    """Returns the sums of tokens [B, T, D] that are merged, [B, T - r, D]."""
    even, odd = x[:, ::2], x[:, 1::2]
    targets = jax.nn.one_hot(self.into, odd.shape[1], dtype=x.dtype)
    # A product of [O, r] and [r, D] instead of a scatter, which accelerators do
    # slowly.
    odd = odd + jnp.einsum(
      'bro,brd->bod',
      targets,
      _at(even, self.moved),
      precision=jax.lax.Precision.HIGHEST,
    )
    return jnp.concatenate([_at(even, self.stay), odd], axis=1)[:, self.order]

  def mean(self, x: jax.Array, sizes: jax.Array) -> jax.Array:
    """Returns means of merged tokens by their sizes [B, T], [B, T - r, D]."""
    weights = sizes[..., None].astype(x.dtype)
    return self.total(x * weights) / self.total(weights)

  def sizes(self, sizes: jax.Array) -> jax.Array:
    """Returns how many patches merged tokens stand for, [B, T - r]."""
    return self.total(sizes[..., None])[..., 0]


class Merging(Block):
  """A layer that merges tokens between attention and MLP (ToMe).

  It returns `sizes`, float32 [B, T'], how many patches each of its tokens
  stands for, and `places`, int32 [B, N], the token that has each of the N first
  tokens. Layers have different numbers of tokens, so they cannot be scanned.

  Attributes, beside the ones in `Block`:
    merge: r, how many tokens an average layer merges into others.
    decreasing: Whether the first layers merge more than the last.
    proportional: Whether attention counts a merged token as often as it stands
      for patches (section 3 of the paper).
    merges: How many tokens this layer merges; None outside of the layers.
  """

  merge: Annotated[int, fields.training(least=0)] = 0
  decreasing: Annotated[bool, fields.TRAINING] = False
  proportional: Annotated[bool, fields.TRAINING] = True
  merges: Annotated[int | None, fields.TRAINING] = None

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if it does not fit the model's other parts."""
    if not self.merge:
      return
    added = positions.in_attention(model)
    wrong = {
      'scan=True: its layers have equal numbers of tokens': model.scan,
      f'positions={added!r}, of one patch': added,
      "pool='map', which counts a token once": hasattr(model.pool, 'query'),
      "mlp='experts', which routes the tokens of an image": hasattr(
        self.mlp, 'routes_tokens'
      ),
      'causal=True of attention, since merged tokens have no order': getattr(
        self.attention, 'causal', False
      ),
    }
    refusals.refuse(
      wrong, f"block='merging({self.merge})' does not go with {{}}"
    )

  def at_layer(self, layer: int, depth: int) -> Block:
    """Returns the block of a layer."""
    counts = schedule(depth, self.merge, self.decreasing)
    return self.clone(merges=counts[layer])

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Maps tokens [B, T, D] to [B, T - r, D]."""
    if self.is_initializing() or not self.merge:
      return super().__call__(x, context)
    if 'tokens' in context.captures:
      raise ValueError(
        'layers that merge tokens have different numbers of them: set merge=0'
        ' to capture their intermediates'
      )
    if context.attended is not None:
      raise ValueError('padding cannot be merged: set merge=0')
    (b, n), previous = x.shape[:2], context.previous
    if 'sizes' in previous:
      sizes, places = previous['sizes'], previous['places']
    else:
      sizes = jnp.ones((b, n))
      places = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (b, n))
    attention_context = context.replace(
      sizes=sizes if self.proportional else None,
      captures=('keys',),
      outputs=(outputs := context_lib.Outputs()),
    )
    x = self.add(x, self.attend(x, attention_context), context)
    count = 0 if context.num_read else self.merges or 0
    merge = match(outputs['keys'], count, context.prefix)
    if merge is not None:
      x, sizes, places = (
        merge.mean(x, sizes),
        merge.sizes(sizes),
        jnp.take_along_axis(merge.places, places, axis=1),
      )
      context = context.replace(num_tokens=x.shape[1])
    context.outputs.update(sizes=sizes, places=places)
    return self.add(x, self.transform(x, context), context)


def match(keys: jax.Array, count: int, protected: int) -> Merge | None:
  """Chooses the tokens that are merged; None: no token is.

  Without protected tokens, those that stay come in order of falling similarity,
  as in the authors' code.

  Args:
    keys: What is compared, by cosine: keys of the attention, [B, T, K].
    count: r; at most half of the tokens that are not protected are merged.
    protected: P, tokens in front that are not merged: class token, registers.
  """
  count = min(count, (keys.shape[1] - protected) // 2)
  if count <= 0:
    return None
  keys = projection.unit(keys.astype(jnp.float32))
  even, odd = keys[:, ::2], keys[:, 1::2]
  scores = jnp.einsum(
    'bek,bok->beo', even, odd, precision=jax.lax.Precision.HIGHEST
  )
  first, second = (protected + 1) // 2, protected // 2
  scores = scores.at[:, :first].set(-jnp.inf)
  scores = scores.at[:, :, :second].set(-jnp.inf)
  ranked = jnp.argsort(-scores.max(axis=-1), axis=1)
  moved, stay = ranked[:, :count], ranked[:, count:]
  if protected:
    stay = stay.sort(axis=1)
  into = jnp.take_along_axis(scores.argmax(axis=-1), moved, axis=1)
  order = _order(stay.shape[1], odd.shape[1], first, second)
  return Merge(stay, moved, into, order, _places(stay, moved, into, order))


def _order(stay: int, odd: int, first: int, second: int) -> np.ndarray:
  """Returns the order of outputs: protected tokens, others at even places, odd.

  Tokens that `stay` are at even places, all others at odd ones; of either, so
  many `first` and `second` ones are protected.
  """
  evens, odds = np.arange(stay), stay + np.arange(odd)
  front = [(evens, odds)[i % 2][i // 2] for i in range(first + second)]
  return np.concatenate(
    [np.asarray(front, int), evens[first:], odds[second:]]
  ).astype(int)


def _places(
  stay: jax.Array, moved: jax.Array, into: jax.Array, order: np.ndarray
) -> jax.Array:
  """Returns the output token that has each token, int32 [B, T]."""
  output = jnp.asarray(np.argsort(order), jnp.int32)  # of (staying, odd) tokens
  b, count = stay.shape
  rows = jnp.arange(b)[:, None]
  odd = len(order) - count
  even = jnp.zeros((b, count + moved.shape[1]), jnp.int32)
  even = even.at[rows, stay].set(output[:count])
  even = even.at[rows, moved].set(output[count + into])
  places = jnp.zeros((b, even.shape[1] + odd), jnp.int32)
  return places.at[:, ::2].set(even).at[:, 1::2].set(output[count:])


def _at(x: jax.Array, places: jax.Array) -> jax.Array:
  return jnp.take_along_axis(x, places[..., None], axis=1)


def schedule(depth: int, count: int, is_decreasing: bool) -> tuple[int, ...]:
  """Returns r for each layer, of `count` for an average one.

  It falls from 2 r in the first layer to 0 in the last (section 4.1 of the
  paper), if it is decreasing; else it is the same in all.
  """
  first = 2 * count if is_decreasing else count
  step = (2 * count - 2 * first) / max(depth - 1, 1)
  return tuple(int(first + step * i) for i in range(depth))
