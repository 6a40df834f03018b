"""The compiled functions of a config on a mesh, without any data."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import concurrent.futures
import copy
import dataclasses
import functools
import re
from typing import Any

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import objectives
from vit_jax import optim
from vit_jax.data import features as features_lib
from vit_jax.data.device import views
from vit_jax.data.host import batches
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib
from vit_jax.evaluation import base as evaluation_base
from vit_jax.models import stack
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import processes
from vit_jax.parallel import sharding
from vit_jax.train import cost
from vit_jax.train import step as train_step_lib

TrainState = train_step_lib.TrainState
# For programs that run once: LLVM takes half the time, and they run as fast.
_QUICK = {'xla_backend_optimization_level': 1}
# On CPUs each device would run independent collectives concurrently, in any
# order, on threads that all devices share. With too few threads that is a
# deadlock.
_IN_ORDER = {'xla_cpu_enable_concurrency_optimized_scheduler': False}


class Program:
  """The functions of a config on a mesh, compiled when they are first used.

  Attributes:
    config: The config, with all values set that shapes depend on.
    features: Features of the examples, by name.
    lengths: Steps of the run and of parts of its schedule.
    objective: The objective.
    mesh: Mesh of devices.
    rules: Rules that say which parameters train, and how.
    param_shardings: Where each parameter is on the mesh.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    features: features_lib.Features,
    lengths: optim.Lengths,
    devices: Sequence[jax.Device] | None = None,
  ):
    """Makes the model and its rules.

    Args:
      config: The config, with all values set; is not changed.
      features: Features of the examples, by name; if all images have one size,
        they are cropped on the device.
      lengths: Steps of the run and of parts of its schedule.
      devices: Devices to compile for; None: those of JAX.

    Raises:
      UserError: A pattern or a rule does not fit the parameters.
    """
    self.config, self.features, self.lengths = config, features, lengths
    self.mesh = mesh_lib.make_mesh(config.mesh, devices)
    config = models.on_platform(config, self.mesh.devices.flat[0].platform)
    self.objective = objectives.create(config, features, lengths)
    params = jax.eval_shape(self.objective.init, jax.random.key(0))
    self.rules = rules_lib.make(config.optim, params, self.objective.frozen)
    self.param_shardings = sharding.shard_params(
      config.mesh, self.mesh.shape, params
    )
    self._eval_steps: dict[evaluation_base.Function, Any] = {}
    self._is_cpu = self.mesh.devices.flat[0].platform == 'cpu'
    self._options: dict[str, Any] = {}
    if self._is_cpu and self.mesh.size > 1:
      self._options = dict(_IN_ORDER)

  @property
  def _replicated(self) -> jax.sharding.NamedSharding:
    return mesh_lib.replicated(self.mesh)

  def with_config(self, config: ml_collections.ConfigDict) -> 'Program':
    """Returns this program with a config that gives the same shapes."""
    other = copy.copy(self)
    other.config = config
    return other

  @functools.cached_property
  def update(self) -> Callable[..., train_step_lib.Update]:
    """(state, batch, step) -> the step's `Update`; not compiled."""
    config, objective = self.config, self.objective
    return train_step_lib.make_update(
      config,
      objective,
      views.train_transform(config, self.features, objective.views),
      self.rules,
      optim.make_schedule(config.optim, self.lengths),
      optim.make_decay(config.optim, self.lengths),
      self._optimizer,
      self.mesh,
      self.param_shardings,
    )

  @functools.cached_property
  def train_step(self) -> Any:
    """(state, batch, step, signals=None) -> (state, metrics); donates state."""
    return self._compiled_step(self._one_step)

  @functools.cached_property
  def train_steps(self) -> Any:
    """`train_step` for several steps in one call.

    Batches and metrics have a leading dimension of steps.
    """
    return self._compiled_step(train_step_lib.make_train_steps(self._one_step))

  def eval_step(self, function: evaluation_base.Function) -> Any:
    """Returns an evaluator's function, compiled when it is first called.

    Args:
      function: (objective, params, batch) -> tree; see `Context.apply`.

    Returns:
      (params, batch, signals=None) -> (tree, the largest signal), replicated on
      every device; the signal is 0 without `signals`.
    """
    if function not in self._eval_steps:
      self._eval_steps[function] = self._compiled_eval(
        lambda params, batch: function(
          self.objective, params, self._prepare(batch)
        )
      )
    return self._eval_steps[function]

  @functools.cached_property
  def flops(self) -> cost.StepFlops:
    """Operations of the matrix products in one step, on all devices."""
    return cost.step_flops(
      self.config, self.features, self.abstract_state().params
    )

  def initialise(self, params: Any = None) -> TrainState:
    """Returns the state before the first step, on the mesh.

    Args:
      params: Initial parameters; None: random ones.
    """
    return self._init.run(params)

  @functools.cached_property
  def _init(self) -> '_Init':
    return _Init(self)

  @functools.cached_property
  def _optimizer(self) -> optax.GradientTransformationExtraArgs:
    return optim.make_optimizer(self.config.optim)

  @functools.cached_property
  def _one_step(self) -> Callable[..., Any]:
    return train_step_lib.make_train_step(self.config, self.rules, self.update)

  def _prepare(self, batch: objectives.Batch) -> objectives.Batch:
    """Returns a batch with its images and maps prepared for evaluation."""
    return views.eval_batch(self.config, self.features)(batch)

  def _compiled_step(self, step: Callable[..., Any]) -> Any:
    return jax.jit(
      step,
      donate_argnums=0,
      out_shardings=(self._init.shardings, self._replicated),
      compiler_options=self._options,
    )

  def _compiled_eval(self, fn: Callable[..., Any]) -> Any:
    """Compiles (params, batch) -> tree, and adds the largest signal."""

    def step(
      params: Any, batch: objectives.Batch, signals: jax.Array | None = None
    ) -> Any:
      compute = mesh_lib.keep_batch_split(fn, self.mesh, len(batch['index']))
      signal = jnp.int32(0) if signals is None else signals.max()
      return compute(params, batch), signal

    return jax.jit(
      step, out_shardings=self._replicated, compiler_options=self._options
    )

  def abstract_state(self) -> TrainState:
    """Returns the state's shapes, types and shardings."""
    return self._init.abstract

  def state_to_read(self, names: Collection[str]) -> TrainState:
    """Returns the shapes, types and shardings to read a checkpoint into.

    They are those of the state, with layers scanned or unrolled as they were
    when it was saved.

    Args:
      names: Paths of the arrays that were saved.
    """
    fits = all(f'params/{name}' in names for name in self.param_shardings)
    if fits or not any(
      re.search(r'\bblocks', name) for name in self.param_shardings
    ):
      return self.abstract_state()
    config = self.config.copy_and_resolve_references()
    config.model.scan = not config.model.scan
    return Program(config, self.features, self.lengths).abstract_state()

  def adopt(self, state: TrainState) -> TrainState:
    """Returns a restored state with layers scanned or unrolled as here."""
    own = self.abstract_state()
    if set(sharding.paths(state.params)) == set(sharding.paths(own.params)):
      return state
    shardings = jax.tree.map(lambda x: x.sharding, own)
    relayout = functools.partial(stack.relayout, target=own)
    return jax.jit(relayout, out_shardings=shardings)(state)

  def abstract_batch(
    self, batch_size: int | None = None
  ) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes, types and shardings of a global batch.

    Args:
      batch_size: Examples in a batch for evaluation; None: one for training.
    """
    is_training = batch_size is None
    b = batch_size or self.config.train.batch_size
    where = mesh_lib.batch_sharding(self.mesh)
    dtype = levels_lib.from_config(self.config).dtype
    image = self.features['image']
    assert isinstance(image, features_lib.Image)
    views = (
      self.objective.views if is_training else geometry.eval_views(self.config)
    )
    shapes: dict[str, Any] = {
      name: ((b, *shape), dtype)
      for name, shape in batches.image_shapes(
        image.size, views, self.config.data.channels
      ).items()
    }
    maps = batches.map_sizes(image.size, views, self.features)
    shapes |= {
      name: ((b, *maps[name]), x.dtype)
      for name, x in features_lib.maps(self.features).items()
      if name in maps
    }
    shapes |= {
      name: ((b, *x.shape), x.dtype)
      for name, x in features_lib.targets(self.features).items()
    }
    shapes |= {'valid': ((b,), jnp.bool_), 'index': ((b,), jnp.int32)}
    return {
      name: jax.ShapeDtypeStruct(shape, dtype, sharding=where)
      for name, (shape, dtype) in shapes.items()
    }

  def compile(self, count: int = 1) -> jax.stages.Compiled:
    """Compiles `train_step` or `train_steps`; its first call then reuses that.

    Args:
      count: Steps in the call.
    """
    signals = mesh_lib.on_each_device(0, self.mesh)
    state, batch = self.abstract_state(), self.abstract_batch()
    if count == 1:
      lowered = self.train_step.lower(state, batch, np.int32(0), signals)
      return lowered.compile()
    where = mesh_lib.batch_sharding(self.mesh, stacked=True)
    batches = {
      name: jax.ShapeDtypeStruct((count, *x.shape), x.dtype, sharding=where)
      for name, x in batch.items()
    }
    return self.train_steps.lower(
      state, batches, np.int32(0), signals
    ).compile()

  def compile_ahead(self) -> concurrent.futures.Future[jax.stages.Compiled]:
    """Begins to compile `train_step` in a thread.

    A call of `train_step` waits for the result and uses it.
    """
    _ = self.train_step  # cached here, so that two threads do not make two
    thread = concurrent.futures.ThreadPoolExecutor(
      1, initializer=processes.block_signals
    )
    compiling = thread.submit(self.compile)
    thread.shutdown(wait=False)
    return compiling

  def check_evaluation(self) -> None:
    """Traces the evaluation of a user's objective, to find mistakes early.

    Raises:
      UserError: `measure` returns something else than metrics.
    """
    if type(self.objective).__module__.startswith('vit_jax.'):
      return
    batch_size = self.config.train.batch_size
    params, batch = (
      self.abstract_state().params,
      self.abstract_batch(batch_size),
    )
    batch = jax.eval_shape(self._prepare, batch)
    outputs = jax.eval_shape(self.objective.outputs, params, batch)
    measured = jax.eval_shape(self.objective.measure, outputs, batch)
    if not isinstance(measured, clu_metrics.Collection):
      raise config_lib.UserError(
        f'{type(self.objective).__name__}.measure returns a'
        f' {type(measured).__name__}: it must return a'
        ' clu.metrics.Collection, as vit_jax.evaluation.metrics has them'
      )

  def memory(self, temporary_bytes: int) -> dict[str, float]:
    """Returns the memory of a step, in GiB per device; evaluates only shapes.

    Args:
      temporary_bytes: Temporary memory per device, as the compiler plans it.

    Returns:
      parameters, gradients (of trainable parameters), optimizer, average (of
      the parameters), extra (of the objective, if it has any), activations (and
      other temporary values), and their sum, total.
    """
    state = self.abstract_state()
    gib = {
      name: sharding.bytes_per_device(tree) / 2**30
      for name, tree in {
        'parameters': state.params,
        'gradients': self.rules.trained(state.params),
        'optimizer': state.opt_state,
        'average': state.ema_params,
      }.items()
    }
    temporary = temporary_bytes / 2**30
    if jax.tree.leaves(state.extra):
      gib['extra'] = sharding.bytes_per_device(state.extra) / 2**30
    plan = gib | {
      # The compiler may avoid storing all gradients.
      'gradients': min(gib['gradients'], temporary),
      'activations': max(temporary - gib['gradients'], 0.0),
    }
    return plan | {'total': sum(plan.values())}


class _Init:
  """Makes the train state.

  NumPy arrays in the objective's extra, such as a teacher's parameters, are
  copied to the devices directly. Otherwise they would be constants of the
  compiled program.
  """

  def __init__(self, program: Program):
    self._program = program
    self._on_host: list[np.ndarray | None] = []
    state = jax.eval_shape(self._make, None)
    self.shardings = sharding.tree_shardings(
      program.mesh, program.param_shardings, state
    )
    self.abstract = jax.tree.map(
      lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
      state,
      self.shardings,
    )

  def _make(self, params: Any) -> TrainState:
    program = self._program
    config, objective = program.config, program.objective
    params = train_step_lib.init_params(config, objective, params)
    leaves, tree = jax.tree.flatten(objective.init_extra(params))
    self._on_host = [x if isinstance(x, np.ndarray) else None for x in leaves]
    return train_step_lib.init_state(
      config,
      program._optimizer,
      program.rules,
      params,
      jax.tree.unflatten(tree, leaves),
    )

  @functools.cached_property
  def _computed(self) -> Any:
    """Jits `make`, whose state has only the computed leaves of the extra."""

    def make(params: Any) -> TrainState:
      state = self._make(params)
      extra = jax.tree.leaves(state.extra)
      return dataclasses.replace(state, extra=self._only_computed(extra))

    where = self._only_computed(jax.tree.leaves(self.shardings.extra))
    program = self._program
    return jax.jit(
      make,
      out_shardings=dataclasses.replace(self.shardings, extra=where),
      compiler_options=program._options | (_QUICK if program._is_cpu else {}),
    )

  def _only_computed(self, leaves: list[Any]) -> list[Any]:
    pairs = zip(leaves, self._on_host, strict=True)
    return [x for x, on_host in pairs if on_host is None]

  def run(self, params: Any) -> TrainState:
    """Returns the state; `params` None: with random parameters."""
    made = self._computed(params)
    computed = iter(made.extra)
    where, tree = jax.tree.flatten(self.shardings.extra)
    extra = [
      next(computed) if x is None else jax.device_put(x, s)
      for s, x in zip(where, self._on_host, strict=True)
    ]
    return dataclasses.replace(made, extra=jax.tree.unflatten(tree, extra))


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
  """Returns the temporary bytes per device as compiled; 0 if not known."""
  analysis = compiled.memory_analysis()
  return 0 if analysis is None else analysis.temp_size_in_bytes
