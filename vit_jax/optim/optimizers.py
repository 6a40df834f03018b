"""Makes optax optimizers from `config.optim`.

A listed optimizer maps gradients to the direction of the update. The train step
multiplies it by the learning rate, the factors of `rules` and -1, so that the
learning rate depends only on the step and is not in the optimizer's state. The
function of `optim.named` gets the rate of the step itself.

A scanned model gets the same updates as the unrolled one: statistics of a whole
array, such as norms, are computed separately for each layer.
"""

from collections.abc import Callable
import math
import re
from typing import Any
from typing import NamedTuple
from typing import TypeAlias

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
from optax import contrib

from vit_jax import config as config_lib
from vit_jax.models import layouts
from vit_jax.optim import arrays
from vit_jax.optim import named
from vit_jax.optim import rules
from vit_jax.parallel import sharding

Transformation: TypeAlias = optax.GradientTransformationExtraArgs

# Root mean square of Muon's updates. It is about that of Adam's updates, so
# that both can share a learning rate (Moonlight, arXiv:2502.16982, section
# 2.2).
_MUON_RMS = 0.2


_NOT_NEGATIVE = (
  'clip_adaptive',
  'clip_each',
  'clip_norm',
  'weight_decay',
  'final_weight_decay',
  'eps',
  'trust_coefficient',
)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the optimizer's values in `config.optim`.

  Raises:
    UserError: One of them cannot work.
  """
  if named.is_named(config.optim.name):
    named.check(config.optim)
  elif config.optim.name not in NAMES:
    raise config_lib.UserError(
      f'config.optim.name is {config.optim.name!r}: choose one of'
      f' {", ".join(NAMES)}, or a function of optax or of your own, as'
      " 'optax:adan(b1=0.98)'"
    )
  config_lib.one_of(config, 'optim.momentum_dtype', ('float32', 'bfloat16'))
  for key in _NOT_NEGATIVE:
    config_lib.at_least(config, f'optim.{key}', 0)
  for key in ('b1', 'b2', 'momentum'):
    config_lib.share(config, f'optim.{key}', below_1=True)
  final = config.optim.final_weight_decay
  if final is not None and not config.optim.weight_decay:
    raise config_lib.UserError(
      f'config.optim.final_weight_decay is {final}, but'
      ' config.optim.weight_decay, from which it changes, is 0: set that, too'
    )


class Optimizer(NamedTuple):
  """A transformation of gradients.

  Attributes:
    init: Maps parameters to the state.
    update: Maps gradients, state and parameters to directions and the new
      state. It also takes `decay`, a factor of all weight decays, as from
      `schedules.make_decay`, 1 by default; and `learning_rate`, that of the
      step, by default the maximum.
    has_rate: Whether directions are multiplied by the learning rate already.
  """

  init: Callable[..., Any]
  update: Callable[..., tuple[Any, Any]]
  has_rate: bool


def make_optimizer(config: ml_collections.ConfigDict) -> Optimizer:
  """Returns the optimizer of a config.

  Args:
    config: `config.optim`, checked.
  """
  parts = []
  if config.clip_each:
    parts.append(arrays.per_layer(_clip_each(config.clip_each)))
  if config.clip_adaptive:
    parts.append(arrays.per_layer(_clip_adaptive(config.clip_adaptive)))
  if config.clip_norm:
    parts.append(optax.clip_by_global_norm(config.clip_norm))
  if named.is_named(config.name):
    parts += [named.negative_change(config), _decay_by_rate(config)]
  else:
    parts += _OPTIMIZERS[config.name](config)
  chain = optax.chain(*parts)
  return Optimizer(chain.init, chain.update, named.is_named(config.name))


def _adamw(config: ml_collections.ConfigDict) -> list[Transformation]:
  return [_adam(config), _decay(config)]


def _adam_big_vision(config: ml_collections.ConfigDict) -> list[Transformation]:
  """AdamW as in its paper (arXiv:1711.05101, algorithm 2) and big_vision.

  The decay is multiplied only by the schedule, scaled to a maximum of 1. The
  train step multiplies the whole direction by the learning rate, so the decay
  is divided by the peak learning rate here.
  """
  peak = config.learning_rate
  return [_adam(config), _decay(config, 1 / peak if peak else 0.0)]


def _sgd(config: ml_collections.ConfigDict) -> list[Transformation]:
  """SGD with momentum; the decay is added to the gradient before momentum."""
  dtype = config.momentum_dtype
  return [_decay(config), optax.trace(config.momentum, config.nesterov, dtype)]


def _lamb(config: ml_collections.ConfigDict) -> list[Transformation]:
  """LAMB (arXiv:1904.00962)."""
  return [_adam(config), _decay(config), _trust_ratio(config)]


def _lars(config: ml_collections.ConfigDict) -> list[Transformation]:
  """LARS (arXiv:1708.03888) as in the code of MoCo v3 and MAE.

  Momentum gathers gradients that are adapted, but not yet multiplied by the
  learning rate.
  """
  return [
    _decay(config),
    _trust_ratio(config, config.trust_coefficient),
    optax.trace(config.momentum, config.nesterov, config.momentum_dtype),
  ]


def _lion(config: ml_collections.ConfigDict) -> list[Transformation]:
  """Lion (arXiv:2302.06675); the paper has b2 = 0.99."""
  dtype = config.momentum_dtype
  return [optax.scale_by_lion(config.b1, config.b2, dtype), _decay(config)]


def _adafactor(config: ml_collections.ConfigDict) -> list[Transformation]:
  """Adafactor as Scaling ViTs changed it (arXiv:2106.04560, section 3.4).

  It has a first moment without bias correction, the decay of the second moment
  is at most b2, and updates are not scaled by the norm of the parameters.
  """

  def decay_rate(step: jax.Array, power: float) -> jax.Array:
    return jnp.minimum(config.b2, 1 - (step + 1.0) ** -power)

  return [
    arrays.per_layer(
      optax.scale_by_factored_rms(
        min_dim_size_to_factor=32, decay_rate_fn=decay_rate
      )
    ),
    arrays.per_layer(optax.clip_by_block_rms(1.0)),
    optax.ema(config.b1, False, config.momentum_dtype),
    _decay(config),
  ]


def _muon(config: ml_collections.ConfigDict) -> list[Transformation]:
  """Muon for the kernels of the blocks, Adam for all other parameters.

  Adam trains embeddings, heads and vectors, and the convolutions of hybrids and
  of BiT. (Keller Jordan, https://kellerjordan.github.io/posts/muon)
  """

  def dimensions(updates: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
      lambda path, _: contrib.MuonDimensionNumbers(
        *arrays.matrix_axes(sharding.path_name(path))
      ),
      updates,
    )

  muon = contrib.scale_by_muon(
    beta=config.momentum,
    mu_dtype=config.momentum_dtype,
    weight_dimension_numbers=dimensions,
  )
  return [
    optax.partition(
      {
        'muon': optax.chain(muon, optax.stateless(_consistent_rms)),
        'adam': _adam(config),
      },
      _muon_or_adam,
    ),
    _decay(config),
  ]


_OPTIMIZERS: dict[
  str, Callable[[ml_collections.ConfigDict], list[Transformation]]
] = {
  'adamw': _adamw,
  'adam_big_vision': _adam_big_vision,
  'sgd': _sgd,
  'lamb': _lamb,
  'lars': _lars,
  'lion': _lion,
  'adafactor': _adafactor,
  'muon': _muon,
}
NAMES = tuple(_OPTIMIZERS)


def _adam(config: ml_collections.ConfigDict) -> Transformation:
  # The second moment stays in float32: with b2 = 0.999 bfloat16 would round its
  # changes away.
  dtype = config.momentum_dtype
  return optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=dtype)


def _decay(
  config: ml_collections.ConfigDict, factor: float = 1.0
) -> Transformation:
  """Adds the weight decay of each parameter, multiplied by `factor`."""
  if not config.weight_decay and not any(rule[2] for rule in config.rules):
    return optax.with_extra_args_support(optax.identity())

  def update(
    updates: optax.Updates,
    state: optax.EmptyState,
    params: optax.Params | None = None,
    *,
    decay: jax.typing.ArrayLike = 1.0,
    **_: Any,
  ) -> tuple[optax.Updates, optax.EmptyState]:
    weights = rules.per_array(
      params, lambda name: factor * rules.weight_decay(config, name)
    )
    added = jax.tree.map(
      lambda g, p, w: g + decay * w * p if np.any(w) else g,
      updates,
      params,
      weights,
    )
    return added, state

  return optax.GradientTransformationExtraArgs(
    lambda _: optax.EmptyState(), update
  )


def _decay_by_rate(config: ml_collections.ConfigDict) -> Transformation:
  """Adds the weight decay of each parameter, times the learning rate."""
  plain = _decay(config)

  def update(
    updates: optax.Updates,
    state: Any,
    params: optax.Params | None = None,
    *,
    decay: jax.typing.ArrayLike = 1.0,
    learning_rate: jax.typing.ArrayLike = config.learning_rate,
    **_: Any,
  ) -> tuple[optax.Updates, Any]:
    return plain.update(updates, state, params, decay=decay * learning_rate)

  return optax.GradientTransformationExtraArgs(plain.init, update)


def _trust_ratio(
  config: ml_collections.ConfigDict, coefficient: float = 1.0
) -> Transformation:
  """Scales updates of parameters with weight decay to the parameter's norm.

  Updates of biases and normalisation layers keep their scale, as in the LAMB
  authors' code for BERT, DeiT III's recipe, apex and timm. With
  `config.adapt_all` all updates are scaled.

  Args:
    config: `config.optim`.
    coefficient: Norm of an update, as a multiple of its parameter's norm.
  """
  adapt = arrays.per_layer(
    optax.scale_by_trust_ratio(trust_coefficient=coefficient)
  )

  def decays(name: str) -> bool:
    if config.adapt_all:
      return True
    if config.weight_decay:
      return rules.weight_decay(config, name) > 0
    return bool(re.search(config.decay_pattern, name))

  def adapted(updates: optax.Updates, params: optax.Params | None) -> Any:
    scaled, _ = adapt.update(updates, adapt.init(params), params)
    mask = rules.per_array(params, lambda name: float(decays(name)))
    return jax.tree.map(
      lambda s, u, m: jnp.where(m, s, u), scaled, updates, mask
    )

  return optax.stateless(adapted)


def _muon_or_adam(params: Any) -> Any:
  """Labels each parameter 'muon' or 'adam'."""

  def choose(path: tuple[Any, ...], x: Any) -> str:
    name = layouts.layer_names(path, x)[0][0]
    is_hidden = re.search(r'\bblocks_\d+/.*kernel$', name)
    return 'muon' if is_hidden else 'adam'

  chosen = jax.tree_util.tree_map_with_path(choose, params)
  if 'muon' not in jax.tree.leaves(chosen):
    raise config_lib.UserError(
      "config.optim.name is 'muon', but no kernel of a block trains, and"
      " Muon is for these alone: choose 'adamw'"
    )
  return chosen


def _consistent_rms(updates: Any, params: Any) -> Any:
  del params

  def scaled(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
    sizes = [
      math.prod(x.shape[axis] for axis in axes)
      for axes in arrays.matrix_axes(sharding.path_name(path))
    ]
    return x * (_MUON_RMS * math.sqrt(max(sizes)))

  return jax.tree_util.tree_map_with_path(scaled, updates)


def _clip_each(limit: float) -> Transformation:
  """Clips the gradient of each parameter by its own norm.

  As DINO's code does (arXiv:2104.14294, `clip_gradients`); its queries, keys
  and values are one parameter, as here.
  """

  def clip(g: jax.Array) -> jax.Array:
    norm = jnp.sqrt(jnp.sum(g**2))
    return g * jnp.minimum(1, limit / (norm + 1e-6))

  return optax.stateless(lambda updates, _: jax.tree.map(clip, updates))


def _clip_adaptive(limit: float) -> Transformation:
  """Clips the gradient of each unit to a multiple of its weights' norm.

  Adaptive gradient clipping (arXiv:2102.06171, section 4.1); as in the paper,
  heads are not clipped. `optax.adaptive_grad_clip` uses the same axes for all
  arrays, or guesses them from the rank, which is wrong for a fused qkv kernel
  [D, 3, H, K].
  """

  def clip(path: tuple[Any, ...], g: jax.Array, p: jax.Array) -> jax.Array:
    name = sharding.path_name(path)
    if re.match('head(_distillation)?/', name):
      return g
    axes = arrays.unit_axes(name, g.ndim)

    def norm(x: jax.Array) -> jax.Array:
      return jnp.sqrt(jnp.sum(x**2, axes, keepdims=True))

    most = limit * jnp.maximum(norm(p), 1e-3)  # weights of 0 can still change
    return g * jnp.minimum(1, most / jnp.maximum(norm(g), 1e-6))

  return optax.stateless(
    lambda updates, params: jax.tree_util.tree_map_with_path(
      clip, updates, params
    )
  )
