"""One training step: the function that is compiled for the devices."""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import flax
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import ml_collections
import optax

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax import optim
from vit_jax.data.device import views
from vit_jax.data.device.rng import Rng
from vit_jax.objectives import base
from vit_jax.objectives import contract
from vit_jax.optim import rules as rules_lib
from vit_jax.optim import sam
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.train import microbatches

# Signal value: this process could not make its part of the batch. Lower values
# are the operating system's signal numbers, and 0 is no signal.
BROKEN = 1000

Schedule = Callable[[jax.typing.ArrayLike], jax.typing.ArrayLike]


@flax.struct.dataclass
class TrainState:
  """Everything that training changes; random keys derive from `step`.

  Attributes:
    step: int32 scalar, completed updates.
    params: Parameters of the model.
    opt_state: State of the optimizer, for the parameters that train.
    ema_params: Moving average of params, with None for frozen ones; None: no
      average is kept.
    extra: The objective's own state: see `objectives.Objective.init_extra`.
  """

  step: jax.Array
  params: Any
  opt_state: Any
  ema_params: Any
  extra: Any

  @property
  def eval_params(self) -> Any:
    """The parameters to evaluate: their moving average if there is one."""
    if self.ema_params is None:
      return self.extra.get(base.AVERAGE, self.params)
    return rules_lib.merge(self.ema_params, self.params)


def seed_keys(seed: int) -> tuple[jax.Array, jax.Array]:
  """Returns the random keys of the initial parameters and of the steps."""
  init_key, step_key = jax.random.split(
    jax.random.key(seed, impl='threefry2x32')
  )
  return init_key, step_key


def step_key(seed: int, step: jax.typing.ArrayLike) -> jax.Array:
  """Returns the key of all random numbers of a step.

  Args:
    seed: Seed of the run.
    step: Number of completed updates.
  """
  return jax.random.fold_in(seed_keys(seed)[1], step)


def init_params(
  config: ml_collections.ConfigDict,
  objective: objectives.Objective,
  params: Any = None,
) -> objectives.Params:
  """Returns the parameters before the first step.

  Args:
    config: The config, with its seed.
    objective: The objective.
    params: Those of its parameters that do not start at random, in their places
      in its tree; None: all start at random.
  """
  key, _ = seed_keys(config.seed)
  fresh = objective.init(key)
  if params is None:
    return fresh
  leaves, tree = jax.tree_util.tree_flatten_with_path(fresh)
  given = dict(jax.tree_util.tree_leaves_with_path(params))
  made = [given.pop(path, x) for path, x in leaves]
  assert not given, f'these are no parameters of the objective: {[*given]}'
  return jax.tree.unflatten(tree, made)


def init_state(
  config: ml_collections.ConfigDict,
  optimizer: optim.Optimizer,
  rules: rules_lib.Rules,
  params: objectives.Params,
  extra: objectives.Extra,
) -> TrainState:
  """Returns the state before the first step."""
  trained = rules.trained(params)
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    opt_state=optimizer.init(trained),
    # A copy: two donated arguments must not share a buffer.
    ema_params=jax.tree.map(jnp.copy, trained)
    if config.train.ema_decay
    else None,
    extra=extra,
  )


class Update(NamedTuple):
  """The results of a step, before the check that they are finite.

  Attributes:
    loss: Mean over the batch.
    means: Means of the objective's other scalars.
    grads: Gradients of the parameters that train.
    learning_rate: Learning rate.
    params: The parameters that train, after the step.
    frozen: All parameters after the step; only what the step measured differs
      from those before it.
    opt_state: State of the optimizer, after the step.
    extra: Extra of the objective, after the step.
    stored: `params` and `extra`, computed once more, for the state.
  """

  loss: jax.Array
  means: objectives.Scalars
  grads: Any
  learning_rate: jax.typing.ArrayLike
  params: Any
  frozen: Any
  opt_state: Any
  extra: Any
  stored: tuple[Any, Any]


class Gradient(NamedTuple):
  """What a step measures on its batch, before the optimizer.

  Attributes:
    loss: Mean over the batch.
    means: Means of the objective's other scalars.
    grads: Gradients of the parameters that train.
    extra: Extra of the objective, as its loss returns it.
  """

  loss: jax.Array
  means: objectives.Scalars
  grads: Any
  extra: Any


def make_gradient(
  config: ml_collections.ConfigDict,
  objective: objectives.Objective,
  augment: views.TrainTransform,
  rules: rules_lib.Rules,
  schedule: Schedule,
  mesh: Mesh,
  param_shardings: Mapping[str, sharding.ParamSharding],
) -> Callable[[TrainState, objectives.Batch, Any], Gradient]:
  """Returns `(state, batch, step) -> Gradient`.

  The loss is not differentiated with respect to frozen parameters, so the
  backward pass stops at the lowest trainable layer.
  """
  in_place = sharding.constrain(mesh, param_shardings)
  parts = config_lib.num_microbatches(config)
  part_size = config.train.batch_size // parts
  objective_loss = mesh_lib.keep_batch_split(
    objective.training_loss, mesh, part_size
  )

  def gradient(
    state: TrainState, batch: objectives.Batch, step: jax.Array
  ) -> Gradient:
    def loss_fn(trained: Any, batch: objectives.Batch, rng: Rng) -> Any:
      params = rules_lib.merge(trained, state.params)
      batch = augment(batch, rng.fold(objectives.Purpose.AUGMENTATION))
      loss, means, extra = objective_loss(params, state.extra, batch, rng)
      return loss, (means, extra)

    def grad_fn(*args: Any) -> Any:
      result, grads = jax.value_and_grad(loss_fn, has_aux=True)(*args)
      return result, in_place(grads)

    if config.optim.sam.rho:
      rho = sam.rho(config.optim, schedule(step))
      grad_fn = sam.value_and_grad(grad_fn, rho, config.optim.sam.alpha)
    (loss, (means, extra)), grads = microbatches.mean(
      functools.partial(grad_fn, rules.trained(state.params)),
      batch,
      step_key(config.seed, step),
      1 if objective.caches_gradients else parts,
    )
    return Gradient(loss, means, grads, extra)

  return gradient


def make_update(
  gradient: Callable[..., Gradient],
  after_update: Callable[[Any, Any, jax.Array, Any], Any],
  rules: rules_lib.Rules,
  schedule: Schedule,
  decay: Schedule,
  optimizer: optim.Optimizer,
  moves_statistics: bool = False,
) -> Callable[..., Update]:
  """Returns `(state, batch, step) -> Update`.

  Clipping and optimizer see only the trainable parameters.

  Args:
    gradient: From `make_gradient`, or of several tasks.
    after_update: As `contract.after_update`, of an objective or of several.
    rules: Which parameters train, and how.
    schedule: The learning rate of a step.
    decay: The factor of the weight decay of a step.
    optimizer: The optimizer.
    moves_statistics: As the attribute of the objective.
  """

  def update(
    state: TrainState, batch: objectives.Batch, step: jax.Array
  ) -> Update:
    trained = rules.trained(state.params)
    loss, means, grads, extra = gradient(state, batch, step)
    learning_rate = schedule(step)
    direction, opt_state = optimizer.update(
      grads,
      state.opt_state,
      trained,
      decay=decay(step),
      learning_rate=learning_rate,
    )
    direction = rules.scale(direction, step)

    def moved(rate: jax.typing.ArrayLike) -> tuple[Any, Any]:
      params = jax.tree.map(lambda p, d: p - rate * d, trained, direction)
      merged = rules_lib.merge(params, state.params)
      return params, after_update(extra, merged, step, state.extra)

    rate = 1.0 if optimizer.has_rate else learning_rate
    params, after = moved(rate)
    stored = moved(_disguised(rate))
    frozen = state.params
    if moves_statistics:
      frozen = base.updated(frozen, after.get(base.STATISTICS, {}))
    return Update(
      loss=loss,
      means=means,
      grads=grads,
      learning_rate=learning_rate,
      params=params,
      frozen=frozen,
      opt_state=opt_state,
      extra=after,
      stored=stored,
    )

  return update


def _disguised(rate: jax.typing.ArrayLike) -> jax.Array:
  """Returns a number that TPUs' compiler cannot know to be `rate`.

  All new parameters are checked before one of them is stored. The compiler
  would write them to memory for the check, and read them again. From another
  number it computes them once more as it stores them, in one pass with the
  optimizer's state. CPUs' compiler does better with one number.
  """
  return jax.lax.platform_dependent(
    jnp.asarray(rate),
    tpu=jax.lax.optimization_barrier,
    default=lambda same: same,
  )


def make_train_step(
  config: ml_collections.ConfigDict,
  rules: rules_lib.Rules,
  update: Callable[..., Update],
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
  """Returns the function of one training step, to be jitted.

  It maps (state, batch, step, signals) to (state, metrics). The batch is a dict
  of global arrays [B, ...]; `step` is the host's count of completed updates.

  If the loss, the gradient or the new parameters are not finite, the state does
  not change. It also does not change in the following steps, since their `step`
  is ahead of the state's. So the host may read the metrics late. With
  `train.skip_nonfinite` the state still counts the step, and training goes on.

  `signals`, int32 [devices], carries a signal from each process to the others
  (see `mesh_lib.on_each_device`). Its maximum is a metric, so all processes
  learn of a signal at the same step. From BROKEN on it means that a process has
  no batch: the state then does not change, and the step is not counted.

  Metrics are scalars: loss, learning_rate, ok (whether the update was made),
  grad_norm (before clipping), param_norm (after the update), and those of the
  objective; and signal, if there are `signals`.
  """

  def train_step(
    state: TrainState,
    batch: objectives.Batch,
    step: jax.Array,
    signals: jax.Array | None = None,
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    new, frozen = update(state, batch, step), state.params
    metrics = {
      'loss': new.loss,
      'grad_norm': optax.global_norm(new.grads),
      'param_norm': optax.global_norm(rules_lib.merge(new.params, frozen)),
    }
    has_batch = jnp.bool_(True)
    if signals is not None:
      metrics |= {'signal': signals.max()}
      has_batch = signals.max() < BROKEN
    norms = metrics['grad_norm'] + metrics['param_norm']
    finite = jnp.isfinite(new.loss + norms) & _is_finite(new.extra)
    ok = finite & has_batch & (state.step == step)
    state = _chosen(config, rules, state, new, step, ok)
    if config.train.skip_nonfinite:
      after = jnp.where(has_batch, step + 1, state.step)
      state = dataclasses.replace(state, step=after)
    metrics |= {'learning_rate': new.learning_rate, 'ok': ok}
    assert metrics.keys() <= {
      *contract.STEP_METRICS
    }  # an objective has no such
    return state, metrics | new.means

  return train_step


def _chosen(
  config: ml_collections.ConfigDict,
  rules: rules_lib.Rules,
  state: TrainState,
  new: Update,
  step: jax.Array,
  ok: jax.Array,
) -> TrainState:
  """Returns the updated state if the update is `ok`, else the old state."""
  params, extra = new.stored
  ema_params = state.ema_params
  if config.train.ema_decay:
    ema_params = optax.incremental_update(
      params, ema_params, 1 - ema_decay(config, step)
    )
  chosen = jax.tree.map(
    lambda new, old: jnp.where(ok, new, old),
    TrainState(step + 1, params, new.opt_state, ema_params, extra),
    dataclasses.replace(state, params=rules.trained(state.params)),
  )
  frozen = jax.tree.map(
    lambda new, old: old if new is old else jnp.where(ok, new, old),
    new.frozen,
    state.params,
  )
  merged = rules_lib.merge(chosen.params, frozen)
  return dataclasses.replace(chosen, params=merged)


def make_train_steps(
  train_step: Callable[..., tuple[TrainState, dict[str, jax.Array]]],
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
  """Returns the function of several training steps, to be jitted.

  Args:
    train_step: From `make_train_step`.

  Returns:
    A function like `train_step` for batches [steps, B, ...], the first at
    `step`; its metrics are arrays [steps].
  """

  def train_steps(
    state: TrainState,
    batches: objectives.Batch,
    step: jax.Array,
    signals: jax.Array | None = None,
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    count = len(batches['index'])

    def one(
      state: TrainState, inputs: tuple[objectives.Batch, jax.Array]
    ) -> tuple[TrainState, dict[str, jax.Array]]:
      batch, step = inputs
      return train_step(state, batch, step, signals)

    steps = step + jnp.arange(count, dtype=jnp.int32)
    return jax.lax.scan(one, state, (batches, steps))

  return train_steps


def ema_decay(
  config: ml_collections.ConfigDict, step: jax.Array
) -> jax.typing.ArrayLike:
  """Returns the decay of the parameters' moving average.

  With warm-up the decay grows as in TensorFlow's `ExponentialMovingAverage`, so
  that the random initial parameters soon have no weight in the average.

  Args:
    config: The full config.
    step: Number of completed updates before this one.
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
