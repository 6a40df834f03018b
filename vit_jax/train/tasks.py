"""Several tasks on one trunk (PolyViT, arXiv:2111.12993): `config.tasks`.

A step is of one task. It takes the task's part of the train state, makes the
step of a run of this task, and puts the part back. So each task has one
compiled program, and what other tasks have for themselves does not change:
neither their parameters nor the optimizer's moments of these. Only the
optimizer's count of steps is that of all tasks.

With `config.train.task_sampling='accumulated'` a step is of all tasks, and
follows the gradient of the weighted mean of their losses (section 3.3 of the
paper).
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import math
import pathlib
import sys
from typing import Any
from typing import cast
from typing import Self

from flax import traverse_util
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax import tables
from vit_jax.data import base as data_base
from vit_jax.data import sources
from vit_jax.data.device.rng import Rng
from vit_jax.objectives.extensions import contract
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import sharding
from vit_jax.runs import parts as parts_lib
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import cost
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed
from vit_jax.train import program as program_lib
from vit_jax.train import state as state_lib
from vit_jax.train import step as train_step_lib
from vit_jax.train.experiment import Experiment
from vit_jax.train.state import TrainState

_DRAWS = 0x7A5C  # tells the draws of tasks from others of the same seed
_ROW = 'row'  # of an example in the batch of its task


def build(
  config: ml_collections.ConfigDict, resumes: pathlib.Path | None = None
) -> 'Tasks':
  """Returns the experiment of several tasks.

  Args:
    config: Checked; is not changed.
    resumes: Work directory of the run, if it has begun.

  Raises:
    UserError: The data are not there or do not fit, or tasks do not fit on one
      trunk.
  """
  configs, splits = config_lib.each_task(config), {}
  for name, task_config in configs.items():
    with config_lib.explained(f'task {name}'):
      splits[name] = experiment_lib.open_splits(task_config)
  sizes = {name: len(x['train']) for name, x in splits.items()}
  lengths = experiment_lib.find_lengths(config, _epoch(config, configs, sizes))
  order = draw(config, configs, sizes, lengths.total)
  tasks: dict[str, Experiment] = {}
  for i, (name, task_config) in enumerate(configs.items()):
    workdir = resumes / 'tasks' / name if resumes else False
    with config_lib.explained(f'task {name}'):
      task = experiment_lib.build(task_config, workdir, splits[name], lengths)
    steps = lengths.total if order is None else int((order == i).sum())
    tasks[name] = dataclasses.replace(task, total_steps=steps)
  config = config_lib.with_task_values(
    config, {name: task.config for name, task in tasks.items()}
  )
  return _join(config, tasks, order)


def _join(
  config: ml_collections.ConfigDict,
  tasks: dict[str, Experiment],
  order: np.ndarray | None,
) -> 'Tasks':
  """Returns the experiment of several tasks; `order` is from `draw`."""
  places = {}
  for name, task in tasks.items():
    kind = type(task.source.features['image']).__name__.lower()
    places[name] = parts_lib.Part(
      name,
      config.tasks[name].modality or kind,
      task.program.objective.trunk_path,
      config.train.task_layers,
    )
  programs = {name: task.program for name, task in tasks.items()}
  program = TaskProgram(config, programs, places, order)
  splits = {
    f'{name}.{use}': source
    for name, task in tasks.items()
    for use, source in task.splits.items()
  }
  return Tasks(
    config=config,
    lengths=program.lengths,
    total_steps=program.lengths.total,
    cache=sources.keep(config, program.mesh, splits),
    evaluators={
      f'{name}_{key}': evaluator
      for name, task in tasks.items()
      for key, evaluator in task.evaluators.items()
    },
    start=next(iter(tasks.values())).start,
    program=program,
    tasks=tasks,
  )


def _epoch(
  config: ml_collections.ConfigDict,
  configs: Mapping[str, ml_collections.ConfigDict],
  sizes: Mapping[str, int],
) -> int:
  """Returns the examples of an epoch, as if all batches had the usual size.

  So an epoch of several tasks has as many steps as an epoch of each.
  """
  batch_size = config.train.batch_size
  return round(
    sum(
      sizes[name] * batch_size / x.train.batch_size
      for name, x in configs.items()
    )
  )


def draw(
  config: ml_collections.ConfigDict,
  configs: Mapping[str, ml_collections.ConfigDict],
  sizes: Mapping[str, int],
  steps: int,
) -> np.ndarray | None:
  """Returns the task of each step, which depends on the seed and the step.

  Args:
    config: The full config.
    configs: The config of each task.
    sizes: Number of training examples of each task.
    steps: Number of steps of the run.

  Returns:
    int32 [steps], positions in `configs`; None: each step is of all tasks.
  """
  sampling, count = config.train.task_sampling, len(configs)
  if sampling == 'accumulated':
    return None
  if sampling == 'alternating':
    return np.arange(steps, dtype=np.int32) % count
  shares = {
    'uniform': [1.0] * count,
    'weighted': [config.tasks[name].weight for name in configs],
    'epochs': [sizes[k] / x.train.batch_size for k, x in configs.items()],
  }[sampling]
  ends = np.cumsum(shares) / np.sum(shares)
  # A longer run begins with the same numbers.
  drawn = np.random.default_rng((_DRAWS, config.seed)).random(steps)
  tasks = np.searchsorted(ends, drawn, side='right')
  return np.minimum(tasks, count - 1).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Tasks(Experiment):
  """The experiment of several tasks.

  Attributes:
    tasks: That of each task, by name. Its steps are those of the task.
  """

  tasks: Mapping[str, Experiment]
  program: 'TaskProgram'

  @property
  def parts(self) -> Mapping[str, Experiment]:
    """The experiment of each task, by name."""
    return self.tasks

  def init(self) -> TrainState:
    """Returns the state before the first step."""
    starts = {name: task.loaded_params() for name, task in self.tasks.items()}
    starts = {name: x for name, x in starts.items() if x is not None}
    return self.program.initialise(
      _join_params(starts, self.program.places) if starts else None
    )

  def _steps_before(self, step: int) -> dict[str, int]:
    """Returns how many of the first `step` steps are of each task."""
    if self.program.order is None:
      return dict.fromkeys(self.tasks, step)
    counts = np.bincount(self.program.order[:step], minlength=len(self.tasks))
    return dict(zip(self.tasks, counts.tolist(), strict=True))

  def train_batches(
    self, start: int, calls: Iterable[int] | None = None
  ) -> feed.Feed:
    """Returns the global batches of steps `start` to the end.

    Args:
      start: Number of completed updates.
      calls: Ignored: each call makes one step.
    """
    del calls
    done = self._steps_before(start)
    feeds = {
      name: task.train_batches(done[name])
      for name, task in self.tasks.items()
      if done[name] < task.total_steps
    }
    order, names = self.program.order, [*self.tasks]
    if order is None:
      return _TaskFeed(feeds, [''] * (self.total_steps - start))
    return _TaskFeed(feeds, [names[i] for i in order[start:]])

  def log_due(self, step: int) -> bool:
    """Whether to log a step: also the first of each task in each interval."""
    order = self.program.order
    if super().log_due(step) or order is None:
      return super().log_due(step)
    first = math.ceil(step // self.log_every * self.log_every)
    return order[step - 1] not in order[max(first - 1, 0) : step - 1]

  def measured(
    self, state: TrainState, names: Sequence[str]
  ) -> Iterator[experiment_lib.Measured]:
    """Yields what to evaluate, for each task."""
    for name, task in self.tasks.items():
      keys = {f'{name}_{key}': key for key in task.evaluators}
      keys = {x: keys[x] for x in names if x in keys}
      if keys:
        params = self.program.part(state, name).eval_params
        place = f'config.tasks.{name}.evals'
        yield experiment_lib.Measured(task, params, keys, place)

  def warnings(self, scalars: Mapping[str, float], step: int) -> list[str]:
    """Returns what is wrong with the run, as objectives see it."""
    lines = []
    for name, task in self.tasks.items():
      if means := _below(scalars, name):
        lines += task.program.objective.warnings(means, step)
    return lines

  def fingerprint(self) -> str:
    """Returns a digest of the training data of all tasks."""
    prints = [task.fingerprint() for task in self.tasks.values()]
    return data_base.digest([*self.tasks, *prints])

  def preprocess(self) -> dict[str, Any]:
    """Returns the content of preprocess.json; each task has one of its own."""
    return {'classes': [], 'tasks': list(self.tasks)}

  def files(self) -> dict[str, Any]:
    """Returns the content of the files in tasks/NAME/, by path."""
    files: dict[str, Any] = {}
    for name, task in self.tasks.items():
      folder, place = f'tasks/{name}', self.program.places[name]
      files |= {
        f'{folder}/{workdir_lib.PART}': dataclasses.asdict(place),
        f'{folder}/config.json': config_lib.to_dict(task.config),
        f'{folder}/preprocess.json': task.preprocess(),
      }
    return files

  def table(self, results: Mapping[str, float | None], step: int) -> str:
    """Returns the results by task, as a table for people."""
    rows = []
    for (name, task), done in zip(
      self.tasks.items(), self._steps_before(step).values(), strict=True
    ):
      metrics = []
      for key, x in results.items():
        evaluation, _, metric = key.removeprefix(f'{name}_').partition('/')
        is_of_task = (
          key.startswith(f'{name}_') and evaluation in task.evaluators
        )
        if is_of_task and x is not None and metric != 'examples':
          metrics.append(f'{evaluation}/{metric} {x:.4g}')
      count = len(task.source)
      epochs = f'{done * task.config.train.batch_size / count:.1f}'
      rows.append((name, count, done, epochs, ', '.join(metrics)))
    columns = 'task', 'examples', 'steps', 'epochs', 'results'
    return tables.Table(columns, rows).text(tables.room(sys.stderr))

  def with_accumulation(self, accumulation: int) -> Self:
    """Returns the experiment with another `train.accumulation`."""
    config = config_lib.with_accumulation(self.config, accumulation)
    tasks = {
      name: task.with_accumulation(accumulation)
      for name, task in self.tasks.items()
    }
    return _join(config, tasks, self.program.order)  # type: ignore[return-value]

  def cached(self) -> Self:
    """Returns the experiment with its images in the caches of its tasks."""
    tasks = {name: task.cached() for name, task in self.tasks.items()}
    return dataclasses.replace(self, tasks=tasks)


class _TaskFeed(feed.Feed):
  """Global batches of several tasks, in the order of the steps.

  A batch of one task is as that of its `Feed`. One of all tasks has the arrays
  of each, as 'digits/image', and `index`, of all.
  """

  def __init__(self, feeds: Mapping[str, feed.Feed], names: Sequence[str]):
    """Takes over the feeds, which prefetch already.

    Args:
      feeds: By task.
      names: The task of each step; '': all tasks.
    """
    self._feeds, self._names, self._next = feeds, names, 0

  def __next__(self) -> feed.Batch:
    if self._next == len(self._names):
      raise StopIteration
    name, self._next = self._names[self._next], self._next + 1
    if name:
      return next(self._feeds[name])
    batches = {task: next(x) for task, x in self._feeds.items()}
    index = jnp.concatenate([x['index'] for x in batches.values()])
    flat = {f'{t}/{k}': x for t, xs in batches.items() for k, x in xs.items()}
    return flat | {'index': index}

  @property
  def error(self) -> config_lib.UserError | None:  # type: ignore[override]
    """Why batches are blank; None: they are not."""
    return next((x.error for x in self._feeds.values() if x.error), None)

  def is_ready(self) -> bool:
    """Whether the next batch can be taken without waiting."""
    name = self._names[self._next : self._next + 1]
    feeds = [self._feeds[x] for x in name if x] or self._feeds.values()
    return all(x.is_ready() for x in feeds)

  def close(self) -> None:
    """Stops the threads and the sources of the batches."""
    with contextlib.ExitStack() as stack:
      for task_feed in self._feeds.values():
        stack.callback(task_feed.close)


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
    self.objective = _JointObjective(config, programs, places)
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
    leaves = sharding.leaves(self.abstract_state()).keys()
    missing = {x for names in self._addresses.values() for x in names} - leaves
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
    setups = []
    for name, program in self._programs.items():
      with config_lib.explained(f'task {name}'):
        setups.append(program.setup)
    return dataclasses.replace(
      setups[0],
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
    self, joint: TaskProgram, name: str, program: program_lib.Program
  ):
    self.label, self._name = f'task {name}', name
    self._joint, self._alone = joint, program
    self.mesh, self._init = joint.mesh, joint._init

  @functools.cached_property
  def setup(self) -> train_step_lib.Setup:
    """What the steps of the task have in common."""
    with config_lib.explained(self.label):
      return self._alone.setup

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
        self._joint.part(state, name), batch, step, signals
      )
    common = {k: x for k, x in metrics.items() if k in contract.STEP_METRICS}
    means = {f'{name}/{k}': metrics[k] for k in metrics if k not in common}
    means[f'{name}/loss'] = metrics['loss']
    return self._joint.with_part(state, part, name), common | means


class _JointObjective(objectives.Objective):
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
    return _join_params(
      {name: x.init(key) for name, x in self._objectives.items()}, self._places
    )

  def init_extra(self, params: Any) -> dict[str, Any]:
    """Returns the extra of each task, by name."""
    return {
      name: x.init_extra(self._places[name].extract(params))
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
          _below(batch, name),
          Rng(rng.key, batch[f'{name}/{_ROW}']),
        )
      loss += self.config.tasks[name].weight / total * task_loss
      means |= {f'{name}/{k}': x for k, x in scalars.items()}
      means[f'{name}/loss'] = task_loss
    return loss, means, extras

  def after_update(self, extra: Any, params: Any, step: Any) -> dict[str, Any]:
    """Returns the extra of each task after the update."""
    extras = {}
    for name, program in self._programs.items():
      with config_lib.explained(f'task {name}'):
        extras[name] = program.objective.after_update(
          extra[name], self._places[name].extract(params), step
        )
    return extras


def _join_params(
  trees: Mapping[str, Any], places: Mapping[str, parts_lib.Part]
) -> Any:
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
  rules: dict[str, tuple[str, rules_lib.Parameter]] = {}
  for task, program in programs.items():
    for path, rule in program.rules.parameters.items():
      address = places[task].address(path)
      first, first_rule = rules.setdefault(address, (task, rule))
      if rule != first_rule:
        raise config_lib.UserError(
          f'tasks {first} and {task} share {path}, but one freezes it, or gives'
          ' it another learning rate or weight decay, than the other: choose'
          ' objectives that treat it alike, or set'
          f' config.tasks.{task}.modality to a name of its own'
        )
  return rules_lib.Rules({x: rule for x, (_, rule) in rules.items()})


def _below(values: Mapping[str, Any], start: str) -> dict[str, Any]:
  """Returns the values below a path, by their paths from there."""
  before = f'{start}/'
  return {
    path.removeprefix(before): x
    for path, x in values.items()
    if path.startswith(before)
  }


def _state_addresses(
  task: str, state: TrainState, names: Mapping[str, str]
) -> list[str]:
  """Returns the path in the whole state of each leaf of a task's state.

  `names` has the path in the run of each parameter of the task.
  """

  def address(path: str) -> str:
    kind, _, name = path.partition('/')
    if kind == 'extra':
      return f'extra/{task}/{name}'
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
  shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
  for task, addresses in names.items():
    for path, address in addresses.items():
      shape = programs[task].param_shardings[path].shape
      first, first_shape = shapes.setdefault(address, (task, shape))
      if shape == first_shape:
        continue
      advice = (
        'config.tasks share the trunk, config.model: leave out what differs in'
        f' config.tasks.{task}.model'
        if parts_lib.is_shared(address)
        else 'tasks of one modality share their patches, positions and'
        f' channels: make these equal, or set config.tasks.{task}.modality to'
        ' a name of its own'
      )
      raise config_lib.UserError(
        f'tasks {first} and {task} share {path}, but its shape is'
        f' {list(first_shape)} in {first} and {list(shape)} in {task}: {advice}'
      )
  shared = {x for x in shapes if parts_lib.is_shared(x)}
  for task, addresses in names.items():
    if lacks := sorted(shared - set(addresses.values())):
      raise config_lib.UserError(
        f'tasks {shapes[lacks[0]][0]} and {task} have no trunk in common:'
        f' {task} lacks {config_lib.join_first(lacks)}; give them the same'
        ' family and depth'
      )
