"""Experiments: a checked config with its data and its compiled functions."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import fractions
import functools
import itertools

from absl import logging
import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import evaluation
from vit_jax import models
from vit_jax import objectives
from vit_jax import optim
from vit_jax.data import cache as cache_lib
from vit_jax.data import intensity
from vit_jax.evaluation import base as evaluation_base
from vit_jax.objectives.base import check_features
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.train import feed
from vit_jax.train import program as program_lib
from vit_jax.train import step as train_step_lib
from vit_jax.weights import initial

TrainState = train_step_lib.TrainState


def check(
  config: ml_collections.ConfigDict, platform: str | None = None
) -> None:
  """Lets each package check its part of a config, before anything slow.

  Args:
    config: The full config.
    platform: Platform of the devices to compile for; None: that of JAX.

  Raises:
    UserError: Something cannot work; one line says what to change.
  """
  config_lib.check(config)
  data.check(config)
  optim.check(config)
  evaluation.check(config)
  objectives.check(config)
  initial.check(config)
  sharding.check(config)
  if config.model.name != config_lib.INIT_FROM:  # else the checkpoint says it
    _check_model(config, platform)


def _check_model(
  config: ml_collections.ConfigDict, platform: str | None = None
) -> None:
  """Checks `config.model`.

  Args:
    config: The full config.
    platform: Platform of the devices; None: that of JAX.

  Raises:
    UserError: There is no such model, or the image size does not fit it.
  """
  image_size = config_lib.pair(config.data.image_size, 'data.image_size')
  platform = platform or jax.default_backend()
  if config.model.attention_implementation == 'cudnn' and (
    config.train.dtype != 'bfloat16' or platform not in ('gpu', 'cuda')
  ):
    raise config_lib.UserError(
      'config.model.attention_implementation=cudnn needs'
      f' config.train.dtype=bfloat16, which is {config.train.dtype}, and a GPU,'
      f" where there is a {platform}: take 'plain' or 'xla'"
    )
  try:
    models.check(config.model, image_size, config.data.channels)
  except ValueError as e:
    raise config_lib.UserError(f'config.model: {e}') from None


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The experiment that the loop runs.

  Attributes:
    config: The config, with the values that depend on the data filled in.
    cache: The splits, and their images if `data.cache` keeps them.
    evaluators: By the evaluation's name.
    start: The checkpoint that parameters are loaded from, if there is one.
    program: The compiled functions.
    lengths: Steps of the run, and of parts of its schedule.
    total_steps: Steps of the whole run.
    log_every: In steps, like all the following intervals.
    checkpoint_every: None: only at the end.
    checkpoint_keep_every: None: no checkpoint is kept for ever.
    eval_every: By the evaluation's name; None: only at the end.
    patience: How long the best metric may not improve; None: without limit.
  """

  config: ml_collections.ConfigDict
  cache: cache_lib.Cache
  evaluators: dict[str, evaluation_base.Evaluator]
  start: initial.Start
  program: program_lib.Program
  lengths: optim.Lengths
  total_steps: int
  log_every: fractions.Fraction
  checkpoint_every: fractions.Fraction | None
  checkpoint_keep_every: fractions.Fraction | None
  eval_every: dict[str, fractions.Fraction | None]
  patience: fractions.Fraction | None

  @property
  def splits(self) -> Mapping[str, data.Source]:
    """All sources, by their use."""
    return self.cache.splits

  @property
  def source(self) -> data.Source:
    """Training examples."""
    return self.splits['train']

  @property
  def eval_sources(self) -> dict[str, data.Source]:
    """Sources by the evaluation's name."""
    return {name: self.splits[f'evals.{name}'] for name in self.eval_every}

  @property
  def probe_sources(self) -> dict[str, data.Source]:
    """Sources that probes learn from, by the evaluation's name."""
    keys = {name: f'evals.{name}.train' for name in self.eval_every}
    return {
      n: self.splits[key] for n, key in keys.items() if key in self.splits
    }

  def init(self) -> TrainState:
    """Returns the state before the first step."""
    return self.program.initialise(self.start.take())

  def epoch(self, step: int) -> float:
    """Returns the number of epochs after `step` updates."""
    return step * self.config.train.batch_size / len(self.source)

  def evals_due(self, step: int) -> list[str]:
    """Returns the names of the evaluations due at a step; at the end, all."""
    return [
      name
      for name, every in self.eval_every.items()
      if step == self.total_steps or config_lib.is_due(step, every)
    ]

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

  def with_accumulation(self, accumulation: int) -> 'Experiment':
    """Returns the experiment with another `train.accumulation`."""
    config = config_lib.with_accumulation(self.config, accumulation)
    if config_lib.num_microbatches(config) == config_lib.num_microbatches(
      self.config
    ):
      program = self.program.with_config(config)
    else:
      program = program_lib.Program(config, self.source.features, self.lengths)
      program.objective.check_source(self.source)
    return dataclasses.replace(self, config=config, program=program)

  def train_batches(
    self, start: int, calls: Iterable[int] | None = None
  ) -> feed.Feed:
    """Returns the global batches of steps `start` to the end.

    Args:
      start: Number of completed updates.
      calls: Numbers of steps, as from `calls`; None: one step per call.
    """
    index, count = mesh_lib.host_part(self.program.mesh)
    batches = data.train_batches(
      self.source,
      self.config,
      start_step=start,
      num_steps=self.total_steps,
      host_index=index,
      host_count=count,
      positions_only=bool(self.cache.on_devices),
      views=self.program.objective.views,
    )
    if calls is None:
      calls = itertools.repeat(1, self.total_steps - start)
    return self._feed('train', batches, None, calls)

  def eval_batches(self, name: str) -> feed.Feed:
    """Returns one evaluation's global batches, on the devices."""
    return self._whole_split(f'evals.{name}')

  def probe_batches(self, name: str) -> feed.Feed:
    """Returns the global batches of the split that a probe learns from."""
    return self._whole_split(f'evals.{name}.train')

  def _whole_split(self, split: str) -> feed.Feed:
    """Returns global batches with each example of a split once.

    `split` is a key of `splits`.
    """
    source = self.splits[split]
    parts = config_lib.accumulation(self.config)
    batch_size = self.config.train.batch_size // parts
    index, count = mesh_lib.host_part(self.program.mesh)
    batches = data.eval_batches(
      source,
      self.config,
      batch_size=batch_size,
      host_index=index,
      host_count=count,
      positions_only=bool(self.cache.on_devices),
    )
    calls = itertools.repeat(1, -(-len(source) // batch_size))
    return self._feed(split, batches, batch_size, calls)

  def _feed(
    self,
    split: str,
    batches: data.Batches,
    batch_size: int | None,
    calls: Iterable[int],
  ) -> feed.Feed:
    mesh, shapes = self.program.mesh, self.program.abstract_batch(batch_size)
    if not self.cache.on_devices:
      return feed.Feed(batches, mesh, shapes, calls)
    shapes = {'position': shapes['index']}
    take = functools.partial(self.cache.take, split)
    return feed.Feed(batches, mesh, shapes, calls, take)

  def cached(self) -> 'Experiment':
    """Returns the experiment with its images in the cache of `data.cache`.

    Raises:
      UserError: An image cannot be read, or there is too little memory.
    """
    return dataclasses.replace(self, cache=self.cache.load())


def build(
  config: ml_collections.ConfigDict, resumes: bool = False
) -> Experiment:
  """Opens the data and makes the model and the steps; compiles nothing yet.

  Args:
    config: Checked; is not changed.
    resumes: Whether the run has already begun. The checkpoint at init_from.path
      is then read only if the run has no checkpoint of its own.

  Raises:
    UserError: The data are not there or do not fit.
  """
  config = config.copy_and_resolve_references()
  splits = _open_splits(config)
  source = splits['train']
  evaluators = _evaluators(config, splits)
  _fill(config, source, resumes)
  lengths = find_lengths(config, len(source))
  loaded = None
  if config.init_from.path and not resumes:
    loaded = initial.load(config)
  initial.fill(config, loaded)
  _check_model(config)
  train, batch_size = config.train, config.train.batch_size

  def steps(text: str) -> fractions.Fraction | None:
    return config_lib.period(text, len(source), batch_size) if text else None

  program = program_lib.Program(config, source.features, lengths)
  program.objective.check_source(source)
  start = initial.Start(config, source.classes, loaded, program.objective)
  if 'accuracy' in (x.kind for x in config.evals.values() if x.split):
    program.check_evaluation()
  _warn_of_zero_head(config, program.rules, start)
  return Experiment(
    config=config,
    cache=cache_lib.Cache(config, program.mesh, splits),
    evaluators=evaluators,
    start=start,
    program=program,
    lengths=lengths,
    total_steps=lengths.total,
    log_every=config_lib.period(train.log_every, len(source), batch_size),
    checkpoint_every=steps(config.checkpoint.every),
    checkpoint_keep_every=steps(config.checkpoint.keep_every),
    eval_every={
      name: steps(spec.every)
      for name, spec in config.evals.items()
      if spec.split
    },
    patience=steps(train.patience),
  )


def _evaluators(
  config: ml_collections.ConfigDict, splits: Mapping[str, data.Source]
) -> dict[str, evaluation_base.Evaluator]:
  """Returns the evaluators by name, checked against their splits."""
  evaluators: dict[str, evaluation_base.Evaluator] = {}
  for name, spec in config.evals.items():
    if not spec.split:
      continue
    evaluators[name] = evaluation.create(f'evals.{name}', spec)
    try:
      evaluators[name].check_sources(
        splits[f'evals.{name}'], splits.get(f'evals.{name}.train')
      )
    except evaluation_base.EvaluationError as e:
      raise config_lib.UserError(f'config.evals.{name}: {e}') from None
  return evaluators


def _fill(
  config: ml_collections.ConfigDict, source: data.Source, resumes: bool
) -> None:
  """Sets unset keys of the config from the training data."""
  objectives.fill_options(config)
  objective = objectives.class_of(config)
  check_features(objective, config, source.features)
  _fill_num_classes(config, objective.num_outputs(source.features))
  intensity.fill(config, source, resumes)
  objective.fill(config, source)


def _open_splits(config: ml_collections.ConfigDict) -> dict[str, data.Source]:
  """Opens each split once; returns the sources by their use."""
  keys = {'train': 'data.split'}
  for name, spec in config.evals.items():
    if spec.split:
      keys[f'evals.{name}'] = f'evals.{name}.split'
    if spec.split and spec.train_split:
      keys[f'evals.{name}.train'] = f'evals.{name}.train_split'
  values = dict(config_lib.flatten(config))
  opened: dict[str, data.Source] = {}
  for key in keys.values():
    if values[key] not in opened:
      opened[values[key]] = data.open_split(config, key)
  return {use: opened[values[key]] for use, key in keys.items()}


def _fill_num_classes(config: ml_collections.ConfigDict, found: int) -> None:
  wanted = config.model.num_classes
  if wanted is None:
    config.model.num_classes = found
  elif wanted < found:
    raise config_lib.UserError(
      f'config.model.num_classes is {wanted}, but {config.data.name} has'
      f' {found} classes: leave it out, or make it at least {found}'
    )


def find_lengths(
  config: ml_collections.ConfigDict, examples: int
) -> optim.Lengths:
  """Returns the steps of the run and of the parts of its schedule."""

  def steps(text: str) -> int:
    return config_lib.num_steps(text, examples, config.train.batch_size)

  lengths = optim.Lengths(
    total=steps(config.train.duration),
    warmup=steps(config.optim.warmup),
    cooldown=steps(config.optim.cooldown),
    timescale=steps(config.optim.timescale),
    examples=examples,
  )
  optim.check_lengths(config, lengths)
  return lengths


def _warn_of_zero_head(
  config: ml_collections.ConfigDict,
  rules: rules_lib.Rules,
  start: initial.Start,
) -> None:
  """Warns if the head is frozen at zeros: then all gradients below are 0."""
  head = rules.parameters.get('head/kernel')
  is_zero = start.has_fresh_head
  if not config.init_from.path:
    is_zero = config.model.initializers not in ('lecun', 'deit')
  if head and not head.trains and is_zero:
    logging.warning(
      'warning: the head is new and all zeros, and does not train, so that'
      ' nothing else learns: let it train, as in'
      " --config.optim.trainable='%s|^head/'",
      config.optim.trainable or 'norm',
    )
