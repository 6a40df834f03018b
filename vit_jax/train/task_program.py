"""The compiled functions of several tasks on one trunk."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import dataclasses
import functools
from typing import Any
from typing import cast
from typing import Self

from flax import traverse_util
import jax
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax.objectives import contract
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.runs import parts as parts_lib
from vit_jax.train import cost
from vit_jax.train import program as program_lib
from vit_jax.train import step as train_step_lib

TrainState = train_step_lib.TrainState


class TaskProgram:
  """The functions of several tasks, each of which is a `Program` of its own.

  The train state has the parameters of all tasks, at the places that
  `runs.parts` gives them; the optimizer's state and the average follow them.
  `extra` has the extra of each objective by task.

  Attributes:
    places: Where the parameters of each task lie.
    shares: Share of the steps in which each task takes part, 0 to 1.
    mesh: Mesh of devices.
    rules: Rules that say which parameters train, and how.
    param_shardings: Where each parameter is on the mesh.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    programs: Mapping[str, program_lib.Program],
    places: Mapping[str, parts_lib.Part],
    shares: Mapping[str, float],
  ):
    """Joins the programs of tasks; compiles nothing yet.

    Args:
      config: The full config.
      programs: The program of each task alone, by name.
      places: As the attribute.
      shares: As the attribute.

    Raises:
      UserError: Parameters that tasks share have different shapes, or a task
        lacks some.
    """
    self._config, self._programs = config, programs
    self.places, self.shares = places, shares
    self.mesh = next(iter(programs.values())).mesh
    names = {
      name: {p: places[name].address(p) for p in program.param_shardings}
      for name, program in programs.items()
    }
    _check_shared(programs, names)
    self.param_shardings = {
      address: programs[name].param_shardings[p]
      for name, own in names.items()
      for p, address in own.items()
    }
    self.rules = _joined_rules(programs, places)
    self._addresses = {
      name: _state_addresses(name, program.abstract_state(), names[name])
      for name, program in programs.items()
    }
    self._abstract = self._abstract_state()
    self._steps: dict[str, Any] = {}

  def _abstract_state(self) -> TrainState:
    """Returns the shapes, types and shardings of the whole state."""
    found: dict[str, Any] = {}
    for name, program in self._programs.items():
      leaves = jax.tree.leaves(program.abstract_state())
      found |= zip(self._addresses[name], leaves, strict=True)
    params = traverse_util.unflatten_dict(below(found, 'params'), sep='/')
    trained = self.rules.trained(params)
    optimizer = optim.make_optimizer(self._config.optim)
    opt_state = jax.eval_shape(optimizer.init, trained)
    state = TrainState(
      step=found['step'],
      params=params,
      opt_state=opt_state,
      ema_params=trained if self._config.train.ema_decay else None,
      extra={
        name: program.abstract_state().extra
        for name, program in self._programs.items()
      },
    )
    names = list(sharding.leaves(state))
    missing = found.keys() - set(names)
    if missing or len(names) != len(found):
      raise config_lib.UserError(
        f'config.optim.name={self._config.optim.name} does not keep its state'
        f' by parameter, as several tasks need it ({sorted(missing)[:2]}):'
        ' choose another, as adamw'
      )
    tree = jax.tree.structure(state)
    return _state(tree, [found[x] for x in names])

  def abstract_state(self) -> TrainState:
    """Returns the state's shapes, types and shardings."""
    return self._abstract

  def state_to_read(self, names: Collection[str]) -> TrainState:
    """Returns the shapes, types and shardings to read a checkpoint into."""
    del names
    return self._abstract

  def adopt(self, state: TrainState) -> TrainState:
    """Returns a restored state, which is as the run needs it."""
    return state

  def part(self, state: TrainState, name: str) -> TrainState:
    """Returns the train state of one task, as a run of it alone has it."""
    found = sharding.leaves(state)
    tree = jax.tree.structure(self._programs[name].abstract_state())
    own = [found[x] for x in self._addresses[name]]
    return _state(tree, own)

  def _with_part(
    self, state: TrainState, part: TrainState, name: str
  ) -> TrainState:
    """Returns the state with the train state of one task put back."""
    found = sharding.leaves(state)
    names = list(found)
    found |= zip(self._addresses[name], jax.tree.leaves(part), strict=True)
    tree = jax.tree.structure(state)
    return _state(tree, [found[x] for x in names])

  def initialise(
    self, parts: Mapping[str, Callable[[], TrainState]]
  ) -> TrainState:
    """Returns the state before the first step.

    What tasks share is that of the first.

    Args:
      parts: Each makes the state of one task before its first step.
    """
    found: dict[str, Any] = {}
    for name, make in parts.items():
      leaves = jax.tree.leaves(make())
      own = dict(zip(self._addresses[name], leaves, strict=True))
      found = own | found
    tree = jax.tree.structure(self._abstract)
    return _state(tree, [found[x] for x in sharding.leaves(self._abstract)])

  def step(self, name: str) -> Any:
    """Returns (state, batch, step, signals) -> (state, metrics), compiled.

    It donates the state. Metrics of the objective begin with the name of the
    task, as also its loss: 'digits/loss'.

    Args:
      name: The task; '': all, and the batch has that of each by name.
    """
    if name not in self._steps:
      made = self._step_of(name) if name else self._step_of_all()
      any_program = next(iter(self._programs.values()))
      where = jax.tree.map(lambda x: x.sharding, self._abstract)
      self._steps[name] = any_program.compiled_step(made, where)
    return self._steps[name]

  def _step_of(self, name: str) -> Callable[..., Any]:
    program = self._programs[name]

    def step(
      state: TrainState, batch: Any, step: Any, signals: Any = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
      with config_lib.explained(f'task {name}'):
        part, metrics = program.one_step(
          self.part(state, name), batch, step, signals
        )
      common = {k: x for k, x in metrics.items() if k in contract.STEP_METRICS}
      own = {f'{name}/{k}': metrics[k] for k in metrics if k not in common}
      own[f'{name}/loss'] = metrics['loss']
      return self._with_part(state, part, name), common | own

    return step

  def _step_of_all(self) -> Callable[..., Any]:
    """Returns the step that follows the mean of the losses of all tasks."""
    config = self._config
    first = next(iter(self._programs.values()))
    update = train_step_lib.make_update(
      self._gradient,
      self._after_update,
      self.rules,
      optim.make_schedule(config.optim, first.lengths),
      optim.make_decay(config.optim, first.lengths),
      optim.make_optimizer(config.optim),
    )
    return train_step_lib.make_train_step(config, self.rules, update)

  def _gradient(
    self, state: TrainState, batches: Mapping[str, Any], step: jax.Array
  ) -> train_step_lib.Gradient:
    """Returns the weighted mean of the losses of tasks, and its gradient."""
    total = sum(task.weight for task in self._config.tasks.values())
    loss: Any = 0.0
    means: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    sums: dict[str, Any] = {}
    for name, program in self._programs.items():
      share = self._config.tasks[name].weight / total
      with config_lib.explained(f'task {name}'):
        found = program.gradient(self.part(state, name), batches[name], step)
      loss += share * found.loss
      means |= {f'{name}/{k}': x for k, x in found.means.items()}
      means[f'{name}/loss'] = found.loss
      extra[name] = found.extra
      for path, x in sharding.leaves(found.grads).items():
        address = self.places[name].address(path)
        sums[address] = sums.get(address, 0.0) + share * x
    trained = self.rules.trained(state.params)
    grads = jax.tree.unflatten(
      jax.tree.structure(trained), [sums[x] for x in sharding.leaves(trained)]
    )
    return train_step_lib.Gradient(loss, means, grads, extra)

  def _after_update(
    self, extra: Any, params: Any, step: jax.Array, before: Any
  ) -> Any:
    found = {}
    for name, program in self._programs.items():
      own = self.places[name].extract(params)
      with config_lib.explained(f'task {name}'):
        found[name] = contract.after_update(
          program.objective, extra[name], own, step, before[name]
        )
    return found

  @functools.cached_property
  def flops(self) -> cost.StepFlops:
    """Operations of the matrix products in one step, on average."""
    found = [
      np.multiply(dataclasses.astuple(program.flops), self.shares[name])
      for name, program in self._programs.items()
    ]
    return cost.StepFlops(*np.rint(np.sum(found, axis=0)).astype(int).tolist())

  def abstract_batch(self) -> dict[str, Any]:
    """Returns the shapes, types and shardings of a batch of each task."""
    return {name: x.abstract_batch() for name, x in self._programs.items()}

  @property
  def heaviest(self) -> Self:
    """The program itself: `compile` returns its heaviest step."""
    return self

  def compile(self, count: int = 1) -> jax.stages.Compiled:
    """Compiles the steps; their first calls then reuse that.

    Args:
      count: Steps in a call: 1.

    Returns:
      The step with the most temporary memory.
    """
    assert count == 1
    signals = mesh_lib.on_each_device(0, self.mesh)
    found = [
      self.step(name)
      .lower(self._abstract, batch, np.int32(0), signals)
      .compile()
      for name, batch in self._batches().items()
    ]
    return max(found, key=program_lib.temporary_bytes)

  def _batches(self) -> dict[str, Any]:
    """Returns the abstract batch of each step, by the name of the step."""
    batches: dict[str, Any] = self.abstract_batch()
    if self._config.train.task_sampling == 'accumulated':
      return {'': batches}
    return batches

  def compile_ahead(self) -> concurrent.futures.Future[jax.stages.Compiled]:
    """Begins to compile the steps in a thread."""
    for name in self._batches():
      self.step(name)  # made here, so that two threads do not make two
    return program_lib.in_thread(self.compile)


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


def _state(tree: Any, leaves: Sequence[Any]) -> TrainState:
  """Returns the train state of a structure."""
  return cast(TrainState, jax.tree.unflatten(tree, leaves))


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
