"""Mixtures of experts: MLPs each of which sees a part of the tokens.

V-MoE (arXiv:2106.05974): each token goes to its K best experts, and an expert
takes as many as its buffer holds. Expert choice (arXiv:2202.09368): each expert
takes its best tokens. Soft MoE (arXiv:2308.00951): an expert's slots are
weighted means of all tokens. The tokens of one image are routed among
themselves, so that an answer does not depend on the other images of a batch.

In comments: G groups (images), S tokens of each, E experts, C places of an
expert's buffer for a group, K experts of a token, D hidden size, M width of an
expert.
"""

import functools
import math
from typing import Annotated
from typing import Any
from typing import ClassVar

import flax
from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import dropout
from vit_jax.models import fields
from vit_jax.models import initializers
from vit_jax.models import refusals
from vit_jax.models.block import keep
from vit_jax.models.context import Context

ROUTINGS = ('top_experts', 'top_tokens', 'soft')
_MULTIPLE = 4  # of a buffer's places, as in V-MoE's code
_HIGHEST = jax.lax.Precision.HIGHEST


@flax.struct.dataclass
class Routes:
  """Where tokens go, and where the experts' outputs go.

  Attributes:
    dispatch: [G, S, E, C], weights of tokens in buffers; bool, or float32.
    combine: float32 [G, S, E, C], weights of outputs in tokens.
  """

  dispatch: jax.Array
  combine: jax.Array

  def gather(self, x: jax.Array) -> jax.Array:
    """Returns what experts see, [E, G, C, D], of tokens [G, S, D].

    Means are float32, as in Soft MoE's code.
    """
    weights = self.dispatch
    if weights.dtype == bool:
      weights = weights.astype(x.dtype)
    return jnp.einsum('gsec,gsd->egcd', weights, x, precision=_HIGHEST)

  def scatter(self, y: jax.Array) -> jax.Array:
    """Returns tokens float32 [G, S, D] of experts' outputs [E, G, C, D]."""
    return jnp.einsum('gsec,egcd->gsd', self.combine, y, precision=_HIGHEST)


def capacity(
  tokens: int, experts: int, factor: float, multiple: int = _MULTIPLE
) -> int:
  """Returns the places of a buffer, a multiple of `multiple`.

  `tokens` are those to be routed, S K; `factor` is the places of all buffers,
  as a share of these.
  """
  places = max(1, math.ceil(tokens * factor / experts))
  return -(-places // multiple) * multiple


def choices(
  gates: jax.Array, count: int, by_gate: bool, attended: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the experts of each token, and its places in their buffers.

  All first choices come before all second choices (V-MoE, section 2.4). Gates
  float32, experts int32 and places int32 are [G, S, K] each.

  Args:
    gates: float32 [G, S, E].
    count: K.
    by_gate: Whether tokens with a larger gate come first (batch prioritized
      routing, section 4 there), and not those with a smaller index.
    attended: bool [G, S], tokens that are no padding; None: all. Padding takes
      no place: its own one is too large for any buffer.
  """
  g, s, e = gates.shape
  weights, experts = jax.lax.top_k(gates, count)
  order = jnp.broadcast_to(jnp.arange(s), (g, s))
  if by_gate:
    order = jnp.argsort(-weights[..., 0], axis=1)
  assigned = jax.nn.one_hot(experts, e, dtype=jnp.int32)  # [G, S, K, E]
  if attended is not None:
    assigned *= attended[:, :, None, None]
  ranked = jnp.take_along_axis(assigned, order[..., None, None], axis=1)
  ranked = ranked.swapaxes(1, 2).reshape(g, count * s, e)
  places = (ranked.cumsum(axis=1) - 1).reshape(g, count, s, e).swapaxes(1, 2)
  back = jnp.argsort(order, axis=1)[..., None, None]
  places = jnp.take_along_axis(places, back, axis=1)
  places = jnp.where(assigned > 0, places, 0).sum(axis=-1)
  if attended is not None:
    places = jnp.where(attended[..., None], places, count * s)
  return weights, experts, places


def top_experts(
  gates: jax.Array,
  count: int,
  places: int,
  by_gate: bool = False,
  attended: jax.Array | None = None,
) -> Routes:
  """Sends each token to its best experts (V-MoE); full buffers drop tokens.

  `places` are C; the other arguments are as of `choices`.
  """
  weights, experts, ranks = choices(gates, count, by_gate, attended)
  chosen = jax.nn.one_hot(experts, gates.shape[-1])  # [G, S, K, E]
  # The row of a place outside the buffer is zeros.
  place = jax.nn.one_hot(ranks, places)  # [G, S, K, C]
  return Routes(
    jnp.einsum('gske,gskc->gsec', chosen, place) > 0,
    jnp.einsum(
      'gsk,gske,gskc->gsec', weights, chosen, place, precision=_HIGHEST
    ),
  )


def top_tokens(
  gates: jax.Array, places: int, attended: jax.Array | None = None
) -> Routes:
  """Gives each expert its best tokens (expert choice).

  Args:
    gates: float32 [G, S, E].
    places: C, at most S.
    attended: As of `choices`.
  """
  if attended is not None:
    gates = gates * attended[..., None]
  weights, tokens = jax.lax.top_k(gates.swapaxes(1, 2), places)  # [G, E, C]
  chosen = jax.nn.one_hot(tokens, gates.shape[1], axis=1)  # [G, S, E, C]
  return Routes(
    (chosen > 0) & (weights[:, None] > 0), chosen * weights[:, None]
  )


def soft(
  x: jax.Array,
  slots: jax.Array,
  scale: jax.Array,
  attended: jax.Array | None = None,
) -> Routes:
  """Mixes all tokens into each slot, and all slots into each token (Soft MoE).

  Args:
    x: Tokens, [G, S, D].
    slots: Directions of the slots, [D, E, C].
    scale: Factor of the cosines of tokens and slots, a scalar.
    attended: As of `choices`.
  """
  scores = jnp.einsum(
    *('gsd,dec->gsec', _unit(x, -1), scale * _unit(slots, 0)),
    precision=_HIGHEST,
  )
  attended_scores = scores
  if attended is not None:
    attended_scores = jnp.where(attended[:, :, None, None], scores, -jnp.inf)
  combine = nn.softmax(scores, axis=(2, 3))
  return Routes(nn.softmax(attended_scores, axis=1), combine)


def _unit(x: jax.Array, axis: int) -> jax.Array:
  x = x.astype(jnp.float32)
  return x * jax.lax.rsqrt((x * x).sum(axis, keepdims=True) + 1e-6)


def importance_loss(gates: jax.Array) -> jax.Array:
  """Returns how unevenly gates [G, S, E] weigh the experts, float32 [G].

  V-MoE, appendix A: the squared coefficient of variation of their sums.
  """
  return _variation(gates.sum(axis=1))


def load_loss(
  logits: jax.Array, noisy: jax.Array, count: int, noise: float
) -> jax.Array:
  """Returns how unevenly experts are chosen, in expectation, float32 [G].

  V-MoE, appendix A: as `importance_loss`, of the probability that an expert is
  chosen again when its noise is drawn anew. Logits are [G, S, E], without noise
  and with it; `noise` is its standard deviation.
  """
  least = jax.lax.top_k(noisy, count)[0][..., -1:]
  chosen = 1 - jax.scipy.stats.norm.cdf((least - logits) / noise)
  return _variation(chosen.mean(axis=1))


def _variation(x: jax.Array) -> jax.Array:
  return (x.std(axis=-1) / x.mean(axis=-1)) ** 2


class _Mlps(nn.Module):
  """Experts' MLPs: [E, G, C, D] -> [E, G, C, D]."""

  # How a mesh may split the dimensions of input and output: by experts, and the
  # images by what is left.
  split: ClassVar[tuple[str, ...]] = ('experts', 'others')

  mlp: nn.Module

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    mlp: Any = self.mlp
    dense = functools.partial(_Dense, mlp.initializers, mlp.dtype)
    y = keep(dense(mlp.width, name='up')(x))
    return keep(dense(x.shape[-1], name='down')(mlp.activate(y)))


class _Dense(nn.Module):
  """A dense layer for each expert: [E, G, C, D] -> [E, G, C, width]."""

  initializers: str
  dtype: jax.typing.DTypeLike
  width: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    starts = initializers.INITIALIZERS[self.initializers]
    e, shape = x.shape[0], (x.shape[-1], self.width)

    def init(key: jax.Array, _: tuple[int, ...]) -> jax.Array:
      keys = jax.random.split(key, e)
      return jax.vmap(lambda key: starts.kernel(key, shape))(keys)

    kernel = self.param('kernel', init, (e, *shape))
    bias = self.param('bias', starts.mlp_bias, (e, self.width))
    y = jnp.einsum('egcd,edm->egcm', x, kernel.astype(self.dtype))
    return y + bias[:, None, None].astype(self.dtype)


class Experts(nn.Module):
  """Routes tokens to experts and back: [B, T, D] -> [B, T, D].

  In training, 'top_experts' returns a balancing loss, `balance`: half the
  importance and half the load of all images together (V-MoE, appendix A), times
  `loss`.

  Attributes:
    count: E, the number of experts.
    routing: How tokens come to experts: 'top_experts' (V-MoE), 'top_tokens'
      (expert choice) or 'soft' (Soft MoE).
    mlp: An expert; also the MLP of layers without experts.
    layers: Layers with experts, counted from 1; (): every second one, as in
      V-MoE, or with 'soft' the second half, as in Soft MoE.
    slots: With 'soft', slots of an expert; 0: of all experts together as many
      as the image has tokens with which the model is initialised.
    per_token: With 'top_experts', how many a token goes to.
    capacity: Places that all experts have, as a share of those that the tokens
      of an image need; tokens without a place skip the MLP.
    priority: Whether tokens with larger gates get their places first.
    noise: Standard deviation of the noise that training adds to the router's
      logits, times the number of experts.
    loss: Weight of the loss by which 'top_experts' learns to use all experts.
    dropout_rate: Dropout rate of the output.
    dtype: Type in which experts compute.
  """

  scope_name: ClassVar[str] = 'moe'
  routes_tokens: ClassVar[bool] = True

  count: Annotated[int, fields.function(least=1, most=2**16)]
  mlp: Annotated[nn.Module, fields.function(part='mlp')]
  routing: Annotated[str, fields.function(choices=ROUTINGS)] = 'top_experts'
  layers: Annotated[tuple[int, ...], fields.function(least=1, most=1_000)] = ()
  slots: Annotated[int, fields.function(least=0)] = 0
  per_token: Annotated[int, fields.unseen(least=1)] = 2
  capacity: Annotated[float, fields.training(interval='(0, inf)')] = 1.05
  priority: Annotated[bool, fields.TRAINING] = False
  noise: Annotated[float, fields.training(interval='[0, inf)')] = 1.0
  loss: Annotated[float, fields.training(interval='[0, inf)')] = 0.01
  dropout_rate: Annotated[float, fields.RATE] = 0.0
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if it does not fit the model's other parts."""
    numbers, depth = self.layers, model.depth
    attention = getattr(model.block, 'attention', None)
    wrong = {
      'scan=True, since its layers differ': model.scan,
      'hidden_norm=True': getattr(self.mlp, 'hidden_norm', False),
      'bias=False': not getattr(self.mlp, 'bias', True),
      'causal=True of attention, since all tokens are routed together': getattr(
        attention, 'causal', False
      ),
    }
    refusals.refuse(wrong, f"mlp='experts({self.count})' does not go with {{}}")
    wrong = {
      f'layers is {numbers}: write different numbers from 1 to the depth,'
      f' {depth}': len({*numbers}) < len(numbers)
      or max(numbers, default=0) > depth,
      f'every second layer would have them, and the depth is {depth}; choose'
      f' layers, as experts({self.count}, layers=(1,))': (
        not self.routed_layers(depth)
      ),
    }
    refusals.refuse(wrong, "mlp='experts': {}")

  def at_layer(self, layer: int, depth: int) -> nn.Module:
    """Returns the MLP of a layer, with experts or without."""
    return self if layer in self.routed_layers(depth) else self.mlp

  def routed_layers(self, depth: int) -> tuple[int, ...]:
    """Returns the layers that have experts, from 0."""
    if self.layers:
      return tuple(n - 1 for n in self.layers)
    if self.routing == 'soft':
      return tuple(range(depth // 2, depth))
    return tuple(range(1, depth, 2))

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns the output; that of a dropped token is 0."""
    route = self._soft if self.routing == 'soft' else self._gated
    routes = route(x, context)
    buffers = routes.gather(x.astype(self.dtype)).astype(self.dtype)
    y = _Mlps(self.mlp.clone(parent=None), name='experts')(buffers)
    y = routes.scatter(y).astype(self.dtype)
    return context.dropout(y, self.dropout_rate, dropout.Purpose.MLP_OUTPUT)

  def _soft(self, x: jax.Array, context: Context) -> Routes:
    tokens, d = x.shape[1:]
    slots = self.slots or soft_slots(tokens, self.count)
    # Smaller crops, or some patches of an image, share the slots of the image.
    stored: jax.Array | None = self.get_variable('params', 'slots')
    if stored is not None:
      slots = stored.shape[-1]
    scale = self.param('scale', nn.initializers.ones, ())
    init = nn.initializers.lecun_normal()
    directions = self.param('slots', init, (d, self.count, slots))
    return soft(x, directions, scale, context.attended)

  def _gated(self, x: jax.Array, context: Context) -> Routes:
    tokens, attended = x.shape[1], context.attended
    logits = nn.Dense(
      self.count,
      use_bias=False,
      kernel_init=nn.initializers.normal(0.02),
      name='router',
    )(x.astype(jnp.float32))
    gates, key = nn.softmax(logits), context.dropout_key
    if key is not None:
      keys = key.fold(dropout.Purpose.ROUTING).per_row()
      drawn = jax.vmap(lambda k: jax.random.normal(k, logits.shape[1:]))(keys)
      noisy = logits + self.noise / self.count * drawn
      if self.has_loss:
        loss = self._balance(gates, logits, noisy, attended)
        context.outputs['balance'] = loss
      gates = nn.softmax(noisy)
    if self.routing == 'top_tokens':
      places = capacity(tokens, self.count, self.capacity, 1)
      return top_tokens(gates, min(places, tokens), attended)
    count = min(self.per_token, self.count)
    places = capacity(tokens * count, self.count, self.capacity)
    return top_experts(gates, count, places, self.priority, attended)

  def _balance(
    self,
    gates: jax.Array,
    logits: jax.Array,
    noisy: jax.Array,
    attended: jax.Array | None,
  ) -> jax.Array:
    """Returns the balancing loss of all tokens that are no padding."""
    flat = functools.partial(jnp.reshape, shape=(1, -1, self.count))
    if attended is not None:
      return self.loss * importance_loss(flat(gates * attended[..., None]))[0]
    balance, noise = importance_loss(flat(gates)), self.noise / self.count
    if noise:
      count = min(self.per_token, self.count)
      loads = load_loss(flat(logits), flat(noisy), count, noise)
      balance = (balance + loads) / 2
    return self.loss * balance[0]

  @property
  def has_loss(self) -> bool:
    """Whether training gives balancing losses."""
    return self.loss > 0 and self.routing == 'top_experts'


def soft_slots(tokens: int, experts: int) -> int:
  """Returns the slots of an expert where there are as many slots as tokens."""
  return max(1, round(tokens / experts))
