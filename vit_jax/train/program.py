"""What a config compiles to: functions over a mesh, without any data."""

from collections.abc import Callable
from collections.abc import Collection
import concurrent.futures
import dataclasses
import functools
from typing import Any

from clu import metrics
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import objectives
from vit_jax import optim
from vit_jax.data.device import views
from vit_jax.data.host import levels as levels_lib
from vit_jax.models import stack
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import processes
from vit_jax.parallel import sharding
from vit_jax.train import cost
from vit_jax.train import step as train_step_lib

TrainState = train_step_lib.TrainState
# For what runs once: LLVM takes half the time, and the result as long to run.
_QUICK = {'xla_backend_optimization_level': 1}
# On CPUs each device would run independent collectives at the same time, in any
# order, on threads that all devices share: where those are too few, they wait
# for each other for ever.
_IN_ORDER = {'xla_cpu_enable_concurrency_optimized_scheduler': False}


@dataclasses.dataclass(frozen=True)
class Program:
  """The compiled functions of a run; nothing is compiled until it is called.

  Attributes:
    config: With nothing open that shapes depend on.
    image_shape: (height, width) in which images come from the host.
    mesh: Of devices.
    placed: Where each parameter is on it.
    rules: What trains, and how.
    objective: What is learned.
    update: (constants, state, batch, step) -> what the step computes; not
      compiled.
    initialise: (params, or None: random ones) -> state, on the mesh.
    train_step: (state, batch, step, signals=None) -> (state, metrics); the
      state is donated.
    train_steps: The same for several steps in one call: batches and metrics
      have a leading dimension of steps.
    no_metrics: Returns the metrics of no batch at all, on the mesh.
    eval_step: (params, batch, metrics, signals=None) -> metrics, with those of
      the batch, and the largest signal (0 where there are none).
    embed_step: (params, batch, signals=None) -> ({features, label, mask,
      index}, the largest signal): features are what the head reads, float32
      [B, D]; the rest is of the batch. All of it is on every device.
  """

  config: ml_collections.ConfigDict
  image_shape: tuple[int, int]
  mesh: jax.sharding.Mesh
  placed: dict[str, sharding.Placement]
  rules: rules_lib.Rules
  objective: objectives.Objective
  update: Callable[..., train_step_lib.Update]
  initialise: Callable[[Any], TrainState]
  train_step: '_WithConstants'
  train_steps: '_WithConstants'
  no_metrics: Callable[[], metrics.Collection]
  eval_step: Any
  embed_step: Any

  @functools.cached_property
  def flops(self) -> cost.StepFlops:
    """Of the matrix products in one step, on all devices together."""
    return cost.step_flops(self.config, self.abstract_state().params)

  @property
  def constants(self) -> Any:
    """The objective's constants, on the mesh."""
    return self.train_step.constants

  def abstract_state(self) -> TrainState:
    """Returns the state's shapes, types and shardings."""
    state = jax.eval_shape(self.initialise, None)
    return jax.tree.map(
      lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
      state,
      sharding.follow(self.mesh, self.placed, state),
    )

  def state_to_read(self, names: Collection[str]) -> TrainState:
    """Returns the shapes, types and shardings to read a checkpoint into.

    They are the state's; or, where it was saved with its layers kept in another
    way (scanned or not), those of that way.

    Args:
      names: Paths of the arrays that were saved.
    """
    fits = all(f'params/{name}' in names for name in self.placed)
    if fits or not any(name.startswith('blocks') for name in self.placed):
      return self.abstract_state()
    config = self.config.copy_and_resolve_references()
    config.model.scan = not config.model.scan
    lengths = optim.Lengths(total=1)  # of which shapes do not depend
    return make(config, self.image_shape, lengths).abstract_state()

  def adopt(self, state: TrainState) -> TrainState:
    """Returns a state that was read, with its layers kept as they are here."""
    own = self.abstract_state()
    if state.params.keys() == own.params.keys():
      return state
    shardings = jax.tree.map(lambda x: x.sharding, own)
    relayout = functools.partial(stack.relayout, target=own)
    return jax.jit(relayout, out_shardings=shardings)(state)

  def abstract_batch(
    self, batch_size: int | None = None
  ) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes, types and shardings of a global batch.

    Args:
      batch_size: Images in it; None: as for training.
    """
    b = batch_size or self.config.train.batch_size
    where = sharding.batch_sharding(self.mesh)
    dtype = levels_lib.of(self.config).dtype
    shapes: dict[str, Any] = {
      'image': ((b, *self.image_shape, self.config.data.channels), dtype),
      'label': ((b,), jnp.int32),
      'mask': ((b,), jnp.bool_),
      'index': ((b,), jnp.int32),
    }
    return {
      name: jax.ShapeDtypeStruct(shape, dtype, sharding=where)
      for name, (shape, dtype) in shapes.items()
    }

  def compile(self, count: int = 1) -> jax.stages.Compiled:
    """Compiles `train_step`, or `train_steps`, whose first call then finds it.

    Args:
      count: Steps in the call.
    """
    signals = sharding.on_each_device(0, self.mesh)
    state, batch = self.abstract_state(), self.abstract_batch()
    if count == 1:
      lowered = self.train_step.lower(state, batch, np.int32(0), signals)
      return lowered.compile()
    where = sharding.batch_sharding(self.mesh, stacked=True)
    batches = {
      name: jax.ShapeDtypeStruct((count, *x.shape), x.dtype, sharding=where)
      for name, x in batch.items()
    }
    return self.train_steps.lower(
      state, batches, np.int32(0), signals
    ).compile()

  def compile_ahead(self) -> concurrent.futures.Future[jax.stages.Compiled]:
    """Begins to compile `train_step` in a thread; its first call finds it.

    Whoever calls it waits for that first.
    """
    thread = concurrent.futures.ThreadPoolExecutor(
      1, initializer=processes.block_signals
    )
    compiling = thread.submit(self.compile)
    thread.shutdown(wait=False)
    return compiling

  def memory(self, temporary_bytes: int) -> dict[str, float]:
    """Returns what a step holds, in GiB a device; computes shapes alone.

    Args:
      temporary_bytes: Of a device, as its compiler plans it.

    Returns:
      parameters, gradients (of what trains), optimizer, average (of the
      parameters), constants (of the objective, where it has any), activations
      (and all else that is temporary), and their sum, total.
    """
    state = self.abstract_state()
    constants = jax.tree.leaves(self.objective.constants)
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
    if constants:
      gib['constants'] = sum(x.nbytes for x in constants) / 2**30
    plan = gib | {
      # A compiler may fuse them away.
      'gradients': min(gib['gradients'], temporary),
      'activations': max(temporary - gib['gradients'], 0.0),
    }
    return plan | {'total': sum(plan.values())}


class _Constants:
  """An objective's constants, which go to the devices when they are needed.

  Attributes:
    abstract: Their shapes, types and shardings.
    on_mesh: On every device of the mesh.
  """

  def __init__(self, constants: Any, mesh: jax.sharding.Mesh):
    self._on_host, self._where = constants, sharding.replicated(mesh)

  @property
  def abstract(self) -> Any:
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._where),
      self._on_host,
    )

  @functools.cached_property
  def on_mesh(self) -> Any:
    return jax.device_put(self._on_host, self._where)


class _WithConstants:
  """A jitted function whose first argument is an objective's constants.

  They are arguments, and not part of what is compiled: a teacher may be large.
  """

  def __init__(self, fn: Any, constants: _Constants):
    self._fn, self._constants = fn, constants

  @property
  def constants(self) -> Any:
    """On every device of the mesh."""
    return self._constants.on_mesh

  def __call__(self, *args: Any) -> Any:
    """Calls the function."""
    return self._fn(self.constants, *args)

  def trace(self, *args: Any) -> Any:
    """Traces the function for arguments of such shapes."""
    return self._fn.trace(self._constants.abstract, *args)

  def lower(self, *args: Any) -> Any:
    """Lowers it."""
    return self.trace(*args).lower()


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
  """Returns what a compiled step takes of a device while it runs.

  Returns:
    Bytes, as its compiler plans them; 0 where that does not say.
  """
  analysis = compiled.memory_analysis()
  return 0 if analysis is None else analysis.temp_size_in_bytes


def check_model(config: ml_collections.ConfigDict) -> None:
  """Checks `config.model`.

  Raises:
    UserError: There is no such model, or its image does not fit.
  """
  image_size = config_lib.pair(config.data.image_size, 'data.image_size')
  if config.model.attention_implementation == 'cudnn' and (
    config.train.dtype != 'bfloat16' or jax.default_backend() != 'gpu'
  ):
    raise config_lib.UserError(
      'config.model.attention_implementation=cudnn needs'
      f' config.train.dtype=bfloat16, which is {config.train.dtype}, and a GPU,'
      f" where there is a {jax.default_backend()}: take 'plain' or 'xla'"
    )
  try:
    models.check(config.model, image_size, config.data.channels)
  except ValueError as e:
    raise config_lib.UserError(f'config.model: {e}') from None


def make(
  config: ml_collections.ConfigDict,
  image_shape: tuple[int, int] | None,
  lengths: optim.Lengths,
) -> Program:
  """Makes the functions of a config; compiles nothing yet.

  Args:
    config: With nothing open; is not changed.
    image_shape: (height, width) of stored images, which are then cropped on
      the device; None: they differ, and come cropped.
    lengths: Of the run and of parts of its schedule.

  Raises:
    UserError: A pattern or a rule does not fit the parameters.
  """
  mesh = sharding.make_mesh(config.mesh)
  prepare = views.eval_transform(config, image_shape)
  objective = objectives.create(
    config,
    views.train_transform(config, image_shape),
    prepare,
  )
  params = jax.eval_shape(objective.init, jax.random.key(0))
  rules = rules_lib.make(config.optim, params)
  placed = sharding.place(
    config.mesh, mesh.shape, jax.eval_shape(rules.split, params)
  )
  optimizer = optim.make_optimizer(config.optim)
  schedule = optim.make_schedule(config.optim, lengths)
  update = train_step_lib.make_update(
    config, objective, rules, schedule, optimizer, mesh, placed
  )
  one_step = train_step_lib.make_train_step(config, rules, update)

  def init_state(params: Any) -> TrainState:
    return train_step_lib.init_state(
      config, objective, optimizer, rules, params
    )

  def eval_step(
    params: Any,
    batch: objectives.Batch,
    total: Any,
    signals: jax.Array | None = None,
  ) -> Any:
    compute = sharding.keep_batch_split(
      objective.metrics, mesh, len(batch['image'])
    )
    signal = jnp.int32(0) if signals is None else signals.max()
    return total.merge(compute(params, batch)), signal

  is_cpu = mesh.devices.flat[0].platform == 'cpu'
  options = _IN_ORDER if is_cpu and mesh.size > 1 else {}
  replicated = sharding.replicated(mesh)
  in_place = sharding.follow(mesh, placed, jax.eval_shape(init_state, None))
  constants = _Constants(objective.constants, mesh)

  def compiled(step: Callable[..., Any]) -> _WithConstants:
    jitted = jax.jit(
      step,
      donate_argnums=1,
      out_shardings=(in_place, replicated),
      compiler_options=options,
    )
    return _WithConstants(jitted, constants)

  return Program(
    config=config,
    image_shape=image_shape
    or config_lib.pair(config.data.image_size, 'data.image_size'),
    mesh=mesh,
    placed=placed,
    rules=rules,
    objective=objective,
    update=update,
    initialise=jax.jit(
      init_state,
      out_shardings=in_place,
      compiler_options=options | (_QUICK if is_cpu else {}),
    ),
    train_step=compiled(one_step),
    train_steps=compiled(train_step_lib.make_train_steps(one_step)),
    no_metrics=jax.jit(objective.no_metrics, out_shardings=replicated),
    eval_step=jax.jit(
      eval_step, out_shardings=replicated, compiler_options=options
    ),
    embed_step=jax.jit(
      _make_embed_step(config, prepare, mesh),
      out_shardings=replicated,
      compiler_options=options,
    ),
  )


def _make_embed_step(
  config: ml_collections.ConfigDict,
  prepare: views.EvalTransform,
  mesh: jax.sharding.Mesh,
) -> Callable[..., Any]:
  """Returns `Program.embed_step`, not compiled."""
  model = models.from_config(config.model, 0, config.train.dtype)
  model = model.clone(num_classes=0)  # without the head

  def embed(params: Any, images: jax.Array) -> Any:
    features = model.apply({'params': params}, prepare(images))
    return jnp.asarray(features, jnp.float32)

  def embed_step(
    params: Any, batch: objectives.Batch, signals: jax.Array | None = None
  ) -> Any:
    compute = sharding.keep_batch_split(embed, mesh, len(batch['image']))
    rest = {name: batch[name] for name in ('label', 'mask', 'index')}
    signal = jnp.int32(0) if signals is None else signals.max()
    return {'features': compute(params, batch['image']), **rest}, signal

  return embed_step
