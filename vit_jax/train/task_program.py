"""The compiled functions of several tasks on one trunk."""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import cast

from flax import traverse_util
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data.device.rng import Rng
from vit_jax.objectives import contract
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import sharding
from vit_jax.runs import parts as parts_lib
from vit_jax.train import cost
from vit_jax.train import program as program_lib
from vit_jax.train import state as state_lib
from vit_jax.train import step as train_step_lib

TrainState = state_lib.TrainState

_ROW = 'row'  # of an example in the batch of its task


class TaskProgram(program_lib.Program):
  """The functions of several tasks, each of which is a `Program` of its own.

  The train state has the parameters of all tasks, at the places that
  `runs.parts` gives them; the optimizer's state and the average follow them.
  `extra` has the extra of each objective by task.

  Attributes:
    places: Where the parameters of each task lie.
    order: The task of each step, int32 [steps]; None: each step is of all.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    programs: Mapping[str, program_lib.Program],
    places: Mapping[str, parts_lib.Part],
    order: np.ndarray | None,
  ):
    """Joins the programs of tasks; compiles nothing yet.

    Args:
      config: The full config.
      programs: The program of each task alone, by name.
      places: As the attribute.
      order: As the attribute, positions in `programs`.

    Raises:
      UserError: Parameters that tasks share have different shapes, or a task
        lacks some.
    """
    first = next(iter(programs.values()))
    self.config, self.features = config, first.features
    self.lengths, self.mesh = first.lengths, first.mesh
    self.places, self._programs, self.order = places, programs, order
    names = {
      name: {p: places[name].address(p) for p in program.param_shardings}
      for name, program in programs.items()
    }
    _check_shared(programs, names)
    self.objective = _Together(config, programs, places)
    self.rules = _joined_rules(programs, places)
    self.param_shardings = {
      address: programs[name].param_shardings[p]
      for name, addresses in names.items()
      for p, address in addresses.items()
    }
    self._addresses = {
      name: _state_addresses(name, program.abstract_state(), names[name])
      for name, program in programs.items()
    }
    self._check_state()
    self._of_task = {
      name: _OneTask(self, name, program) for name, program in programs.items()
    }

  def _check_state(self) -> None:
    """Raises a UserError if the optimizer's state is not by parameter."""
    there = sharding.leaves(self.abstract_state()).keys()
    missing = {x for names in self._addresses.values() for x in names} - there
    if missing:
      raise config_lib.UserError(
        f'config.optim.name={self.config.optim.name} does not keep its state by'
        f' parameter, as several tasks need it ({sorted(missing)[:2]}): choose'
        ' another, as adamw'
      )

  @functools.cached_property
  def _init(self) -> state_lib.Init:
    # The extra of an objective has the paths of its own tree.
    paths = [program.param_shardings for program in self._programs.values()]
    return self._make_init(
      {name: x for path in paths for name, x in path.items()}
      | self.param_shardings
    )

  @functools.cached_property
  def setup(self) -> train_step_lib.Setup:
    """What the steps of all tasks have in common."""
    setup = next(iter(self._programs.values())).setup
    return dataclasses.replace(
      setup,
      config=self.config,
      objective=self.objective,
      augment=lambda batch, rng: batch,  # the objective does it
      rules=self.rules,
      param_shardings=self.param_shardings,
    )

  def one_step(
    self, state: TrainState, batch: Any, step: Any, signals: Any
  ) -> tuple[TrainState, train_step_lib.Metrics]:
    """The step of all tasks, before it is compiled."""
    rows = {
      f'{name}/{_ROW}': jnp.arange(len(batch[f'{name}/index']), dtype=jnp.int32)
      for name in self._programs
    }
    return super().one_step(state, batch | rows, step, signals)

  def variant(self, step: int) -> program_lib.Program:
    """Returns the program of the task of a step."""
    if self.order is None:
      return self
    return [*self._of_task.values()][self.order[step]]

  @property
  def variants(self) -> Sequence[program_lib.Program]:
    """The program of each task, or of all."""
    return (self,) if self.order is None else (*self._of_task.values(),)

  def state_to_read(self, names: Collection[str]) -> TrainState:
    """Returns the shapes, types and shardings to read a checkpoint into."""
    del names
    return self.abstract_state()

  def part(self, state: TrainState, name: str) -> TrainState:
    """Returns the train state of one task, as a run of it alone has it."""
    leaves = sharding.leaves(state)
    tree = jax.tree.structure(self._programs[name].abstract_state())
    part = [leaves[x] for x in self._addresses[name]]
    return cast(TrainState, jax.tree.unflatten(tree, part))

  def with_part(
    self, state: TrainState, part: TrainState, name: str
  ) -> TrainState:
    """Returns the state with the train state of one task put back."""
    leaves = sharding.leaves(state)
    names, tree = list(leaves), jax.tree.structure(state)
    leaves |= zip(self._addresses[name], jax.tree.leaves(part), strict=True)
    return cast(
      TrainState, jax.tree.unflatten(tree, [leaves[x] for x in names])
    )

  @functools.cached_property
  def flops(self) -> cost.StepFlops:
    """Operations of the matrix products in one step, on average."""
    flops = [dataclasses.astuple(x.flops) for x in self._programs.values()]
    shares = np.ones(len(flops))
    if self.order is not None:
      shares = np.bincount(self.order, minlength=len(flops)) / len(self.order)
    return cost.StepFlops(
      *np.rint(shares @ np.array(flops)).astype(int).tolist()
    )

  def abstract_batch(self, *args: Any) -> dict[str, Any]:
    """Returns the shapes, types and shardings of a batch of all tasks."""
    batches = {n: x.abstract_batch(*args) for n, x in self._programs.items()}
    index = [batch['index'] for batch in batches.values()]
    flat = traverse_util.flatten_dict(batches, sep='/')
    size = sum(len(x) for x in index)
    return flat | {'index': index[0].update(shape=(size,))}

  def compile(self, count: int = 1) -> jax.stages.Compiled:
    """Compiles the steps; their first calls then reuse that.

    Args:
      count: Steps in a call: 1.

    Returns:
      The step with the most temporary memory.
    """
    if self.order is None:
      return super().compile(count)
    compiled = [x.compile(count) for x in self.variants]
    return max(compiled, key=program_lib.temporary_bytes)


class _OneTask(program_lib.Program):
  """The steps of one task, in the train state of all.

  Attributes:
    label: 'task' and its name.
  """

  def __init__(
    self, whole: TaskProgram, name: str, program: program_lib.Program
  ):
    self.label, self._name = f'task {name}', name
    self._whole, self._alone = whole, program
    self.mesh, self._init = whole.mesh, whole._init

  def abstract_batch(self, *args: Any) -> dict[str, Any]:
    """Returns the shapes, types and shardings of a batch of the task."""
    return self._alone.abstract_batch(*args)

  def one_step(
    self, state: TrainState, batch: Any, step: Any, signals: Any
  ) -> tuple[TrainState, train_step_lib.Metrics]:
    """Makes the step of a run of this task, with its part of the state."""
    name = self._name
    with config_lib.explained(self.label):
      part, metrics = self._alone.one_step(
        self._whole.part(state, name), batch, step, signals
      )
    common = {k: x for k, x in metrics.items() if k in contract.STEP_METRICS}
    means = {f'{name}/{k}': metrics[k] for k in metrics if k not in common}
    means[f'{name}/loss'] = metrics['loss']
    return self._whole.with_part(state, part, name), common | means


class _Together(objectives.Objective):
  """The weighted mean of the losses of all tasks."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    programs: Mapping[str, program_lib.Program],
    places: Mapping[str, parts_lib.Part],
  ):
    self.config, self._programs, self._places = config, programs, places
    self._objectives = {name: x.objective for name, x in programs.items()}

  @property
  def caches_gradients(self) -> bool:  # type: ignore[override]
    """Whether one of them needs its whole batch at once."""
    return any(x.caches_gradients for x in self._objectives.values())

  def init(self, key: jax.Array) -> Any:
    """Returns fresh parameters; what tasks share is that of the first."""
    return join(
      {name: x.init(key) for name, x in self._objectives.items()}, self._places
    )

  def init_extra(self, params: Any) -> dict[str, Any]:
    """Returns the extra of each task, by name."""
    return {
      name: contract.init_extra(x, self._places[name].extract(params))
      for name, x in self._objectives.items()
    }

  def loss(self, params: Any, extra: Any, batch: Any, rng: Rng) -> Any:
    """Returns the weighted mean, the loss and the means of each task."""
    total = sum(task.weight for task in self.config.tasks.values())
    loss: Any = 0.0
    means: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    for name, program in self._programs.items():
      with config_lib.explained(f'task {name}'):
        task_loss, scalars, extras[name] = program.setup.loss(
          self._places[name].extract(params),
          extra[name],
          below(batch, name),
          Rng(rng.key, batch[f'{name}/{_ROW}']),
        )
      loss += self.config.tasks[name].weight / total * task_loss
      means |= {f'{name}/{k}': x for k, x in scalars.items()}
      means[f'{name}/loss'] = task_loss
    return loss, means, extras

  def training_loss(self, params: Any, extra: Any, batch: Any, rng: Rng) -> Any:
    """Returns what `loss` does, which has the balancing losses of tasks."""
    return self.loss(params, extra, batch, rng)

  def after_update(self, extra: Any, params: Any, step: Any) -> dict[str, Any]:
    """Returns the extra of each task after the update."""
    extras = {}
    for name, program in self._programs.items():
      with config_lib.explained(f'task {name}'):
        extras[name] = contract.after_update(
          program.objective,
          extra[name],
          self._places[name].extract(params),
          step,
          program.abstract_state().extra,
        )
    return extras


def join(trees: Mapping[str, Any], places: Mapping[str, parts_lib.Part]) -> Any:
  """Returns the parameters of a run; what tasks share is that of the first.

  Args:
    trees: The parameters of each task, or a part of them, by its name.
    places: Where they lie.
  """
  joined: dict[str, Any] = {}
  for name, tree in trees.items():
    flat = traverse_util.flatten_dict(tree, sep='/')
    joined = {places[name].address(p): x for p, x in flat.items()} | joined
  return traverse_util.unflatten_dict(joined, sep='/')


def _joined_rules(
  programs: Mapping[str, program_lib.Program],
  places: Mapping[str, parts_lib.Part],
) -> rules_lib.Rules:
  """Returns the rules of all parameters, by their paths in the run.

  Raises:
    UserError: Two tasks treat a parameter that they share differently.
  """
  found: dict[str, tuple[str, rules_lib.Parameter]] = {}
  for task, program in programs.items():
    for path, rule in program.rules.parameters.items():
      address = places[task].address(path)
      first, known = found.setdefault(address, (task, rule))
      if rule != known:
        raise config_lib.UserError(
          f'tasks {first} and {task} share {path}, but one freezes it, or gives'
          ' it another learning rate or weight decay, than the other: choose'
          ' objectives that treat it alike, or set'
          f' config.tasks.{task}.modality to a name of its own'
        )
  return rules_lib.Rules({x: rule for x, (_, rule) in found.items()})


def below(found: Mapping[str, Any], start: str) -> dict[str, Any]:
  """Returns the values below a path, by their paths from there."""
  before = f'{start}/'
  return {
    path.removeprefix(before): x
    for path, x in found.items()
    if path.startswith(before)
  }


def _state_addresses(
  task: str, state: TrainState, names: Mapping[str, str]
) -> list[str]:
  """Returns the path in the whole state of each leaf of a task's state.

  `names` has the path in the run of each parameter of the task.
  """

  def address(path: str) -> str:
    kind, _, rest = path.partition('/')
    if kind == 'extra':
      return f'extra/{task}/{rest}'
    keys = path.split('/')
    for start in range(1, len(keys)):
      name = '/'.join(keys[start:])
      if name in names:
        return '/'.join([*keys[:start], names[name]])
    return path

  return [address(path) for path in sharding.leaves(state)]


def _check_shared(
  programs: Mapping[str, program_lib.Program],
  names: Mapping[str, Mapping[str, str]],
) -> None:
  """Raises a UserError if tasks do not fit on one trunk."""
  seen: dict[str, tuple[str, tuple[int, ...]]] = {}
  for task, own in names.items():
    for path, address in own.items():
      shape = programs[task].param_shardings[path].shape
      first, known = seen.setdefault(address, (task, shape))
      if shape == known:
        continue
      where = (
        'config.tasks share the trunk, config.model: leave out what differs in'
        f' config.tasks.{task}.model'
        if parts_lib.is_shared(address)
        else 'tasks of one modality share their patches, positions and'
        f' channels: make these equal, or set config.tasks.{task}.modality to'
        ' a name of its own'
      )
      raise config_lib.UserError(
        f'tasks {first} and {task} share {path}, but its shape is'
        f' {list(known)} in {first} and {list(shape)} in {task}: {where}'
      )
  shared = {x for x in seen if parts_lib.is_shared(x)}
  for task, own in names.items():
    if lacks := sorted(shared - set(own.values())):
      raise config_lib.UserError(
        f'tasks {seen[lacks[0]][0]} and {task} have no trunk in common: {task}'
        f' lacks {config_lib.some(lacks)}; give them the same family and depth'
      )
