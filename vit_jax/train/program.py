"""The compiled functions of a config on a mesh, without any data."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import functools
import os
import re
from typing import Any
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import objectives
from vit_jax import optim
from vit_jax.data import features as features_lib
from vit_jax.data.device import views
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host import shapes as shapes_lib
from vit_jax.evaluation import base as evaluation_base
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import processes
from vit_jax.parallel import sharding
from vit_jax.train import state as state_lib
from vit_jax.train import step as train_step_lib

if TYPE_CHECKING:
  from vit_jax.train import cost

TrainState = state_lib.TrainState
# For programs that run once: with level 1 LLVM takes half the time, and they
# run as fast. A level in XLA_FLAGS comes first.
_LEVEL = 'xla_backend_optimization_level'


def create(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  lengths: optim.Lengths,
  devices: Sequence[jax.Device] | None = None,
) -> 'Program':
  """Returns the program of a config; arguments are those of `Program`.

  Raises:
    UserError: As `Program`.
  """
  return program_class(config)(config, features, lengths, devices)


def program_class(config: ml_collections.ConfigDict) -> 'type[Program]':
  """Returns the class of the program of a config of one task."""
  sizes = [x.patch_size for x in config.evals.values() if x.split]
  if not config.train.patch_sizes and sizes.count(None) == len(sizes):
    return Program
  program: type[Program] = config_lib.wing('vit_jax.train.patches:PatchProgram')
  return program


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
    label: The name of these steps, as 'task digits', where steps differ by
      their number.
  """

  label = ''

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
      UserError: A pattern or a rule does not fit the parameters, or the model
        is not that of the config.
    """
    self.config, self.features, self.lengths = config, features, lengths
    self.mesh = mesh_lib.make_mesh(config.mesh, devices)
    config = models.on_platform(config, self.mesh.devices.flat[0].platform)
    self.objective = objectives.create(config, features, lengths)
    if self.has_own_objective:
      config_lib.wing('vit_jax.train.trunk:check')(self.objective, self.config)
    params = jax.eval_shape(self.objective.init, jax.random.key(0))
    self.rules = rules_lib.make(
      config.optim, params, self.objective.frozen, self.objective.held
    )
    self.param_shardings = sharding.shard_params(
      config.mesh, self.mesh.shape, params
    )

  @staticmethod
  def check(config: ml_collections.ConfigDict) -> None:
    """Checks the keys that make steps differ by their number.

    Raises:
      UserError: A value cannot work.
    """
    del config

  @property
  def has_own_objective(self) -> bool:
    """Whether the objective is a class of the user's."""
    return not type(self.objective).__module__.startswith('vit_jax.')

  @property
  def _replicated(self) -> jax.sharding.NamedSharding:
    return mesh_lib.replicated(self.mesh)

  @functools.cached_property
  def _eval_steps(self) -> dict[Any, Any]:
    """Compiled functions of evaluators."""
    return {}

  @property
  def _options(self) -> dict[str, Any]:
    return mesh_lib.compiler_options(self.mesh)

  def variant(self, step: int) -> 'Program':
    """Returns the program of a step; most runs have one.

    A subclass has steps that differ by their number, with one train state.

    Args:
      step: Number of completed updates.
    """
    del step
    return self

  @property
  def variants(self) -> Sequence['Program']:
    """The programs of all steps."""
    return (self,)

  def for_evaluation(self, spec: ml_collections.ConfigDict) -> 'Program':
    """Returns the program of an evaluation, an entry of `config.evals`."""
    del spec
    return self

  def with_objective(self, objective: objectives.Objective) -> 'Program':
    """Returns the program of an objective that has the same train state."""
    program = Program.__new__(Program)
    program.config, program.features = self.config, self.features
    program.lengths, program.mesh = self.lengths, self.mesh
    program.rules, program.param_shardings = self.rules, self.param_shardings
    program.objective, program._init = objective, self._init
    return program

  @functools.cached_property
  def setup(self) -> train_step_lib.Setup:
    """What the steps of the run have in common."""
    config, objective = self.config, self.objective
    return train_step_lib.Setup(
      config=config,
      objective=objective,
      augment=views.train_transform(config, self.features, objective.views),
      rules=self.rules,
      schedule=optim.make_schedule(config.optim, self.lengths),
      decay=optim.make_decay(config.optim, self.lengths),
      optimizer=optim.make_optimizer(config.optim),
      mesh=self.mesh,
      param_shardings=self.param_shardings,
    )

  @functools.cached_property
  def train_step(self) -> Any:
    """(state, batch, step, signals=None) -> (state, metrics); donates state."""

    def train_step(
      state: TrainState, batch: Any, step: Any, signals: Any = None
    ) -> tuple[TrainState, train_step_lib.Metrics]:
      return self.one_step(state, batch, step, signals)

    return self._compiled_step(train_step)

  def one_step(
    self, state: TrainState, batch: Any, step: Any, signals: Any
  ) -> tuple[TrainState, train_step_lib.Metrics]:
    """`train_step` before it is compiled."""
    return train_step_lib.train_step(self.setup, state, batch, step, signals)[
      :2
    ]

  @functools.cached_property
  def train_steps(self) -> Any:
    """`train_step` for several steps in one call.

    Batches and metrics have a leading dimension of steps.
    """

    def train_steps(
      state: TrainState, batches: Any, step: Any, signals: Any = None
    ) -> tuple[TrainState, train_step_lib.Metrics]:
      return train_step_lib.train_steps(
        self.setup, state, batches, step, signals
      )

    return self._compiled_step(train_steps)

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
          self.objective, params, self.prepare(batch)
        )
      )
    return self._eval_steps[function]

  def compute(self, function: evaluation_base.Compute) -> Any:
    """Returns an evaluator's function of arrays that are no batch.

    Args:
      function: (objective, params, inputs) -> tree.

    Returns:
      (params, inputs) -> tree, replicated on every device.
    """
    key = 'compute', function
    if key not in self._eval_steps:
      compute = functools.partial(function, self.objective)
      self._eval_steps[key] = self._compiled_replicated(compute)
    return self._eval_steps[key]

  @functools.cached_property
  def flops(self) -> 'cost.StepFlops':
    """Operations of the matrix products in one step, on all devices."""
    params = self.abstract_state().params
    count = config_lib.wing('vit_jax.train.cost:step_flops')
    flops: cost.StepFlops = count(self.config, self.features, params)
    return flops

  def initialise(self, params: Any = None) -> TrainState:
    """Returns the state before the first step, on the mesh.

    Args:
      params: Initial parameters; None: random ones.
    """
    return self._init.run(params)

  @functools.cached_property
  def _init(self) -> state_lib.Init:
    return self._make_init(self.param_shardings)

  def _make_init(
    self, shardings: Mapping[str, sharding.ParamSharding]
  ) -> state_lib.Init:
    """Returns what makes the first state; `shardings` are by path."""
    is_cpu = self.mesh.devices.flat[0].platform == 'cpu'
    is_set = _LEVEL in os.environ.get('XLA_FLAGS', '')
    return state_lib.Init(
      self.config,
      self.objective,
      self.rules,
      optim.make_optimizer(self.config.optim),
      self.mesh,
      shardings,
      self._options | ({_LEVEL: 1} if is_cpu and not is_set else {}),
    )

  def prepare(self, batch: objectives.Batch) -> objectives.Batch:
    """Returns a batch with its images and maps prepared for evaluation."""
    return views.eval_batch(self.config, self.features)(batch)

  def _compiled_step(self, step: Callable[..., Any]) -> Any:
    """Compiles (state, ...) -> (state, metrics), which donates the state."""
    _ = self.setup  # before the trace, in which JAX adds lines to errors
    return jax.jit(
      mesh_lib.in_context(step, self.mesh),
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

    return self._compiled_replicated(step)

  def _compiled_replicated(self, fn: Callable[..., Any]) -> Any:
    fn = mesh_lib.in_context(fn, self.mesh)
    return jax.jit(
      fn, out_shardings=self._replicated, compiler_options=self._options
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
    return create(config, self.features, self.lengths).abstract_state()

  def adopt(self, state: TrainState) -> TrainState:
    """Returns a restored state with layers scanned or unrolled as here."""
    target = self.abstract_state()
    stored = sharding.leaves(state.params)
    if stored.keys() == sharding.leaves(target.params).keys():
      return state
    shardings = jax.tree.map(lambda x: x.sharding, target)
    relayout = functools.partial(
      config_lib.wing('vit_jax.models.layouts:relayout'), target=target
    )
    return jax.jit(relayout, out_shardings=shardings)(state)

  def abstract_batch(
    self,
    batch_size: int | None = None,
    features: features_lib.Features | None = None,
  ) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes, types and shardings of a global batch.

    Args:
      batch_size: Examples in a batch for evaluation; None: one for training.
      features: Features of the examples; None: those of training.
    """
    is_training = batch_size is None
    b = batch_size or self.config.train.batch_size
    batch_sharding = mesh_lib.batch_sharding(self.mesh)
    views = (
      self.objective.views if is_training else geometry.eval_views(self.config)
    )
    example = shapes_lib.example_shapes(
      self.features if features is None else features,
      views,
      self.config.data.channels,
      levels_lib.from_config(self.config).dtype,
      is_training,
    )
    shapes: dict[str, Any] = {
      name: ((b, *shape), dtype) for name, (shape, dtype) in example.items()
    }
    shapes |= {'valid': ((b,), jnp.bool_), 'index': ((b,), jnp.int32)}
    return {
      name: jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding)
      for name, (shape, dtype) in shapes.items()
    }

  def compile(self, count: int = 1) -> jax.stages.Compiled:
    """Compiles the first call, or that with the most work; it then reuses that.

    Args:
      count: Steps in the call.
    """
    signals = mesh_lib.on_each_device(0, self.mesh)
    state, batch = self.abstract_state(), self.abstract_batch()
    if count == 1:
      lowered = self.train_step.lower(state, batch, np.int32(0), signals)
      return lowered.compile()
    stacked = mesh_lib.batch_sharding(self.mesh, stacked=True)
    batches = {
      name: jax.ShapeDtypeStruct((count, *x.shape), x.dtype, sharding=stacked)
      for name, x in batch.items()
    }
    return self.train_steps.lower(
      state, batches, np.int32(0), signals
    ).compile()

  def compile_ahead(self) -> concurrent.futures.Future[jax.stages.Compiled]:
    """Begins to compile `train_step` in a thread that gets no signals.

    A call of `train_step` waits for the result and uses it.
    """
    for program in self.variants:
      _ = program.train_step  # cached here, so that two threads do not make two
    thread = concurrent.futures.ThreadPoolExecutor(
      1, initializer=processes.block_signals
    )
    compiling = thread.submit(self.compile)
    thread.shutdown(wait=False)
    return compiling


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
  """Returns the temporary bytes per device as compiled; 0 if not known."""
  analysis = compiled.memory_analysis()
  return 0 if analysis is None else analysis.temp_size_in_bytes
