"""Makes optax optimizers from `config.optim`.

An optimizer maps gradients to the direction of the update. The train step
multiplies it by the learning rate, the factors of `rules` and -1, so that the
learning rate depends only on the step and is not in the optimizer's state. The
function of `optim.named` gets the rate of the step itself.

A scanned model gets the same updates as the unrolled one: statistics of a whole
array, such as norms, are computed separately for each layer.
"""

import abc
from collections.abc import Callable
import dataclasses
from typing import Any
from typing import ClassVar
from typing import Literal
from typing import NamedTuple
from typing import TypeAlias

import jax
from ml_collections import ConfigDict
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.config import registry
from vit_jax.optim import rules

Transformation: TypeAlias = optax.GradientTransformationExtraArgs
# The type in which the first moment or the momentum is stored; 'bfloat16'
# halves its memory. The second moment stays in float32: with b2 = 0.999
# bfloat16 would round its changes away.
MomentType: TypeAlias = Literal['float32', 'bfloat16']

OPTIMIZERS = {
  'adamw': 'vit_jax.optim.optimizers:AdamW',
  'sgd': 'vit_jax.optim.optimizers:SGD',
  'adam_big_vision': 'vit_jax.optim.other_optimizers:AdamBigVision',
  'lamb': 'vit_jax.optim.other_optimizers:LAMB',
  'lars': 'vit_jax.optim.other_optimizers:LARS',
  'lion': 'vit_jax.optim.other_optimizers:Lion',
  'adafactor': 'vit_jax.optim.other_optimizers:Adafactor',
  'muon': 'vit_jax.optim.other_optimizers:Muon',
}
# What `config.optim.clip` names; each has a `transformation()`.
CLIPS = {
  'each': 'vit_jax.optim.clipping:PerParameter',
  'adaptive': 'vit_jax.optim.clipping:Adaptive',
}


class Method(abc.ABC):
  """An optimizer; its options are fields of its class.

  Attributes:
    has_rate: Whether directions are multiplied by the learning rate already.
  """

  has_rate: ClassVar[bool] = False

  @abc.abstractmethod
  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns what maps gradients to directions, one after the other.

    `config` is `config.optim`, with the weight decay.
    """

  def check(self) -> None:
    """Raises a UserError if the optimizer cannot work."""


@dataclasses.dataclass(frozen=True)
class AdamW(Method):
  """AdamW, with the decay times the learning rate, as in optax.

  Attributes:
    b1: Decay of the first moment.
    b2: Decay of the second moment.
    eps: The number that is added to the root of the second moment.
    momentum_dtype: Type of the first moment.
  """

  b1: options.Decay = 0.9
  b2: options.Decay = 0.999
  eps: options.Amount = 1e-8
  momentum_dtype: MomentType = 'float32'

  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns Adam and the decay."""
    return [self.adam(), decayed(config)]

  def adam(self) -> Transformation:
    """Returns Adam."""
    return optax.scale_by_adam(
      self.b1, self.b2, self.eps, mu_dtype=self.momentum_dtype
    )


@dataclasses.dataclass(frozen=True)
class SGD(Method):
  """SGD with momentum; the decay is added to the gradient before momentum.

  Attributes:
    momentum: Decay of the momentum.
    nesterov: Whether the momentum is Nesterov's.
    momentum_dtype: Type of the momentum.
  """

  momentum: options.Decay = 0.9
  nesterov: bool = False
  momentum_dtype: MomentType = 'float32'

  def transformations(self, config: ConfigDict) -> list[Transformation]:
    """Returns the decay and momentum."""
    trace = optax.trace(self.momentum, self.nesterov, self.momentum_dtype)
    return [decayed(config), trace]


def method(config: ConfigDict) -> Method:
  """Returns what `config.optim.name` names; `config` is `config.optim`."""
  optimizer: Method = registry.build_or_find(
    config.name,
    'optim.name',
    OPTIMIZERS,
    lambda: registry.wing('vit_jax.optim.named:NamedOptimizer')(config),
    'optax:adan(b1=0.98)',
  )
  return optimizer


def check(config: ConfigDict) -> None:
  """Checks the optimizer's values in `config.optim`."""
  method(config.optim).check()
  _clip(config.optim)
  for key in ('clip_norm', 'weight_decay', 'final_weight_decay'):
    config_lib.within(config, f'optim.{key}', '[0, inf)')
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
    has_rate: As `Method.has_rate`.
  """

  init: Callable[..., Any]
  update: Callable[..., tuple[Any, Any]]
  has_rate: bool


def make_optimizer(config: ConfigDict) -> Optimizer:
  """Returns the optimizer of `config.optim`, which is checked."""
  chosen = method(config)
  clips = _clip(config)
  if config.clip_norm:
    clips.append(optax.clip_by_global_norm(config.clip_norm))
  chain = optax.chain(*clips, *chosen.transformations(config))
  return Optimizer(chain.init, chain.update, chosen.has_rate)


def _clip(config: ConfigDict) -> list[Transformation]:
  if not config.clip:
    return []
  clip = registry.build(config.clip, 'optim.clip', CLIPS)
  return [clip.transformation()]


def decayed(config: ConfigDict, factor: float = 1.0) -> Transformation:
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
