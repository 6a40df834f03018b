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

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import pathlib
import sys
from typing import Any
from typing import Self

import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax import tables
from vit_jax.data import base as data_base
from vit_jax.data import cache as cache_lib
from vit_jax.runs import parts as parts_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed
from vit_jax.train import task_program
from vit_jax.train import timetable
from vit_jax.train.experiment import Experiment
from vit_jax.train.state import TrainState

_DRAWS = 0x7A5C  # tells the draws of tasks from others of the same seed


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
  lengths = timetable.find_lengths(config, _epoch(config, configs, sizes))
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
      objectives.trunk_path(task.program.objective),
      config.train.task_layers,
    )
  programs = {name: task.program for name, task in tasks.items()}
  program = task_program.TaskProgram(config, programs, places, order)
  splits = {
    f'{name}.{use}': source
    for name, task in tasks.items()
    for use, source in task.splits.items()
  }
  return Tasks(
    **timetable.make(config, program.lengths),
    cache=cache_lib.Cache(config, program.mesh, splits),
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
  usual = config.train.batch_size
  return round(
    sum(sizes[name] * usual / x.train.batch_size for name, x in configs.items())
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
  program: task_program.TaskProgram

  @property
  def parts(self) -> Mapping[str, Experiment]:
    """The experiment of each task, by name."""
    return self.tasks

  def init(self) -> TrainState:
    """Returns the state before the first step."""
    starts = {name: task.start.take() for name, task in self.tasks.items()}
    starts = {name: x for name, x in starts.items() if x is not None}
    return self.program.initialise(
      task_program.join(starts, self.program.places) if starts else None
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
    return super().log_due(step) or step in self._first_steps

  @functools.cached_property
  def _first_steps(self) -> frozenset[int]:
    """The first step of each task since each multiple of `log_every`."""
    if self.program.order is None:
      return frozenset()
    steps = np.arange(1, self.total_steps + 1)
    since = steps * self.log_every.denominator // self.log_every.numerator
    keys = since * len(self.tasks) + self.program.order
    return frozenset(steps[np.unique(keys, return_index=True)[1]].tolist())

  def measured(
    self, state: TrainState, names: Sequence[str]
  ) -> Iterator[timetable.Measured]:
    """Yields what to evaluate, for each task."""
    for name, task in self.tasks.items():
      keys = {f'{name}_{key}': key for key in task.evaluators}
      keys = {x: keys[x] for x in names if x in keys}
      if keys:
        params = self.program.part(state, name).eval_params
        place = f'config.tasks.{name}.evals'
        yield timetable.Measured(task, params, keys, place)

  def warnings(self, scalars: Mapping[str, float], step: int) -> list[str]:
    """Returns what is wrong with the run, as objectives see it."""
    lines = []
    for name, task in self.tasks.items():
      if means := task_program.below(scalars, name):
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
        f'{folder}/{parts_lib.FILE}': dataclasses.asdict(place),
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
      for each in self._feeds.values():
        stack.callback(each.close)
