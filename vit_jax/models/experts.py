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

from collections.abc import Mapping
from collections.abc import Sequence
import functools
import math
from typing import Any
from typing import ClassVar

import flax
from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import dropout
from vit_jax.models import initializers
from vit_jax.models import mlp
from vit_jax.models import spec as spec_lib

LOSSES = 'losses'  # collection that gets the balancing losses in training
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
  """Returns the places of a buffer.

  Args:
    tokens: Tokens to be routed, S K.
    experts: E.
    factor: Places of all buffers, as a share of the tokens.
    multiple: The number is rounded up to a multiple of this one.
  """
  found = max(1, math.ceil(tokens * factor / experts))
  return -(-found // multiple) * multiple


def choices(
  gates: jax.Array,
  count: int,
  by_gate: bool,
  attended: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the experts of each token, and its places in their buffers.

  All first choices come before all second choices (V-MoE, section 2.4).

  Args:
    gates: float32 [G, S, E].
    count: K.
    by_gate: Whether tokens with a larger gate come first (batch prioritized
      routing, section 4 there), and not those with a smaller index.
    attended: bool [G, S], tokens that are no padding; None: all. Padding takes
      no place: its own one is too large for any buffer.

  Returns:
    Gates float32, experts int32 and places int32, [G, S, K] each.
  """
  g, s, e = gates.shape
  weights, experts = jax.lax.top_k(gates, count)
  order = jnp.broadcast_to(jnp.arange(s), (g, s))
  if by_gate:
    order = jnp.argsort(-weights[..., 0], axis=1)
  taken = jax.nn.one_hot(experts, e, dtype=jnp.int32)  # [G, S, K, E]
  if attended is not None:
    taken *= attended[:, :, None, None]
  ranked = jnp.take_along_axis(taken, order[..., None, None], axis=1)
  ranked = ranked.swapaxes(1, 2).reshape(g, count * s, e)
  places = (ranked.cumsum(axis=1) - 1).reshape(g, count, s, e).swapaxes(1, 2)
  back = jnp.argsort(order, axis=1)[..., None, None]
  places = jnp.take_along_axis(places, back, axis=1)
  places = jnp.where(taken > 0, places, 0).sum(axis=-1)
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

  `places` are C; the other arguments are those of `choices`.
  """
  weights, experts, found = choices(gates, count, by_gate, attended)
  chosen = jax.nn.one_hot(experts, gates.shape[-1])  # [G, S, K, E]
  # The row of a place outside the buffer is zeros.
  place = jax.nn.one_hot(found, places)  # [G, S, K, C]
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
  given = scores
  if attended is not None:
    given = jnp.where(attended[:, :, None, None], scores, -jnp.inf)
  combine = nn.softmax(scores, axis=(2, 3))
  return Routes(nn.softmax(given, axis=1), combine)


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

  V-MoE, appendix A: as `importance_loss`, of the probability that an expert
  is chosen again when its noise is drawn anew.

  Args:
    logits: Without noise, [G, S, E].
    noisy: With noise.
    count: K.
    noise: Standard deviation of the noise.
  """
  least = jax.lax.top_k(noisy, count)[0][..., -1:]
  chosen = 1 - jax.scipy.stats.norm.cdf((least - logits) / noise)
  return _variation(chosen.mean(axis=1))


def gshard_loss(gates: jax.Array) -> jax.Array:
  """Returns GShard's loss of gates [G, S, E] (arXiv:2006.16668), float32 [G].

  The mean gates times the shares of first choices; 1 if both are even.
  """
  e = gates.shape[-1]
  first = jax.nn.one_hot(gates.argmax(axis=-1), e).mean(axis=1)
  return (first * gates.mean(axis=1)).sum(axis=-1) * e


def _variation(x: jax.Array) -> jax.Array:
  return (x.std(axis=-1) / x.mean(axis=-1)) ** 2


def layers(spec: spec_lib.EncoderSpec) -> tuple[int, ...]:
  """Returns the layers that have experts, from 0.

  By default every second layer, as in V-MoE, or with 'soft' the second half, as
  in Soft MoE.
  """
  if not spec.experts:
    return ()
  if spec.expert_layers:
    return tuple(n - 1 for n in spec.expert_layers)
  half = spec.depth // 2
  is_soft = spec.routing == 'soft'
  return tuple(range(half if is_soft else 1, spec.depth, 1 if is_soft else 2))


def has_loss(model: Any) -> bool:
  """Whether training a model gives balancing losses."""
  return bool(
    getattr(model, 'experts', 0)
    and model.expert_loss
    and model.routing == 'top_experts'
  )


def fields(
  spec: spec_lib.EncoderSpec, each: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
  """Adds `has_experts` to other fields of each layer; () if none has any."""
  if not spec.experts:
    return each
  chosen, others = layers(spec), each or [{}] * spec.depth
  return [{**x, 'has_experts': i in chosen} for i, x in enumerate(others)]


class Experts(nn.Module):
  """Experts' MLPs: [E, G, C, D] -> [E, G, C, D].

  Attributes:
    spec: Fields of the layer.
    split: How a mesh may split the dimensions of input and output: by experts,
      and the images by what is left.
  """

  spec: spec_lib.EncoderSpec
  split: ClassVar[tuple[str, ...]] = ('experts', 'others')

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Applies each expert to its buffers."""
    spec, d = self.spec, x.shape[-1]
    width = 2 * spec.mlp_dim if spec.gated_mlp else spec.mlp_dim
    y = spec_lib.keep(_Dense(spec, width, name='up')(x))
    y = mlp.activate(spec, y, spec.gated_mlp, spec.gate)
    return spec_lib.keep(_Dense(spec, d, name='down')(y))


class _Dense(nn.Module):
  """A dense layer for each expert: [E, G, C, D] -> [E, G, C, width]."""

  spec: spec_lib.EncoderSpec
  width: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    starts, dtype = self.spec.starts, self.spec.dtype
    e, shape = x.shape[0], (x.shape[-1], self.width)
    kernel = self.param('kernel', _each(starts.kernel), (e, *shape))
    bias = self.param('bias', starts.mlp_bias, (e, self.width))
    y = jnp.einsum('egcd,edm->egcm', x, kernel.astype(dtype))
    return y + bias[:, None, None].astype(dtype)


def _each(init: initializers.Initializer) -> initializers.Initializer:
  """Initialises the kernels [E, D, M] of experts, one by one."""

  def make(key: jax.Array, shape: tuple[int, ...], *how: Any) -> jax.Array:
    keys = jax.random.split(key, shape[0])
    return jax.vmap(lambda key: init(key, shape[1:], *how))(keys)

  return make


class MixtureOfExperts(nn.Module):
  """Routes tokens to experts and back: [B, T, D] -> [B, T, D].

  In training, a balancing loss is sown into the collection `losses`, where that
  is mutable: half the importance and half the load of all images together (V-
  MoE, appendix A), times `spec.expert_loss`.
  """

  spec: spec_lib.EncoderSpec

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    attended: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the output; that of a dropped token is 0.

    Args:
      x: [B, T, D].
      dropout_key: Key of the layer; None when not training.
      attended: bool [B, T], tokens that are no padding; None: all.
    """
    spec = self.spec
    route = self._soft if spec.routing == 'soft' else self._gated
    routes = route(x, dropout_key, attended)
    buffers = routes.gather(x.astype(spec.dtype)).astype(spec.dtype)
    y = Experts(spec, name='experts')(buffers)
    y = routes.scatter(y).astype(spec.dtype)
    key = dropout.fold(dropout_key, dropout.Purpose.MLP_OUTPUT)
    return dropout.dropout(y, spec.dropout_rate, key)

  def _soft(
    self,
    x: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    attended: jax.Array | None,
  ) -> Routes:
    del dropout_key
    spec, (tokens, d) = self.spec, x.shape[1:]
    slots = spec.expert_slots or soft_slots(tokens, spec.experts)
    # Smaller crops, or some patches of an image, share the slots of the image.
    stored: jax.Array | None = self.get_variable('params', 'slots')
    if stored is not None:
      slots = stored.shape[-1]
    scale = self.param('scale', nn.initializers.ones, ())
    init = nn.initializers.lecun_normal()
    directions = self.param('slots', init, (d, spec.experts, slots))
    return soft(x, directions, scale, attended)

  def _gated(
    self,
    x: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    attended: jax.Array | None,
  ) -> Routes:
    """Returns the routes of 'top_experts' and 'top_tokens'."""
    spec, tokens = self.spec, x.shape[1]
    logits = nn.Dense(
      spec.experts,
      use_bias=False,
      kernel_init=nn.initializers.normal(0.02),
      name='router',
    )(x.astype(jnp.float32))
    gates, noise = nn.softmax(logits), spec.expert_noise / spec.experts
    noisy = logits + noise * dropout.noise(dropout_key, logits.shape[1:])
    if dropout_key is not None:
      self._sow(gates, logits, noisy, noise, attended)
      gates = nn.softmax(noisy)
    if spec.routing == 'top_tokens':
      places = capacity(tokens, spec.experts, spec.expert_capacity, 1)
      return top_tokens(gates, min(places, tokens), attended)
    count = min(spec.experts_per_token, spec.experts)
    places = capacity(tokens * count, spec.experts, spec.expert_capacity)
    return top_experts(gates, count, places, spec.expert_priority, attended)

  def _sow(
    self,
    gates: jax.Array,
    logits: jax.Array,
    noisy: jax.Array,
    noise: float,
    attended: jax.Array | None,
  ) -> None:
    """Sows the balancing loss of all tokens of a batch that are no padding."""
    if not has_loss(self.spec):
      return
    count = min(self.spec.experts_per_token, self.spec.experts)
    flat = functools.partial(jnp.reshape, shape=(1, -1, logits.shape[-1]))
    found = importance_loss(flat(gates))
    if attended is not None:
      found = importance_loss(flat(gates * attended[..., None]))
    if noise and attended is None:
      loads = load_loss(flat(logits), flat(noisy), count, noise)
      found = (found + loads) / 2
    loss = self.spec.expert_loss * found[0]
    self.sow(LOSSES, 'balance', loss, reduce_fn=lambda _, new: new)


def soft_slots(tokens: int, experts: int) -> int:
  """Returns the slots of an expert where there are as many slots as tokens."""
  return max(1, round(tokens / experts))
