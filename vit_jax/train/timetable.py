"""When a run logs, evaluates, saves and ends, in steps."""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import fractions
import math
from typing import Any
from typing import NamedTuple

import ml_collections

from vit_jax import config as config_lib
from vit_jax import optim


@dataclasses.dataclass(frozen=True)
class Timetable:
  """When a run does what.

  Attributes:
    config: The config, with the values that depend on the data filled in.
    lengths: Steps of the run, and of parts of its schedule.
    total_steps: Steps of the whole run.
    log_every: In steps, like all the following intervals.
    checkpoint_every: None: only at the end.
    checkpoint_keep_every: None: no checkpoint is kept for ever.
    eval_every: By the evaluation's name; None: only at the end.
    patience: How long the best metric may not improve; None: without limit.
  """

  config: ml_collections.ConfigDict
  lengths: optim.Lengths
  total_steps: int
  log_every: fractions.Fraction
  checkpoint_every: fractions.Fraction | None
  checkpoint_keep_every: fractions.Fraction | None
  eval_every: Mapping[str, fractions.Fraction | None]
  patience: fractions.Fraction | None

  def epoch(self, step: int) -> float:
    """Returns the number of epochs after `step` updates."""
    return step * self.config.train.batch_size / self.lengths.examples

  def evals_due(self, step: int) -> list[str]:
    """Returns the names of the evaluations due at a step; at the end, all."""
    return [
      name
      for name, every in self.eval_every.items()
      if step == self.total_steps or config_lib.is_due(step, every)
    ]

  def next_evaluation(self, step: int) -> int:
    """Returns the first step after `step` at which an evaluation is due."""
    steps = [
      math.ceil((step // every + 1) * every)
      for every in self.eval_every.values()
      if every is not None
    ]
    return min([self.total_steps, *steps])

  def log_due(self, step: int) -> bool:
    """Whether to log a step; the first and the last are always logged."""
    due = config_lib.is_due(step, self.log_every)
    return due or step in (1, self.total_steps)

  def is_due(self, step: int) -> bool:
    """Whether an evaluation or a checkpoint is due at a step."""
    return bool(self.evals_due(step)) or self.checkpoint_due(step)

  def checkpoint_due(self, step: int) -> bool:
    """Whether to save at a step; the last step is always saved."""
    due = config_lib.is_due(step, self.checkpoint_every)
    return due or step == self.total_steps

  def calls(self, start: int) -> Iterator[int]:
    """Yields the number of steps in each call from step `start` to the end.

    Calls of several steps begin only at multiples of `train.steps_per_call`, so
    that a resumed run makes the same calls. If an evaluation or a checkpoint is
    due within such a call, its steps are made one by one.
    """
    most, step = self.config.train.steps_per_call, start
    while step < self.total_steps:
      fits = step % most == 0 and step + most <= self.total_steps
      within = range(step + 1, step + most)
      count = most if fits and not any(map(self.is_due, within)) else 1
      yield count
      step += count

  def first_call(self, start: int = 0) -> int:
    """Returns the number of steps in the call that begins at step `start`."""
    return next(self.calls(start), 1)


class Measured(NamedTuple):
  """What is evaluated at a step, of one task.

  Attributes:
    experiment: The `Experiment` of the task.
    params: Parameters of its objective.
    names: Names of its evaluations by their names in results.
    key: The key of the config that has these evaluations.
  """

  experiment: Any
  params: Any
  names: Mapping[str, str]
  key: str


def find_lengths(
  config: ml_collections.ConfigDict, examples: int
) -> optim.Lengths:
  """Returns the steps of the run and of the parts of its schedule.

  Args:
    config: The full config.
    examples: Examples in an epoch.
  """

  def steps(text: str) -> int:
    return config_lib.num_steps(text, examples, config.train.batch_size)

  lengths = optim.Lengths(
    total=steps(config.train.duration),
    warmup=steps(config.optim.warmup),
    examples=examples,
    batch_size=config.train.batch_size,
  )
  optim.check_lengths(config, lengths)
  return lengths


def make(
  config: ml_collections.ConfigDict, lengths: optim.Lengths
) -> dict[str, Any]:
  """Returns the fields of the `Timetable` of a config."""
  train, every = config.train, config.checkpoint

  def steps(text: str) -> fractions.Fraction | None:
    size = train.batch_size
    return config_lib.period(text, lengths.examples, size) if text else None

  log_every = steps(train.log_every)
  assert log_every is not None  # checked: it is never empty
  return dict(
    config=config,
    lengths=lengths,
    total_steps=lengths.total,
    log_every=log_every,
    checkpoint_every=steps(every.every),
    checkpoint_keep_every=steps(every.keep_every),
    eval_every={
      name: steps(spec.every)
      for name, spec in config_lib.all_evaluations(config).items()
    },
    patience=steps(train.patience),
  )
