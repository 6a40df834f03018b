"""One training step: the function that is compiled for the devices.

`train_step` is read from top to bottom. The loss is the objective's, the update
that of `optim`; `program` compiles the step for a mesh.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import ml_collections
import optax

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax import optim
from vit_jax.data.device import views as views_lib
from vit_jax.data.device.rng import Rng
from vit_jax.objectives import base
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.train.state import step_key
from vit_jax.train.state import TrainState

# Signal value: this process could not make its part of the batch. Lower values
# are the operating system's signal numbers, and 0 is no signal.
BROKEN = 1000

Schedule = Callable[[jax.typing.ArrayLike], jax.typing.ArrayLike]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Setup:
  """What the steps of a run have in common.

  Attributes:
    config: The full config.
    objective: What is learned.
    augment: Maps a batch of the host to the views that the loss sees.
    rules: Which parameters train, and how.
    schedule: The learning rate of a step.
    decay: The factor of the weight decay of a step.
    optimizer: The optimizer.
    mesh: Mesh of devices.
    param_shardings: Where each parameter is, by `sharding.shard_params`.
  """

  config: ml_collections.ConfigDict
  objective: objectives.Objective
  augment: views_lib.TrainTransform
  rules: rules_lib.Rules
  schedule: Schedule
  decay: Schedule
  optimizer: optim.Optimizer
  mesh: Mesh
  param_shardings: Mapping[str, sharding.ParamSharding]

  def loss(
    self,
    params: objectives.Params,
    extra: objectives.Extra,
    batch: objectives.Batch,
    rng: Rng,
  ) -> tuple[jax.Array, objectives.Scalars, objectives.Extra]:
    """Returns the loss of a microbatch of the host, other means, and the extra.

    The batch becomes the views that the objective sees.
    """
    size = self.config.train.batch_size // config_lib.num_microbatches(
      self.config
    )
    loss = mesh_lib.keep_batch_split(self.objective.loss, self.mesh, size)
    batch = self.views(batch, rng)
    return loss(params, extra, batch, rng)

  def views(self, batch: objectives.Batch, rng: Rng) -> objectives.Batch:
    """Returns the views of a microbatch of the host, and its targets."""
    return self.augment(batch, rng.fold(objectives.Purpose.AUGMENTATION))


class Update(NamedTuple):
  """What a step computes, whether it is finite or not.

  Attributes:
    grads: Gradients of the parameters that train.
    opt_state: State of the optimizer, after the step.
    params: The parameters that train, after the step.
  """

  grads: Any
  opt_state: Any
  params: Any


def train_step(
  setup: Setup,
  state: TrainState,
  batch: objectives.Batch,
  step: jax.Array,
  signals: jax.Array | None = None,
) -> tuple[TrainState, Metrics, Update]:
  """Makes one training step.

  If the loss, the gradient, the new parameters or the objective's extra are not
  finite, the state does not change. It also does not change in the following
  steps, since their `step` is ahead of the state's. So the host may read the
  metrics late. With `train.skip_nonfinite` the state still counts the step, and
  training goes on.

  Args:
    setup: What the steps of the run have in common.
    state: The state before the step.
    batch: Global arrays [B, ...].
    step: The host's count of completed updates.
    signals: int32 [devices], a signal from each process to the others (see
      `mesh_lib.on_each_device`). Their maximum is a metric, so that all
      processes learn of a signal at the same step. From BROKEN on it means that
      a process has no batch: the state then does not change, and the step is
      not counted.

  Returns:
    The state after the step; scalars: loss, learning_rate, ok (whether the
    update was made), grad_norm (before clipping), param_norm (after the
    update), the objective's metrics, and signal if there are `signals`; and
    what the step computed.
  """
  config, objective, rules = setup.config, setup.objective, setup.rules
  trained = rules.trained(state.params)

  # Views, loss and gradient, one microbatch after the other. Frozen parameters
  # are no argument of the loss, so that the backward pass stops at the lowest
  # layer that trains.
  as_sharded = sharding.constrain(setup.mesh, setup.param_shardings)

  def loss_fn(trained: Any, batch: objectives.Batch, rng: Rng) -> Any:
    params = rules_lib.merge(trained, state.params)
    loss, means, extra = setup.loss(params, state.extra, batch, rng)
    return loss, (means, extra)

  def loss_and_grads(*args: Any) -> Any:
    values, grads = jax.value_and_grad(loss_fn, has_aux=True)(*args)
    return values, as_sharded(grads)

  if sam := config_lib.sam(config):
    loss_and_grads = sam.value_and_grad(
      loss_and_grads, config.optim, setup.schedule(step)
    )
  count = config_lib.num_microbatches(config)
  (loss, (means, extra)), grads = microbatch_mean(
    functools.partial(loss_and_grads, trained),
    batch,
    step_key(config.seed, step),
    1 if objective.caches_gradients else count,
  )

  # Clipping and optimizer, which see only the parameters that train.
  learning_rate = setup.schedule(step)
  direction, opt_state = setup.optimizer.update(
    grads,
    state.opt_state,
    trained,
    decay=setup.decay(step),
    learning_rate=learning_rate,
  )
  direction = rules.scale(direction, step)

  def moved(rate: jax.typing.ArrayLike) -> tuple[Any, Any]:
    params = jax.tree.map(lambda p, d: p - rate * d, trained, direction)
    merged = rules_lib.merge(params, state.params)
    return params, objective.after_update(extra, merged, step)

  rate = 1.0 if setup.optimizer.has_rate else learning_rate
  # Equal, and apart only for TPUs: one is checked, the other is stored.
  checked_params, checked_extra = moved(rate)
  stored_params, stored_extra = checked_params, checked_extra
  if setup.mesh.devices.flat[0].platform == 'tpu':
    # All new parameters are checked before one of them is stored. TPUs'
    # compiler would write them to memory for the check, and read them again.
    # From a number that it cannot know to be the same, it computes them once
    # more as it stores them, in one pass with the optimizer's state.
    hidden_rate = jax.lax.optimization_barrier(jnp.asarray(rate))
    stored_params, stored_extra = moved(hidden_rate)

  # The check that all is finite, that each process has its part of the batch,
  # and that no step before this one failed.
  grad_norm = optax.global_norm(grads)
  param_norm = optax.global_norm(rules_lib.merge(checked_params, state.params))
  has_batch = jnp.bool_(True) if signals is None else signals.max() < BROKEN
  finite = jnp.isfinite(loss + (grad_norm + param_norm))
  finite &= _is_finite(checked_extra)
  ok = finite & has_batch & (state.step == step)

  # The new state, or the old one.
  ema_params = state.ema_params
  if config.train.ema_decay:
    ema_params = optax.incremental_update(
      stored_params, ema_params, 1 - ema_decay(config, step)
    )
  new_state = jax.tree.map(
    lambda new, old: jnp.where(ok, new, old),
    TrainState(step + 1, stored_params, opt_state, ema_params, stored_extra),
    dataclasses.replace(state, params=trained),
  )
  old_params = state.params  # those that do not train stay in the new state
  if objective.moves_statistics:
    statistics = checked_extra.get(base.STATISTICS, {})
    # Only statistics differ: all others are the same objects.
    old_params = jax.tree.map(
      lambda new, old: old if new is old else jnp.where(ok, new, old),
      base.updated(old_params, statistics),
      old_params,
    )
  merged = rules_lib.merge(new_state.params, old_params)
  new_state = dataclasses.replace(new_state, params=merged)
  if config.train.skip_nonfinite:
    after = jnp.where(has_batch, step + 1, state.step)
    extra = objective.after_step(new_state.extra, ok, has_batch)
    new_state = dataclasses.replace(new_state, step=after, extra=extra)

  # The metrics, whose names no mean of an objective has: see
  # `objectives.extensions.contract`, which has all of them.
  metrics = {
    'loss': loss,
    'grad_norm': grad_norm,
    'param_norm': param_norm,
    'learning_rate': learning_rate,
    'ok': ok,
  }
  if signals is not None:
    metrics['signal'] = signals.max()
  update = Update(grads, opt_state, checked_params)
  return new_state, metrics | means, update


def train_steps(
  setup: Setup,
  state: TrainState,
  batches: objectives.Batch,
  step: jax.Array,
  signals: jax.Array | None = None,
) -> tuple[TrainState, Metrics]:
  """Makes several training steps, with the same `signals`.

  Batches are global arrays [steps, B, ...], and metrics [steps].
  """

  def one_step(
    state: TrainState, inputs: tuple[objectives.Batch, jax.Array]
  ) -> tuple[TrainState, Metrics]:
    return train_step(setup, state, *inputs, signals)[:2]

  steps = step + jnp.arange(len(batches['index']), dtype=jnp.int32)
  return jax.lax.scan(one_step, state, (batches, steps))


def microbatch_mean(
  compute: Callable[[objectives.Batch, Rng], Any],
  batch: objectives.Batch,
  key: jax.Array,
  count: int,
) -> Any:
  """Returns the mean of `compute` over `count` microbatches, one by one.

  It maps (microbatch, rng) to a tree of arrays. Integers in it must be equal
  for all microbatches, and are kept. The batch has global arrays [B, ...].
  """
  rows = jnp.arange(len(batch['index']), dtype=jnp.int32)
  if count == 1:
    return compute(batch, Rng(key, rows))
  stacked = mesh_lib.split_rows((batch, rows), count)

  def compute_one(microbatch: tuple[objectives.Batch, jax.Array]) -> Any:
    return compute(microbatch[0], Rng(key, microbatch[1]))

  first = jax.tree.map(lambda x: x[0], stacked)
  zeros = optax.tree.zeros_like(jax.eval_shape(compute_one, first))
  total, _ = jax.lax.scan(
    lambda total, x: (optax.tree.add(total, compute_one(x)), None),
    zeros,
    stacked,
  )
  return jax.tree.map(
    lambda x: (
      x * (1 / count) if jnp.issubdtype(x.dtype, jnp.inexact) else x // count
    ),
    total,
  )


def ema_decay(
  config: ml_collections.ConfigDict, step: jax.Array
) -> jax.typing.ArrayLike:
  """Returns the decay of the parameters' moving average, after `step` updates.

  With warm-up the decay grows as in TensorFlow's `ExponentialMovingAverage`, so
  that the random initial parameters soon have no weight in the average.
  """
  decay = config.train.ema_decay
  if not config.train.ema_warmup:
    return decay
  return jnp.minimum(decay, (1 + step) / (10 + step))


def _is_finite(tree: Any) -> jax.Array:
  """Whether all floating-point numbers of a tree are finite."""
  arrays = [
    jnp.isfinite(x).all()
    for x in jax.tree.leaves(tree)
    if jnp.issubdtype(x.dtype, jnp.inexact)
  ]
  return jnp.stack(arrays).all() if arrays else jnp.bool_(True)
