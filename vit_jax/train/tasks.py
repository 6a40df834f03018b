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

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import sys
from typing import Any
from typing import Self

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import objectives
from vit_jax import tables
from vit_jax.data import base as data_base
from vit_jax.runs import parts as parts_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed
from vit_jax.train import task_program
from vit_jax.train import timetable

TrainState = experiment_lib.TrainState
Experiment = experiment_lib.Experiment

_DRAWS = 0x7A5C  # tells the draws of tasks from others of the same seed


def build(
  config: ml_collections.ConfigDict, resumes: pathlib.Path | None = None
) -> 'Trainable':
  """Returns the experiment of a config, of one task or of several.

  Args:
    config: Checked; is not changed.
    resumes: Work directory of the run, if it has begun.

  Raises:
    UserError: The data are not there or do not fit, or tasks do not fit on one
      trunk.
  """
  if not config.tasks:
    return experiment_lib.build(config, resumes or False)
  own = config_lib.each_task(config)
  splits = {
    name: _of(name, functools.partial(experiment_lib.open_splits, its))
    for name, its in own.items()
  }
  sizes = {name: len(x['train']) for name, x in splits.items()}
  lengths = timetable.find_lengths(config, _epoch(config, own, sizes))
  order = draw(config, own, sizes, lengths.total)
  found: dict[str, Experiment] = {}
  for i, (name, its) in enumerate(own.items()):
    part = _of(
      name,
      functools.partial(
        experiment_lib.build,
        its,
        resumes / 'tasks' / name if resumes else False,
        splits[name],
        lengths,
      ),
    )
    steps = lengths.total if order is None else int((order == i).sum())
    found[name] = dataclasses.replace(part, total_steps=steps)
  return _join(config, found, order)


def _of(name: str, make: Callable[[], Any]) -> Any:
  """Returns `make()`; its errors name the task."""
  with config_lib.explained(f'task {name}'):
    return make()


def _join(
  config: ml_collections.ConfigDict,
  found: dict[str, Experiment],
  order: np.ndarray | None,
) -> 'Tasks':
  """Returns the experiment of several tasks; `order` is from `draw`."""
  config = config_lib.with_task_values(
    config, {name: part.config for name, part in found.items()}
  )
  places = {}
  for name, part in found.items():
    kind = type(part.source.features['image']).__name__.lower()
    places[name] = parts_lib.Part(
      name,
      config.tasks[name].modality or kind,
      objectives.trunk_path(part.program.objective),
      config.train.task_layers,
    )
  programs = {name: part.program for name, part in found.items()}
  lengths = next(iter(found.values())).lengths
  shares = {name: x.total_steps / lengths.total for name, x in found.items()}
  program = task_program.TaskProgram(config, programs, places, shares)
  return Tasks(
    **timetable.make(config, lengths),
    parts=found,
    program=program,
    order=order,
  )


def _epoch(
  config: ml_collections.ConfigDict,
  own: Mapping[str, ml_collections.ConfigDict],
  sizes: Mapping[str, int],
) -> int:
  """Returns the examples of an epoch, as if all batches had the usual size.

  So an epoch of several tasks has as many steps as an epoch of each.
  """
  usual = config.train.batch_size
  return round(
    sum(sizes[name] * usual / own[name].train.batch_size for name in own)
  )


def draw(
  config: ml_collections.ConfigDict,
  own: Mapping[str, ml_collections.ConfigDict],
  sizes: Mapping[str, int],
  steps: int,
) -> np.ndarray | None:
  """Returns the task of each step, which depends on the seed and the step.

  Args:
    config: The full config.
    own: The config of each task.
    sizes: Number of training examples of each task.
    steps: Number of steps of the run.

  Returns:
    int32 [steps], places in `own`; None: each step is of all tasks.
  """
  sampling, count = config.train.task_sampling, len(own)
  if sampling == 'accumulated':
    return None
  if sampling == 'alternating':
    return np.arange(steps, dtype=np.int32) % count
  shares = {
    'uniform': [1.0] * count,
    'weighted': [config.tasks[name].weight for name in own],
    'epochs': [sizes[name] / own[name].train.batch_size for name in own],
  }[sampling]
  ends = np.cumsum(shares) / np.sum(shares)
  # A longer run begins with the same numbers.
  drawn = np.random.default_rng((_DRAWS, config.seed)).random(steps)
  found = np.searchsorted(ends, drawn, side='right')
  return np.minimum(found, count - 1).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Tasks(timetable.Timetable):
  """The experiment of several tasks; the loop uses it as an `Experiment`.

  Attributes:
    parts: That of each task, by name. Its steps are those of the task.
    program: The compiled functions.
    order: The task of each step, int32 [steps]; None: each step is of all.
  """

  parts: Mapping[str, Experiment]
  program: task_program.TaskProgram
  order: np.ndarray | None

  def init(self) -> TrainState:
    """Returns the state before the first step."""
    return self.program.initialise(
      {name: part.init for name, part in self.parts.items()}
    )

  def _names(self, start: int = 0) -> list[str]:
    """Returns the task of each step from `start` on; '': of all tasks."""
    if self.order is None:
      return [''] * (self.total_steps - start)
    names = list(self.parts)
    return [names[i] for i in self.order[start:]]

  def steps_before(self, step: int) -> dict[str, int]:
    """Returns how many of the first `step` steps are of each task."""
    if self.order is None:
      return dict.fromkeys(self.parts, step)
    counts = np.bincount(self.order[:step], minlength=len(self.parts))
    return dict(zip(self.parts, counts.tolist(), strict=True))

  def train_batches(
    self, start: int, calls: Iterable[int] | None = None
  ) -> 'TaskFeed':
    """Returns the global batches of steps `start` to the end.

    Args:
      start: Number of completed updates.
      calls: Ignored: each call makes one step.
    """
    del calls
    done = self.steps_before(start)
    feeds = {
      name: part.train_batches(done[name])
      for name, part in self.parts.items()
      if done[name] < part.total_steps
    }
    return TaskFeed(feeds, self._names(start))

  def step_function(self, step: int, count: int = 1) -> Callable[..., Any]:
    """Returns the compiled function of the step after `step` updates."""
    del count  # is 1
    return self.program.step(self.task_of(step + 1))

  def task_of(self, step: int) -> str:
    """Returns the task that a step is of; '': all."""
    if self.order is None:
      return ''
    return [*self.parts][self.order[step - 1]]

  def log_due(self, step: int) -> bool:
    """Whether to log a step: also the first of each task in each interval."""
    return super().log_due(step) or step in self._first_steps

  @functools.cached_property
  def _first_steps(self) -> frozenset[int]:
    """The first step of each task since each multiple of `log_every`."""
    if self.order is None:
      return frozenset()
    steps = np.arange(1, self.total_steps + 1)
    since = steps * self.log_every.denominator // self.log_every.numerator
    keys = since * len(self.parts) + self.order
    return frozenset(steps[np.unique(keys, return_index=True)[1]].tolist())

  def indices(self, batch: Mapping[str, Any]) -> jax.Array:
    """Returns the indices of the examples of a batch, int32 [B]."""
    if 'index' in batch:
      return batch['index']
    return jnp.concatenate([x['index'] for x in batch.values()])

  def measured(
    self, state: TrainState, names: Sequence[str]
  ) -> Iterator[timetable.Measured]:
    """Yields what to evaluate, for each task."""
    for task, part in self.parts.items():
      known = self._evaluations(task)
      own = {name: known[name] for name in names if name in known}
      if own:
        params = self.program.part(state, task).eval_params
        key = f'config.tasks.{task}.evals'
        yield timetable.Measured(part, params, own, key)

  def _evaluations(self, task: str) -> dict[str, str]:
    """Returns the names of a task's evaluations, by those in results."""
    return {f'{task}_{name}': name for name in self.parts[task].evaluators}

  def warnings(self, scalars: Mapping[str, float], step: int) -> list[str]:
    """Returns what is wrong with the run, as objectives see it."""
    found = []
    for task, part in self.parts.items():
      if own := task_program.below(scalars, task):
        found += part.program.objective.warnings(own, step)
    return found

  def fingerprint(self) -> str:
    """Returns a digest of the training data of all tasks."""
    prints = [part.fingerprint() for part in self.parts.values()]
    return data_base.digest([*self.parts, *prints])

  def preprocess(self) -> dict[str, Any]:
    """Returns the content of preprocess.json; each task has one of its own."""
    return {'classes': [], 'tasks': list(self.parts)}

  def files(self) -> dict[str, Any]:
    """Returns the content of the files in tasks/NAME/, by path."""
    found: dict[str, Any] = {}
    for name, part in self.parts.items():
      folder = f'tasks/{name}'
      found |= {
        f'{folder}/{parts_lib.FILE}': dataclasses.asdict(
          self.program.places[name]
        ),
        f'{folder}/config.json': config_lib.to_dict(part.config),
        f'{folder}/preprocess.json': part.preprocess(),
      }
    return found

  def table(self, results: Mapping[str, float | None], step: int) -> str:
    """Returns the results by task, as a table for people."""
    done = self.steps_before(step)
    names = 'task', 'examples', 'steps', 'epochs', 'results'
    rows = []
    for name, part in self.parts.items():
      known = self._evaluations(name)
      shown = [
        f'{known[evaluation]}/{metric} {x:.4g}'
        for evaluation, _, metric, x in (
          (*key.partition('/'), x) for key, x in results.items()
        )
        if evaluation in known and x is not None and metric != 'examples'
      ]
      rows.append(
        (
          name,
          len(part.source),
          done[name],
          f'{done[name] * part.config.train.batch_size / len(part.source):.1f}',
          ', '.join(shown),
        )
      )
    return tables.Table(names, rows).text(tables.room(sys.stderr))

  @property
  def splits(self) -> dict[str, data.Source]:
    """All sources, by their task and use."""
    return {
      f'{name}.{use}': source
      for name, part in self.parts.items()
      for use, source in part.splits.items()
    }

  def with_accumulation(self, accumulation: int) -> Self:
    """Returns the experiment with another `train.accumulation`."""
    found = {
      name: part.with_accumulation(accumulation)
      for name, part in self.parts.items()
    }
    config = config_lib.with_accumulation(self.config, accumulation)
    programs = {name: part.program for name, part in found.items()}
    program = task_program.TaskProgram(
      config, programs, self.program.places, self.program.shares
    )
    return dataclasses.replace(
      self, config=config, parts=found, program=program
    )

  def cached(self) -> Self:
    """Returns the experiment with its images in the caches of its tasks."""
    found = {name: part.cached() for name, part in self.parts.items()}
    return dataclasses.replace(self, parts=found)


class TaskFeed(Iterator[dict[str, Any]]):
  """Global batches of several tasks, in the order of the steps.

  A batch of one task is as that of its `Feed`; one of all tasks has the batch
  of each by name.
  """

  def __init__(self, feeds: Mapping[str, feed.Feed], names: Sequence[str]):
    """Takes over the feeds, which prefetch already.

    Args:
      feeds: By task.
      names: The task of each step; '': all tasks.
    """
    self._feeds, self._stack = feeds, contextlib.ExitStack()
    for each in feeds.values():
      self._stack.enter_context(each)
    here, ahead = itertools.tee(names)
    next(ahead, None)
    self._names = zip(here, itertools.chain(ahead, ['']), strict=True)
    self._coming = names[0] if names else ''

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self._stack.close()

  def __next__(self) -> dict[str, Any]:
    name, self._coming = next(self._names)
    if name:
      return next(self._feeds[name])
    return {task: next(each) for task, each in self._feeds.items()}

  @property
  def error(self) -> config_lib.UserError | None:
    """Why batches are blank; None: they are not."""
    found = (x.error for x in self._feeds.values() if x.error is not None)
    return next(found, None)

  def is_ready(self) -> bool:
    """Whether the next batch can be taken without waiting."""
    wanted = [self._coming] if self._coming else list(self._feeds)
    return all(self._feeds[x].is_ready() for x in wanted if x in self._feeds)


# What the loop runs, and its batches; `Experiment` and `Feed` say more.
Trainable = Experiment | Tasks
AnyFeed = feed.Feed | TaskFeed
