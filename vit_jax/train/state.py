"""The train state, and its values before the first step."""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import flax
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import objectives
from vit_jax import optim
from vit_jax.objectives import base
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import sharding


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
  """Returns the key of all random numbers of the step after `step` updates."""
  return jax.random.fold_in(seed_keys(seed)[1], step)


class Init:
  """Makes the state before the first step.

  NumPy arrays in the objective's extra, such as a teacher's parameters, are
  copied to the devices directly. Otherwise they would be constants of the
  compiled program.

  Attributes:
    shardings: Where each array of the state is on the mesh.
    abstract: Their shapes, types and shardings.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    objective: objectives.Objective,
    rules: rules_lib.Rules,
    mesh: jax.sharding.Mesh,
    param_shardings: Mapping[str, sharding.ParamSharding],
    options: dict[str, Any],
  ):
    """Evaluates the shapes of the state; `options` are the compiler's."""
    self._config, self._objective, self._rules = config, objective, rules
    self._optimizer = optim.make_optimizer(config.optim)
    self._options = options
    self._on_host: list[np.ndarray | None] = []
    state = jax.eval_shape(self._make, None)
    self.shardings = sharding.tree_shardings(mesh, param_shardings, state)
    self.abstract = jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      state,
      self.shardings,
    )

  def _make(self, starts: Any) -> TrainState:
    """Returns the state; `starts` are parameters that are not random, or None.

    They are in their places in the objective's tree.
    """
    key, _ = seed_keys(self._config.seed)
    params = self._objective.init(key)
    if starts is not None:
      leaves, tree = jax.tree_util.tree_flatten_with_path(params)
      by_path = dict(jax.tree_util.tree_leaves_with_path(starts))
      params = jax.tree.unflatten(
        tree, [by_path.pop(path, x) for path, x in leaves]
      )
      assert not by_path, f'these are no parameters: {[*by_path]}'
    extra, tree = jax.tree.flatten(self._objective.init_extra(params))
    self._on_host = [x if isinstance(x, np.ndarray) else None for x in extra]
    trained = self._rules.trained(params)
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=self._optimizer.init(trained),
      # A copy: two donated arguments must not share a buffer.
      ema_params=jax.tree.map(jnp.copy, trained)
      if self._config.train.ema_decay
      else None,
      extra=jax.tree.unflatten(tree, extra),
    )

  @functools.cached_property
  def _computed(self) -> Any:
    """Jits `make`, whose state has only the computed leaves of the extra."""

    def make(params: Any) -> TrainState:
      state = self._make(params)
      extra = jax.tree.leaves(state.extra)
      return dataclasses.replace(state, extra=self._only_computed(extra))

    shardings = self._only_computed(jax.tree.leaves(self.shardings.extra))
    return jax.jit(
      make,
      out_shardings=dataclasses.replace(self.shardings, extra=shardings),
      compiler_options=self._options,
    )

  def _only_computed(self, leaves: list[Any]) -> list[Any]:
    pairs = zip(leaves, self._on_host, strict=True)
    return [x for x, on_host in pairs if on_host is None]

  def run(self, params: Any) -> TrainState:
    """Returns the state; `params` None: with random parameters."""
    state = self._computed(params)
    computed = iter(state.extra)
    shardings, tree = jax.tree.flatten(self.shardings.extra)
    extra = [
      next(computed) if x is None else jax.device_put(x, s)
      for s, x in zip(shardings, self._on_host, strict=True)
    ]
    return dataclasses.replace(state, extra=jax.tree.unflatten(tree, extra))
