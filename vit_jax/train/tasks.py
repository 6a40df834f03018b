"""Several tasks on one trunk (PolyViT, arXiv:2111.12993): `config.tasks`.

A step is of one task. It takes the task's part of the train state, makes the
step of a run of this task, and puts the part back. So each task has one
compiled program, and what other tasks have for themselves does not change:
neither their parameters nor the optimizer's moments of these. Only the
optimizer's count of steps is that of all tasks. Or a step is of all tasks, and
follows the gradient of the weighted mean of their losses (section 3.3 of the
paper).

Layers that all tasks share have their usual paths in the run. What tasks of one
modality share is below `modalities/NAME/`, and what a task has for itself below
`tasks/NAME/`. A task's own tree has none of these prefixes.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import math
import pathlib
import re
import sys
from typing import Annotated
from typing import Any
from typing import cast
from typing import Literal
from typing import Self
from typing import TYPE_CHECKING

from absl import logging
from flax import traverse_util
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax import tables
from vit_jax.config import options
from vit_jax.config import parts
from vit_jax.config import tasks as task_configs
from vit_jax.data import base as data_base
from vit_jax.data import sources
from vit_jax.data.device.rng import Rng
from vit_jax.objectives.extensions import contract
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import sharding
from vit_jax.runs import restoring
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import cost
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed
from vit_jax.train import hooks as hooks_lib
from vit_jax.train import program as program_lib
from vit_jax.train import state as state_lib
from vit_jax.train import step as step_lib
from vit_jax.train import variant
from vit_jax.train.experiment import Experiment
from vit_jax.train.program import Program
from vit_jax.train.state import TrainState

if TYPE_CHECKING:
  from vit_jax.train.loop import Run

_DRAWS = 0x7A5C  # tells the draws of tasks from others of the same seed
_ROW = 'row'  # of an example in the batch of its task
# Modules of a trunk that all tasks share, and those that each has for itself.
# All others, as patch_embedding, are of the modality.
_SHARED = re.compile(r'(blocks|blocks_\d+|norm)/')
_TASK_MODULES = re.compile(r'(head|head_\w+|pre_logits|map_head|fc_norm)/')

_PREFIXES = ('tasks/', 'modalities/')  # of places that are not in the trunk

# By task, the path in the run of each parameter of the task's own tree.
Places = dict[str, dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Tasks(variant.Variant):
  """Trains the tasks of `config.tasks` on one trunk.

  Attributes:
    sampling: How the task of a step is chosen. 'epochs', 'uniform' and
      'weighted' draw it from the seed and the step: in proportion to the steps
      of an epoch of the task's data, all alike, or in proportion to
      `config.tasks.NAME.weight`. 'alternating': the tasks take turns.
      'accumulated': every step computes a batch of each task, and uses the
      weighted mean of their losses.
    layers: Number of first layers that each modality has for itself. All tasks
      share the layers after them.
  """

  sampling: Literal[
    'epochs', 'uniform', 'weighted', 'alternating', 'accumulated'
  ] = 'epochs'
  layers: Annotated[int, options.Interval('[0, inf)')] = 0

  def check(self, config: ml_collections.ConfigDict) -> None:
    """Checks the tasks, and keys that do not work with several."""
    for problem in self._problems(config):
      raise config_lib.UserError(
        f'config.train.variant={config.train.variant} {problem}'
      )

  def _problems(self, config: ml_collections.ConfigDict) -> Iterator[str]:
    is_accumulated = self.sampling == 'accumulated'
    names: list[str] = []
    for name in [*config.tasks] or ['']:
      if not re.fullmatch(r'[A-Za-z]\w*', name):
        yield (
          f'trains config.tasks, where {name!r} is no name: set'
          ' config.tasks.NAME = config.task(config), where NAME has letters,'
          ' digits and _, with a letter first'
        )
      config_lib.within(config, f'tasks.{name}.weight', '(0, inf)')
      config_lib.within(config, f'tasks.{name}.batch_size', '[0, inf)')
      config_lib.within(config, f'tasks.{name}.rate_factor', '(0, inf)')
      task = config_lib.for_task(config, name)
      head = parts.parse(task.model.head or 'linear', 'model.head')
      if is_accumulated and head.options.get('norm') == 'batch':
        yield (
          f'does not measure the statistics of the model of task {name}: leave'
          ' norm of model.head out'
        )
      if is_accumulated and config.tasks[name].rate_factor != 1:
        yield (
          f'has one learning rate, and config.tasks.{name}.rate_factor is not'
          ' 1: set weights instead'
        )
      names += [f'{name}_{key}' for key in task.evals]
    for name in names:
      if names.count(name) > 1:
        yield f'has two evaluations that are called {name}: rename one'
    for name, spec in config.evals.items():
      if spec.split:
        yield (
          f'has config.evals.{name}.split, but each task has evaluations of its'
          f' own: set config.tasks.NAME.evals.{name}.split'
        )
    if config.train.accumulation == config_lib.AUTO:
      yield (
        "has config.train.accumulation='auto', which measures a single task:"
        ' write a number'
      )
    if self.layers and config.model.scan:
      yield (
        'has layers of each modality, but scanned layers are one array, that of'
        ' all tasks: set config.model.scan=False'
      )

  def experiment(
    self, config: ml_collections.ConfigDict, resumes: pathlib.Path | None
  ) -> Experiment:
    """Returns the experiment of all tasks."""
    configs, splits = config_lib.each_task(config), {}
    for name, task_config in configs.items():
      with config_lib.explained(f'task {name}'):
        splits[name] = experiment_lib.open_splits(task_config)
    epochs = {  # in steps
      name: len(splits[name]['train']) / x.train.batch_size
      for name, x in configs.items()
    }
    # As if all batches had the usual size: an epoch of several tasks has as
    # many steps as an epoch of each.
    examples = sum(
      len(splits[name]['train']) * config.train.batch_size / x.train.batch_size
      for name, x in configs.items()
    )
    lengths = experiment_lib.find_lengths(config, round(examples))
    order = self.draw(config, epochs, lengths.total)
    tasks: dict[str, Experiment] = {}
    for i, (name, task_config) in enumerate(configs.items()):
      workdir = resumes / 'tasks' / name if resumes else False
      with config_lib.explained(f'task {name}'):
        task = experiment_lib.build(task_config, workdir, splits[name], lengths)
      steps = lengths.total if order is None else int((order == i).sum())
      tasks[name] = dataclasses.replace(task, total_steps=steps)
    config = task_configs.with_task_values(
      config, {name: task.config for name, task in tasks.items()}
    )
    return self.join(config, tasks, order)

  def draw(
    self,
    config: ml_collections.ConfigDict,
    epochs: dict[str, float],
    steps: int,
  ) -> np.ndarray | None:
    """Returns the task of each step, which depends on the seed and the step.

    They are int32 [steps], positions in `epochs`, which has the steps of an
    epoch of each task. None: each step is of all tasks.
    """
    if self.sampling == 'accumulated':
      return None
    if self.sampling == 'alternating':
      return np.arange(steps, dtype=np.int32) % len(epochs)
    shares = {
      'uniform': [1.0] * len(epochs),
      'weighted': [config.tasks[name].weight for name in epochs],
      'epochs': [*epochs.values()],
    }[self.sampling]
    ends = np.cumsum(shares) / np.sum(shares)
    # A longer run begins with the same numbers.
    drawn = np.random.default_rng((_DRAWS, config.seed)).random(steps)
    tasks = np.searchsorted(ends, drawn, side='right')
    return np.minimum(tasks, len(epochs) - 1).astype(np.int32)

  def join(
    self,
    config: ml_collections.ConfigDict,
    tasks: dict[str, Experiment],
    order: np.ndarray | None,
  ) -> Experiment:
    """Returns the experiment of several tasks; `order` is from `draw`."""
    program = self._program(
      config, {name: task.program for name, task in tasks.items()}, order
    )
    splits = {
      f'{name}.{use}': source
      for name, task in tasks.items()
      for use, source in task.splits.items()
    }
    return _Experiment(
      config=config,
      lengths=program.lengths,
      total_steps=program.lengths.total,
      cache=sources.Splits(config, program.mesh, splits),
      evaluators={},  # tasks have them, and start for themselves
      start=None,
      program=program,
      tasks=tasks,
    )

  def _program(
    self,
    config: ml_collections.ConfigDict,
    programs: dict[str, Program],
    order: np.ndarray | None,
  ) -> '_Program':
    first = next(iter(programs.values()))
    all_shardings = {name: x.param_shardings for name, x in programs.items()}
    all_rules = {name: x.rules.parameters for name, x in programs.items()}
    places = self._places(config, programs, all_shardings)
    shapes = {
      name: {path: x.shape for path, x in task_shardings.items()}
      for name, task_shardings in all_shardings.items()
    }
    _check_trunk(shapes, places)
    rules = _join(
      all_rules,
      self._places(config, programs, all_rules),
      lambda place, first_task, task, values: (
        'one freezes it, or gives it another learning rate or weight decay:'
        ' choose objectives that treat it alike, or set'
        f' config.tasks.{task}.modality to a name of its own'
      ),
    )
    program = _Program(
      config=config,
      features=first.features,
      lengths=first.lengths,
      objective=_JointObjective(config, programs, places),
      mesh=first.mesh,
      rules=rules_lib.Rules(rules),
      param_shardings=_join(all_shardings, places),
      programs=programs,
      places=places,
      order=order,
    )
    try:
      for name in programs:
        program.part(program.abstract_state(), name)
    except KeyError as e:
      raise config_lib.UserError(
        f'config.optim.name={config.optim.name} does not keep its state by'
        f' parameter, as several tasks need it ({e}): choose another, as adamw'
      ) from None
    return program

  def _places(
    self,
    config: ml_collections.ConfigDict,
    programs: Mapping[str, Program],
    values: Mapping[str, Mapping[str, Any]],
  ) -> Places:
    """Returns the places of parameters; `values` are by task and its paths."""
    all_places: Places = {}
    for task, program in programs.items():
      kind = type(program.features['image']).__name__.lower()
      modality = config.tasks[task].modality or kind
      trunk = program.objective.trunk_path
      before = f'{trunk}/' if trunk else ''
      places = all_places[task] = {}
      for path in values[task]:
        trunk_path = path.removeprefix(before)
        layer = re.match(r'blocks_(\d+)/', trunk_path)
        is_first = layer is not None and int(layer[1]) < self.layers
        if not path.startswith(before) or _TASK_MODULES.match(trunk_path):
          places[path] = f'tasks/{task}/{path}'
        elif _SHARED.match(trunk_path) and not is_first:
          places[path] = trunk_path
        else:
          places[path] = f'modalities/{modality}/{trunk_path}'
    return all_places


@dataclasses.dataclass(frozen=True)
class _Experiment(Experiment):
  """The experiment of several tasks.

  Attributes:
    tasks: The experiment of each task, by name. It counts the task's steps.
  """

  tasks: dict[str, Experiment]
  program: '_Program'

  @property
  def parts(self) -> Mapping[str, Experiment]:
    return self.tasks

  def loaded_params(self) -> Any:
    starts = {name: task.loaded_params() for name, task in self.tasks.items()}
    starts = {name: x for name, x in starts.items() if x is not None}
    return _join_params(starts, self.program.places) if starts else None

  def steps_before(self, step: int) -> dict[str, int]:
    """Returns how many of the first `step` steps are of each task."""
    if self.program.order is None:
      return dict.fromkeys(self.tasks, step)
    counts = np.bincount(self.program.order[:step], minlength=len(self.tasks))
    return dict(zip(self.tasks, counts.tolist(), strict=True))

  def train_batches(
    self, start: int, calls: Iterable[int] | None = None
  ) -> feed.Feed:
    del calls  # each makes one step
    feeds = {
      name: self.tasks[name].train_batches(done)
      for name, done in self.steps_before(start).items()
      if done < self.tasks[name].total_steps
    }
    order, names = self.program.order, [*self.tasks]
    if order is None:
      return _Feed(feeds, [''] * (self.total_steps - start))
    return _Feed(feeds, [names[i] for i in order[start:]])

  def log_due(self, step: int) -> bool:
    """Whether to log a step: also the first of each task in each interval."""
    order = self.program.order
    if super().log_due(step) or order is None:
      return super().log_due(step)
    first = math.ceil(step // self.log_every * self.log_every)
    return order[step - 1] not in order[max(first - 1, 0) : step - 1]

  def fingerprint(self) -> str:
    prints = [task.fingerprint() for task in self.tasks.values()]
    return data_base.digest([*self.tasks, *prints])

  def preprocess(self) -> dict[str, Any]:
    return {'classes': [], 'tasks': list(self.tasks)}  # each has one of its own

  def files(self) -> dict[str, Any]:
    files: dict[str, Any] = {}
    for name, task in self.tasks.items():
      place = {'task': name, 'params': self.program.places[name]}
      files |= {
        f'tasks/{name}/{workdir_lib.PART}': place,
        f'tasks/{name}/config.json': config_lib.to_dict(task.config),
        f'tasks/{name}/preprocess.json': task.preprocess(),
      }
    return files

  def hooks(self) -> list[hooks_lib.Hook]:
    return [*super().hooks(), _ShowTable()]

  def with_accumulation(self, accumulation: int) -> Self:
    config = config_lib.with_accumulation(self.config, accumulation)
    tasks = {
      name: task.with_accumulation(accumulation)
      for name, task in self.tasks.items()
    }
    joint = cast(Tasks, variant.from_config(config))
    return cast(Self, joint.join(config, tasks, self.program.order))

  def cached(self) -> Self:
    tasks = {name: task.cached() for name, task in self.tasks.items()}
    return dataclasses.replace(self, tasks=tasks)


class _ShowTable(hooks_lib.Hook):
  """Shows the results by task at the end."""

  def end(self, run: 'Run') -> None:
    e, rows = cast(_Experiment, run.experiment), []
    for name, done in e.steps_before(run.step).items():
      task, metrics = e.tasks[name], []
      for key, x in (run.results or {}).items():
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
    table = tables.Table(columns, rows).text(tables.room(sys.stderr))
    logging.info('%s', table)


class _Feed(feed.Feed):
  """Global batches of several tasks, in the order of the steps.

  A batch of one task is as that of its `Feed`. One of all tasks has the arrays
  of each, as 'digits/image', and `index`, of all.
  """

  def __init__(self, feeds: dict[str, feed.Feed], names: list[str]):
    """Takes over the feeds by task; `names` are by step, '' for all tasks."""
    self._feeds, self._names = feeds, collections.deque(names)

  def __next__(self) -> feed.Batch:
    if not self._names:
      raise StopIteration
    if name := self._names.popleft():
      return next(self._feeds[name])
    batches = {task: next(x) for task, x in self._feeds.items()}
    index = jnp.concatenate([x['index'] for x in batches.values()])
    return traverse_util.flatten_dict(batches, sep='/') | {'index': index}

  @property
  def error(self) -> config_lib.UserError | None:  # type: ignore[override]
    return next((x.error for x in self._feeds.values() if x.error), None)

  def is_ready(self) -> bool:
    task_feed = self._feeds.get(self._names[0]) if self._names else None
    feeds = [task_feed] if task_feed else self._feeds.values()
    return all(x.is_ready() for x in feeds)

  def close(self) -> None:
    with contextlib.ExitStack() as stack:
      for task_feed in self._feeds.values():
        stack.callback(task_feed.close)


@dataclasses.dataclass(eq=False, kw_only=True)
class _Program(Program):
  """The functions of several tasks, each of which is a `Program` of its own.

  The train state has the parameters of all tasks; the optimizer's state and the
  average follow them. `extra` has the extra of each objective by task.

  Attributes:
    programs: The program of each task alone.
    places: Where the parameters of each task lie.
    order: The task of each step, int32 [steps]; None: each step is of all.
  """

  programs: dict[str, Program]
  places: Places
  order: np.ndarray | None

  @functools.cached_property
  def variants(self) -> Sequence[Program]:
    if self.order is None:
      return (self,)
    return [_OneTask(self, name) for name in self.programs]

  def variant(self, step: int) -> Program:
    return self.variants[0 if self.order is None else int(self.order[step])]

  @functools.cached_property
  def _init(self) -> state_lib.Init:
    # The extra of an objective has the paths of its own tree.
    shardings: dict[str, sharding.ParamSharding] = {}
    for program in self.programs.values():
      shardings |= program.param_shardings
    return self._make_init(shardings | {**self.param_shardings})

  @functools.cached_property
  def setup(self) -> step_lib.Setup:
    setups = []  # of all tasks before any trace, in which JAX adds to errors
    for name, program in self.programs.items():
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
  ) -> tuple[TrainState, step_lib.Metrics]:
    rows = {
      f'{name}/{_ROW}': jnp.arange(len(batch[f'{name}/index']), dtype=jnp.int32)
      for name in self.programs
    }
    return super().one_step(state, batch | rows, step, signals)

  def state_to_read(self, names: object) -> TrainState:
    return self.abstract_state()

  def address(self, task: str, path: Any) -> str:
    """Returns the path in the whole state of a leaf of a task's own state."""
    keys = sharding.path_name(path).split('/')
    if keys[0] == 'extra':
      return '/'.join(['extra', task, *keys[1:]])
    for start in range(1, len(keys)):  # of the optimizer, a parameter's is last
      if place := self.places[task].get('/'.join(keys[start:])):
        return '/'.join([*keys[:start], place])
    return '/'.join(keys)

  def part(self, state: TrainState, name: str) -> TrainState:
    leaves = sharding.leaves(state)
    part: TrainState = jax.tree_util.tree_map_with_path(
      lambda path, _: leaves[self.address(name, path)],
      self.programs[name].abstract_state(),
    )
    return part

  def with_part(
    self, state: TrainState, part: TrainState, name: str
  ) -> TrainState:
    """Returns the state with the train state of one task put back."""
    pairs = jax.tree_util.tree_leaves_with_path(part)
    changed = {self.address(name, path): x for path, x in pairs}
    updated_state: TrainState = jax.tree_util.tree_map_with_path(
      lambda path, x: changed.get(sharding.path_name(path), x), state
    )
    return updated_state

  @functools.cached_property
  def flops(self) -> cost.StepFlops:
    shares = np.ones(len(self.programs))
    if self.order is not None:
      shares = np.bincount(self.order, minlength=len(shares)) / len(self.order)
    counts = [x.flops for x in self.programs.values()]
    return cost.mean(counts, shares.tolist())

  def abstract_batch(self, *args: Any) -> dict[str, Any]:
    batches = {n: x.abstract_batch(*args) for n, x in self.programs.items()}
    index = [batch['index'] for batch in batches.values()]
    total = index[0].update(shape=(sum(len(x) for x in index),))
    return traverse_util.flatten_dict(batches, sep='/') | {'index': total}

  def compile(self, count: int = 1) -> jax.stages.Compiled:
    """Compiles all steps; returns the one with the most temporary memory."""
    if self.order is None:
      return super().compile(count)
    compiled = [x.compile(count) for x in self.variants]
    return max(compiled, key=program_lib.temporary_bytes)


class _OneTask(Program):
  """The steps of one task, in the train state of all."""

  def __init__(self, joint: _Program, name: str):
    program = joint.programs[name]
    names = [field.name for field in dataclasses.fields(Program)]
    super().__init__(**{x: getattr(program, x) for x in names})
    self.label, self._name = f'task {name}', name
    self._joint, self._init = joint, joint._init

  @functools.cached_property
  def setup(self) -> step_lib.Setup:
    with config_lib.explained(self.label):
      return super().setup

  def one_step(
    self, state: TrainState, batch: Any, step: Any, signals: Any
  ) -> tuple[TrainState, step_lib.Metrics]:
    name = self._name
    with config_lib.explained(self.label):
      part, metrics = super().one_step(
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
    programs: dict[str, Program],
    places: Places,
  ):
    self.config, self._programs, self._places = config, programs, places

  @property
  def caches_gradients(self) -> bool:  # type: ignore[override]
    return any(x.objective.caches_gradients for x in self._programs.values())

  def _by_task(
    self, compute: Callable[[str, Program, Any], Any], params: Any
  ) -> dict[str, Any]:
    """Computes something of name, program and own parameters of each task."""
    values = {}
    for name, program in self._programs.items():
      with config_lib.explained(f'task {name}'):
        tree = restoring.extract(params, self._places[name])
        values[name] = compute(name, program, tree)
    return values

  def init(self, key: jax.Array) -> Any:
    trees = {name: x.objective.init(key) for name, x in self._programs.items()}
    return _join_params(trees, self._places)

  def init_extra(self, params: Any) -> dict[str, Any]:
    return self._by_task(
      lambda _, x, tree: x.objective.init_extra(tree), params
    )

  def loss(self, params: Any, extra: Any, batch: Any, rng: Rng) -> Any:
    def task_loss(name: str, program: Program, tree: Any) -> Any:
      task_rng = Rng(rng.key, batch[f'{name}/{_ROW}'])
      return program.setup.loss(
        tree, extra[name], _below(batch, name), task_rng
      )

    total = sum(task.weight for task in self.config.tasks.values())
    loss: Any = 0.0
    means: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    for name, outputs in self._by_task(task_loss, params).items():
      mean, scalars, extras[name] = outputs
      loss += self.config.tasks[name].weight / total * mean
      means |= {f'{name}/{k}': x for k, x in scalars.items()}
      means[f'{name}/loss'] = mean
    return loss, means, extras

  def after_update(self, extra: Any, params: Any, step: Any) -> dict[str, Any]:
    return self._by_task(
      lambda name, x, tree: x.objective.after_update(extra[name], tree, step),
      params,
    )

  def warnings(self, scalars: Mapping[str, float], step: int) -> list[str]:
    lines = []
    for name, program in self._programs.items():
      if means := _below(scalars, name):
        lines += program.objective.warnings(means, step)
    return lines

  def after_step(self, extra: Any, ok: Any, has_batch: Any) -> dict[str, Any]:
    return {
      name: x.objective.after_step(extra[name], ok, has_batch)
      for name, x in self._programs.items()
    }


def _join(
  values: Mapping[str, Mapping[str, Any]],
  places: Places,
  conflict: Callable[..., str] | None = None,
) -> dict[str, Any]:
  """Returns values of parameters by their paths in the run.

  `values` are by task, and by the path in its own tree. What tasks share is
  that of the first. `conflict` says what is wrong where another differs; it
  takes the place, the names of both tasks, and both values.
  """
  joined: dict[str, tuple[str, Any]] = {}
  for task, task_values in values.items():
    for path, x in task_values.items():
      place = places[task][path]
      first_task, first = joined.setdefault(place, (task, x))
      if conflict is not None and first != x:
        problem = conflict(place, first_task, task, (first, x))
        raise config_lib.UserError(
          f'tasks {first_task} and {task} share {path}, but {problem}'
        )
  return {place: x for place, (_, x) in joined.items()}


def _check_trunk(
  shapes: Mapping[str, Mapping[str, tuple[int, ...]]], places: Places
) -> None:
  """Raises a UserError if tasks do not fit on one trunk."""

  def conflict(
    place: str, first_task: str, task: str, pair: tuple[Any, Any]
  ) -> str:
    if place.startswith(_PREFIXES):
      advice = (
        'those of one modality share patches, positions and channels: make'
        f' them equal, or set config.tasks.{task}.modality to another name'
      )
    else:
      advice = (
        'all share the trunk, config.model: leave out what differs in'
        f' config.tasks.{task}.model'
      )
    first, shape = map(list, pair)
    return (
      f'its shape is {first} in {first_task} and {shape} in {task}: {advice}'
    )

  joined = _join(shapes, places, conflict)
  trunk = {x for x in joined if not x.startswith(_PREFIXES)}
  for task, task_places in places.items():
    if lacks := sorted(trunk - set(task_places.values())):
      raise config_lib.UserError(
        f'tasks have no trunk in common: {task} lacks'
        f' {config_lib.join_first(lacks)}; give all the same family and depth'
      )


def _join_params(trees: dict[str, Any], places: Places) -> Any:
  """Returns the parameters of a run; what tasks share is that of the first."""
  flat = {n: traverse_util.flatten_dict(x, sep='/') for n, x in trees.items()}
  return traverse_util.unflatten_dict(_join(flat, places), sep='/')


def _below(values: Mapping[str, Any], start: str) -> dict[str, Any]:
  """Returns the values below a path, by their paths from there."""
  before = f'{start}/'
  return {
    path.removeprefix(before): x
    for path, x in values.items()
    if path.startswith(before)
  }
