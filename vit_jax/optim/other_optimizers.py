"""Optimizers beside AdamW and SGD."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import optax
from optax import contrib

from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.models import stack
from vit_jax.optim import arrays
from vit_jax.optim import optimizers
from vit_jax.optim import rules
from vit_jax.optim.optimizers import MomentType
from vit_jax.optim.optimizers import Transformation
from vit_jax.parallel import sharding

# Root mean square of Muon's updates. It is about that of Adam's updates, so
# that both can share a learning rate (Moonlight, arXiv:2502.16982, section
# 2.2).
_MUON_RMS = 0.2


@dataclasses.dataclass(frozen=True)
class AdamBigVision(optimizers.AdamW):
  """AdamW as in its paper (arXiv:1711.05101, algorithm 2) and big_vision.

  The decay is multiplied only by the schedule, scaled to a maximum of 1. The
  train step multiplies the whole direction by the learning rate, so the decay
  is divided by the peak learning rate here.
  """

  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns Adam and the decay."""
    peak = config.learning_rate
    decay = optimizers.decayed(config, 1 / peak if peak else 0.0)
    return [self.adam(), decay]


@dataclasses.dataclass(frozen=True)
class LAMB(optimizers.AdamW):
  """LAMB (arXiv:1904.00962).

  Attributes:
    adapt_all: Whether the updates of all parameters are adapted, not only of
      those with weight decay.
  """

  adapt_all: bool = False

  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns Adam, the decay and the adaptation."""
    ratio = _trust_ratio(config, self.adapt_all)
    return [self.adam(), optimizers.decayed(config), ratio]


@dataclasses.dataclass(frozen=True)
class LARS(optimizers.SGD):
  """LARS (arXiv:1708.03888) as in the code of MoCo v3 and MAE.

  Momentum gathers gradients that are adapted, but not yet multiplied by the
  learning rate.

  Attributes:
    trust_coefficient: Norm of an update before momentum, at a learning rate of
      1, as a multiple of the parameter's norm.
    adapt_all: As of LAMB.
  """

  trust_coefficient: options.Amount = 1e-3
  adapt_all: bool = False

  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns the decay, the adaptation and momentum."""
    decay, trace = super().transformations(config)
    ratio = _trust_ratio(config, self.adapt_all, self.trust_coefficient)
    return [decay, ratio, trace]


@dataclasses.dataclass(frozen=True)
class Lion(optimizers.Method):
  """Lion (arXiv:2302.06675), with the b2 of its paper.

  Attributes:
    b1: Weight of the momentum in the update.
    b2: Decay of the momentum.
    momentum_dtype: Type of the momentum.
  """

  b1: options.Decay = 0.9
  b2: options.Decay = 0.99
  momentum_dtype: MomentType = 'float32'

  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns Lion and the decay."""
    lion = optax.scale_by_lion(self.b1, self.b2, self.momentum_dtype)
    return [lion, optimizers.decayed(config)]


@dataclasses.dataclass(frozen=True)
class Adafactor(optimizers.Method):
  """Adafactor as Scaling ViTs changed it (arXiv:2106.04560, section 3.4).

  It has a first moment without bias correction, the decay of the second moment
  is at most b2, and updates are not scaled by the norm of the parameters.

  Attributes:
    b1: Decay of the first moment.
    b2: The largest decay of the second moment.
    momentum_dtype: Type of the first moment.
  """

  b1: options.Decay = 0.9
  b2: options.Decay = 0.999
  momentum_dtype: MomentType = 'float32'

  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns the factored second moment, the first one, and the decay."""

    def decay_rate(step: jax.Array, power: float) -> jax.Array:
      return jnp.minimum(self.b2, 1 - (step + 1.0) ** -power)

    return [
      arrays.per_layer(
        optax.scale_by_factored_rms(
          min_dim_size_to_factor=32, decay_rate_fn=decay_rate
        )
      ),
      arrays.per_layer(optax.clip_by_block_rms(1.0)),
      optax.ema(self.b1, False, self.momentum_dtype),
      optimizers.decayed(config),
    ]


@dataclasses.dataclass(frozen=True)
class Muon(optimizers.AdamW):
  """Muon for the kernels of the blocks, Adam for all other parameters.

  Adam trains embeddings, heads and vectors, and the convolutions of hybrids and
  of BiT (Keller Jordan, https://kellerjordan.github.io/posts/muon). Adam's
  options stand beside Muon's own.

  Attributes:
    momentum: Decay of Muon's momentum.
  """

  momentum: options.Decay = 0.95

  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns both optimizers, each for its parameters, and the decay."""

    def dimensions(updates: Any) -> Any:
      return jax.tree_util.tree_map_with_path(
        lambda path, _: contrib.MuonDimensionNumbers(
          *arrays.matrix_axes(sharding.path_name(path))
        ),
        updates,
      )

    muon = contrib.scale_by_muon(
      beta=self.momentum,
      mu_dtype=self.momentum_dtype,
      weight_dimension_numbers=dimensions,
    )
    return [
      optax.partition(
        {
          'muon': optax.chain(muon, optax.stateless(_consistent_rms)),
          'adam': self.adam(),
        },
        _muon_or_adam,
      ),
      optimizers.decayed(config),
    ]


def _muon_or_adam(params: Any) -> Any:
  """Labels each parameter 'muon' or 'adam'."""

  def choose(path: tuple[Any, ...], x: Any) -> str:
    name = stack.layer_names(path, x)[0][0]
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


def _trust_ratio(
  config: ConfigDict, adapt_all: bool, coefficient: float = 1.0
) -> Transformation:
  """Scales updates of parameters with weight decay to the parameter's norm.

  Updates of biases and normalisation layers keep their scale, as in the LAMB
  authors' code for BERT, DeiT III's recipe, apex and timm; with `adapt_all`,
  none does. The coefficient is the norm of an update, as a multiple of its
  parameter's norm.
  """
  adapt = arrays.per_layer(
    optax.scale_by_trust_ratio(trust_coefficient=coefficient)
  )

  def decays(name: str) -> bool:
    if adapt_all:
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
