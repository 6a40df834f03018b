"""The compiled functions of a config on a mesh, without any data."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import dataclasses
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
from vit_jax.data.host import batches as batches_lib
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib
from vit_jax.evaluation import base as evaluation_base
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import processes
from vit_jax.parallel import sharding
from vit_jax.train import state as state_lib
from vit_jax.train import step as train_step_lib
from vit_jax.train import variant as variant_lib

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
  """Returns the program of a config, with its model and its rules.

  Args:
    config: The config, with all values set; is not changed.
    features: Features of the examples, by name. If all images have one size,
      they are cropped on the device.
    lengths: Steps of the run and of parts of its schedule.
    devices: Devices to compile for; None: the devices of JAX.
  """
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  on_platform = models.on_platform(config, mesh.devices.flat[0].platform)
  objective = objectives.create(on_platform, features, lengths)
  if is_own(objective):
    config_lib.wing('vit_jax.train.trunk:check')(objective, config)
  params = jax.eval_shape(lambda: objective.init(jax.random.key(0)))
  return Program(
    config=config,
    features=features,
    lengths=lengths,
    objective=objective,
    mesh=mesh,
    rules=rules_lib.make(
      on_platform.optim, params, objective.frozen, objective.held
    ),
    param_shardings=sharding.shard_params(config.mesh, mesh.shape, params),
    steps=variant_lib.from_config(config),
  )


def is_own(objective: objectives.Objective) -> bool:
  """Whether an objective is a class of the user's."""
  return not type(objective).__module__.startswith('vit_jax.')


@dataclasses.dataclass(eq=False)
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
    steps: How steps differ by their number: `train.variant`.
    label: The name of these steps, as 'task digits', where they differ.
  """

  config: ml_collections.ConfigDict
  features: features_lib.Features
  lengths: optim.Lengths
  objective: objectives.Objective
  mesh: jax.sharding.Mesh
  rules: rules_lib.Rules
  param_shardings: Mapping[str, sharding.ParamSharding]
  steps: variant_lib.Variant = dataclasses.field(
    default_factory=variant_lib.Variant
  )
  label: str = ''

  @functools.cached_property
  def _for_evaluations(self) -> dict[Any, Any]:
    """Compiled functions of evaluators, and programs of other patch sizes."""
    return {}

  @property
  def _options(self) -> dict[str, Any]:
    return mesh_lib.compiler_options(self.mesh)

  @functools.cached_property
  def variants(self) -> Sequence['Program']:
    """The programs of all steps, the one with the most memory first."""
    key = f'config.train.variant={self.config.train.variant}'
    with config_lib.explained(key, ValueError):
      programs = self.steps.programs(self)
    if not isinstance(programs, Sequence) or not programs:
      raise config_lib.UserError(
        f'{key}: `programs` returned {programs!r}: it must return a list of one'
        ' program or more'
      )
    return programs

  def variant(self, step: int) -> 'Program':
    """Returns the program of the step after `step` updates."""
    key = f'config.train.variant={self.config.train.variant}'
    with config_lib.explained(key, ValueError):
      number = self.steps.choose(self.config, step)
    if number not in range(len(self.variants)):
      raise config_lib.UserError(
        f'{key}: `choose` returned {number!r} for step {step}, but there are'
        f' {len(self.variants)} programs'
      )
    return self.variants[number]

  def with_objective(
    self,
    objective: objectives.Objective,
    config: ml_collections.ConfigDict | None = None,
  ) -> 'Program':
    """Returns the program of an objective that has the same train state."""
    program = dataclasses.replace(
      self,
      objective=objective,
      config=config or self.config,
      steps=variant_lib.Variant(),
    )
    program._init = self._init
    return program

  def for_evaluation(self, spec: ml_collections.ConfigDict) -> 'Program':
    """Returns the program of an evaluation, an entry of `config.evals`."""
    if spec.patch_size is None:
      return self
    key = 'patch', spec.patch_size
    if key not in self._for_evaluations:
      resized = config_lib.wing('vit_jax.train.patches:for_evaluation')
      self._for_evaluations[key] = resized(self, spec)
    program: Program = self._for_evaluations[key]
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

    It maps (params, batch, signals=None) to (tree, the largest signal),
    replicated on every device; the signal is 0 without `signals`. `function`
    maps (objective, params, batch) to the tree: see `Context.apply`.
    """

    def compute(params: Any, batch: objectives.Batch) -> Any:
      return function(self.objective, params, self.prepare(batch))

    def step(
      params: Any, batch: objectives.Batch, signals: jax.Array | None = None
    ) -> Any:
      split = mesh_lib.keep_batch_split(compute, self.mesh, len(batch['index']))
      signal = jnp.int32(0) if signals is None else signals.max()
      return split(params, batch), signal

    if function not in self._for_evaluations:
      self._for_evaluations[function] = self._compiled_replicated(step)
    return self._for_evaluations[function]

  def compute(self, function: evaluation_base.Compute) -> Any:
    """Returns an evaluator's function of arrays that are no batch.

    It maps (params, inputs) to a tree, replicated on every device.
    """
    key = 'compute', function
    if key not in self._for_evaluations:
      compute = functools.partial(function, self.objective)
      self._for_evaluations[key] = self._compiled_replicated(compute)
    return self._for_evaluations[key]

  @functools.cached_property
  def flops(self) -> 'cost.StepFlops':
    """Operations of the products in one step, on all devices, on average."""
    cost_lib = config_lib.wing('vit_jax.train.cost')
    params = self.abstract_state().params
    flops: cost.StepFlops = cost_lib.mean(
      [cost_lib.step_flops(x.config, x.features, params) for x in self.variants]
    )
    return flops

  def initialise(self, params: Any = None) -> TrainState:
    """Returns the state before the first step; `params` None: random ones."""
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
      out_shardings=(self._init.shardings, mesh_lib.replicated(self.mesh)),
      compiler_options=self._options,
    )

  def _compiled_replicated(self, fn: Callable[..., Any]) -> Any:
    fn = mesh_lib.in_context(fn, self.mesh)
    return jax.jit(
      fn,
      out_shardings=mesh_lib.replicated(self.mesh),
      compiler_options=self._options,
    )

  def part(self, state: TrainState, name: str) -> TrainState:
    """Returns the train state of one of the tasks, as a run of it has it."""
    del name
    return state

  def abstract_state(self) -> TrainState:
    """Returns the state's shapes, types and shardings."""
    return self._init.abstract

  def state_to_read(self, names: Collection[str]) -> TrainState:
    """Returns the shapes, types and shardings to read a checkpoint into.

    They are the state's, with layers scanned or unrolled as they were when it
    was saved, with arrays of these names.
    """
    fits = all(f'params/{name}' in names for name in self.param_shardings)
    if fits or not any(
      re.search(r'\bblocks', name) for name in self.param_shardings
    ):
      return self.abstract_state()
    twin = config_lib.wing('vit_jax.train.relayout:twin')
    state: TrainState = twin(self).abstract_state()
    return state

  def adopt(self, state: TrainState) -> TrainState:
    """Returns a restored state with layers scanned or unrolled as here."""
    target = self.abstract_state()
    stored = sharding.leaves(state.params)
    if stored.keys() == sharding.leaves(target.params).keys():
      return state
    relayout = config_lib.wing('vit_jax.train.relayout:relayout')
    adopted: TrainState = relayout(state, target)
    return adopted

  def abstract_batch(
    self,
    batch_size: int | None = None,
    features: features_lib.Features | None = None,
  ) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes, types and shardings of a global batch.

    Without a size it is a batch of training, with it one of evaluation.
    `features` None stands for the features of the program.
    """
    is_training = batch_size is None
    b = batch_size or self.config.train.batch_size
    batch_sharding = mesh_lib.batch_sharding(self.mesh)
    views = (
      self.objective.views if is_training else geometry.eval_views(self.config)
    )
    example = batches_lib.example_shapes(
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
    """Compiles a call of `count` steps, the one with the most memory.

    The first call of so many steps reuses what is compiled here.
    """
    if self.variants[0] is not self:
      return self.variants[0].compile(count)
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
