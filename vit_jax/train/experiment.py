"""Experiments: a checked config with its data and its compiled functions."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from fractions import Fraction
import functools
import itertools
import math
import pathlib
from typing import Any
from typing import cast
from typing import Self
from typing import TYPE_CHECKING

from absl import logging
import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax import objectives
from vit_jax import optim
from vit_jax.data import features as features_lib
from vit_jax.data import sources
from vit_jax.data.host import levels
from vit_jax.evaluation import base as evaluation_base
from vit_jax.optim import rules as rules_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.runs import reporting
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import feed
from vit_jax.train import hooks as hooks_lib
from vit_jax.train import program as program_lib
from vit_jax.train import state as state_lib
from vit_jax.train import variant as variant_lib

if TYPE_CHECKING:
  from vit_jax.weights.initial import Start

TrainState = state_lib.TrainState
_CHECKPOINTS = 'vit_jax.weights.initial'  # the one at `config.init_from.path`


def check(
  config: ml_collections.ConfigDict, platform: str | None = None
) -> None:
  """Lets each package check its part of a config, before anything slow.

  `platform` is of the devices to compile for; None: that of JAX.
  """
  config_lib.check(config)
  variant_lib.check(config)
  for name, task_config in config_lib.each_task(config).items():
    try:
      if name:
        config_lib.check(task_config)
      _check_one(task_config, platform)
    except config_lib.UserError as e:
      raise config_lib.UserError(f'task {name}: {e}' if name else e) from None
  objectives.check_best(config)
  if any(x.startswith('train/') for x in objectives.directions(config)):
    raise config_lib.UserError(
      'config.evals.train is an evaluation whose results would have the names'
      " of the training's own, as train/loss: give it another name, as"
      ' config.evals.train_split'
    )
  reporting.check_trackers(config)
  hooks_lib.from_config(config)


def _check_one(config: ml_collections.ConfigDict, platform: str | None) -> None:
  """Checks the config of a single task."""
  data.check(config)
  optim.check(config)
  evaluation_base.check(config)
  objectives.check(config)
  check_start(config)
  sharding.check(config)
  if any(x.split and x.patch_size is not None for x in config.evals.values()):
    config_lib.wing('vit_jax.train.patches:check_evaluations')(config)
  if config.model.name != config_lib.INIT_FROM:  # else the checkpoint says it
    _check_model(config, platform)


def check_start(config: ml_collections.ConfigDict) -> None:
  """Checks `config.init_from` without opening the checkpoint."""
  wrong = ''
  if config.model.name == config_lib.INIT_FROM:
    wrong = f'model.name is {config.model.name!r}'
  elif config.init_from.trunk_only:
    wrong = 'init_from.trunk_only is True'
  if wrong and not config.init_from.path:
    raise config_lib.UserError(
      f'config.{wrong}, but config.init_from.path is empty: say which'
      ' checkpoint'
    )
  if config.init_from.resize:
    config_lib.wing(_CHECKPOINTS).check(config)


def _check_model(
  config: ml_collections.ConfigDict, platform: str | None = None
) -> None:
  """Checks `config.model`, and that the image size fits it."""
  image_size = config_lib.sides(config.data.image_size)
  platform = platform or jax.default_backend()
  with config_lib.explained('config.model', ValueError):
    model = models.from_config(config.model, 0)
    models.check(config.model, image_size, config.data.channels)
  kernel = getattr(models.attention_part(model), 'implementation', '')
  if kernel == 'cudnn' and (
    config.train.dtype == 'float32' or platform not in ('gpu', 'cuda')
  ):
    raise config_lib.UserError(
      "the attention of config.model has implementation='cudnn', which needs"
      ' config.train.dtype=bfloat16 or float16, which is'
      f' {config.train.dtype}, and a GPU, where there is a {platform}: take'
      " 'plain' or 'xla'"
    )


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The experiment that the loop runs, and when it does what.

  Attributes:
    config: The config, with the values that depend on the data filled in.
    lengths: Steps of the run, and of parts of its schedule.
    total_steps: Steps of the whole run.
    cache: The splits, and their images if `data.cache` keeps them.
    evaluators: By the evaluation's name.
    start: The checkpoint that parameters are loaded from; None: they are
      random.
    program: The compiled functions.
  """

  config: ml_collections.ConfigDict
  lengths: optim.Lengths
  total_steps: int
  cache: sources.Splits
  evaluators: dict[str, evaluation_base.Evaluator]
  start: 'Start | None'
  program: program_lib.Program

  @functools.cached_property
  def log_every(self) -> Fraction:
    """Steps between lines of the log."""
    return cast(Fraction, self._period(self.config.train.log_every))

  @functools.cached_property
  def checkpoint_every(self) -> Fraction | None:
    """Steps between checkpoints; None: only at the end."""
    return self._period(self.config.checkpoint.every)

  @functools.cached_property
  def checkpoint_keep_every(self) -> Fraction | None:
    """Steps between checkpoints that stay; None: none stays for ever."""
    return self._period(self.config.checkpoint.keep_every)

  @functools.cached_property
  def eval_every(self) -> Mapping[str, Fraction | None]:
    """Steps between evaluations, by their names; None: only at the end."""
    return {
      name: self._period(spec.every)
      for name, spec in config_lib.all_evaluations(self.config).items()
    }

  @functools.cached_property
  def patience(self) -> Fraction | None:
    """Steps without a better metric that end the run; None: without limit."""
    return self._period(self.config.train.patience)

  def _period(self, text: str) -> Fraction | None:
    size, examples = self.config.train.batch_size, self.lengths.examples
    return config_lib.period(text, examples, size) if text else None

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

  @property
  def parts(self) -> Mapping[str, 'Experiment']:
    """The experiments that this one is made of, by name: itself alone."""
    return {'': self}

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
    return {
      name: self.splits[f'evals.{name}.train']
      for name in self.eval_every
      if f'evals.{name}.train' in self.splits
    }

  def init(self) -> TrainState:
    """Returns the state before the first step."""
    return self.program.initialise(self.loaded_params())

  def loaded_params(self) -> Any:
    """Returns the initial parameters that are not random; None: all are."""
    return None if self.start is None else self.start.take()

  def with_accumulation(self, accumulation: int) -> Self:
    """Returns the experiment with another `train.accumulation`."""
    config = config_lib.with_accumulation(self.config, accumulation)
    program = program_lib.create(config, self.source.features, self.lengths)
    program.objective.check_source(self.source)
    return dataclasses.replace(self, config=config, program=program)

  def train_batches(
    self, start: int, calls: Iterable[int] | None = None
  ) -> feed.Feed:
    """Returns the global batches of steps `start` to the end.

    `calls` are numbers of steps, as from `calls`; None: one step per call.
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

  def fingerprint(self) -> str:
    """Returns a digest of the training data."""
    return self.source.fingerprint()

  def preprocess(self) -> dict[str, Any]:
    """Returns the content of preprocess.json."""
    objective = self.program.objective
    return data.Preprocess.from_config(
      self.config,
      self.source.features,
      objective.output_facts(),
      objective.trunk_path,
    ).to_dict()

  def files(self) -> dict[str, Any]:
    """Returns the content of further files of the work directory, by path."""
    return {}

  def hooks(self) -> list[hooks_lib.Hook]:
    """Returns the hooks of the config, beside those of every run."""
    return hooks_lib.from_config(self.config)

  def eval_batches(self, name: str) -> feed.Feed:
    """Returns one evaluation's global batches, with each example once.

    'knn.train' names the split that the probe `knn` learns from.
    """
    split = f'evals.{name}'
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
    mesh, features = self.program.mesh, self.splits[split].features
    shapes = self.program.abstract_batch(batch_size, features)
    if not self.cache.on_devices:
      return feed.Feed(
        batches,
        mesh,
        shapes,
        calls,
        advice=lambda: config_lib.wing('vit_jax.data.skipping:advice')(
          self.config, features
        ),
      )
    shapes = {'position': shapes['index']}
    take = functools.partial(self.cache.take, split)
    return feed.Feed(batches, mesh, shapes, calls, take)

  def cached(self) -> Self:
    """Returns the experiment with its images in the cache of `data.cache`."""
    return dataclasses.replace(self, cache=self.cache.load())


def create(
  config: ml_collections.ConfigDict, resumes: pathlib.Path | None = None
) -> Experiment:
  """Returns the experiment of a config, which is checked and stays as it is.

  `resumes` is the work directory of the run, if it has begun.
  """
  variant = variant_lib.from_config(config)
  return variant.experiment(config, resumes) or build(config, resumes or False)


def build(
  config: ml_collections.ConfigDict,
  resumes: bool | pathlib.Path = False,
  splits: Mapping[str, data.Source] | None = None,
  lengths: optim.Lengths | None = None,
) -> Experiment:
  """Opens the data and makes the model and the steps; compiles nothing yet.

  Args:
    config: Checked; is not changed.
    resumes: Whether the run has already begun, or the work directory where it
      has, whose classes are compared with the data's. The checkpoint at
      init_from.path is then read only if the run has no checkpoint of its own.
    splits: From `open_splits`; None: they are opened here.
    lengths: Steps of the run; None: by the examples of the training split.
  """
  if config.tasks:
    raise config_lib.UserError(
      f'config.tasks are {", ".join(config.tasks)}, and this command takes one'
      ' task: give it the config of that alone'
    )
  config = config.copy_and_resolve_references()
  splits = splits or open_splits(config)
  source = splits['train']
  if isinstance(resumes, pathlib.Path):
    names = {name: x.names for name, x in source.features.items()}
    workdir_lib.check_names(resumes, names)
  evaluators = _evaluators(config, splits)
  fill(config, source, bool(resumes))
  lengths = lengths or find_lengths(config, len(source))
  loaded = None
  if config.init_from.path and not resumes:
    loaded = fill_from_checkpoint(config)
  fill_unset(config)
  _check_model(config)

  program = program_lib.create(config, source.features, lengths)
  program.objective.check_source(source)
  for name, evaluator in evaluators.items():
    with config_lib.explained(f'config.evals.{name}'):
      evaluator.check_model(
        program.for_evaluation(evaluator.spec).objective.model
      )
  start = None
  if config.init_from.path:
    make_start = config_lib.wing(f'{_CHECKPOINTS}:Start')
    start = make_start(config, source.classes, loaded, program.objective)
  kinds = {x.kind for x in evaluators.values()}
  if program_lib.is_own(program.objective):
    check_evaluation = config_lib.wing('vit_jax.train.trunk:check_evaluation')
    check_evaluation(program, measures='accuracy' in kinds)
  _warn_of_zero_head(config, program.rules, start)
  return Experiment(
    config=config,
    lengths=lengths,
    total_steps=lengths.total,
    cache=sources.keep(config, program.mesh, splits),
    evaluators=evaluators,
    start=start,
    program=program,
  )


def find_lengths(
  config: ml_collections.ConfigDict, examples: int
) -> optim.Lengths:
  """Returns the steps of the run and of the parts of its schedule.

  `examples` are the number in an epoch.
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


def _evaluators(
  config: ml_collections.ConfigDict, splits: Mapping[str, data.Source]
) -> dict[str, evaluation_base.Evaluator]:
  """Returns the evaluators by name, checked against their splits."""
  evaluators: dict[str, evaluation_base.Evaluator] = {}
  for name, spec in config.evals.items():
    if not spec.split:
      continue
    evaluators[name] = evaluation_base.create(f'evals.{name}', spec)
    with config_lib.explained(
      f'config.evals.{name}', evaluation_base.EvaluationError
    ):
      evaluators[name].check_sources(
        splits[f'evals.{name}'], splits.get(f'evals.{name}.train')
      )
  return evaluators


def fill(
  config: ml_collections.ConfigDict, source: data.Source, resumes: bool = False
) -> None:
  """Sets unset keys of the config from the training data."""
  objectives.fill_options(config)
  objective = objectives.objective_class(config)
  objective.check_features(config, source.features)
  num_outputs = objective.num_outputs(source.features)
  num_classes = config.model.num_classes
  if num_classes is None:
    config.model.num_classes = num_outputs
  elif num_classes < num_outputs:
    raise config_lib.UserError(
      f'config.model.num_classes is {num_classes}, but {config.data.name} has'
      f' {num_outputs} classes: leave it out, or make it at least {num_outputs}'
    )
  elif num_classes > num_outputs > 0 and not resumes:
    logging.warning(
      'warning: config.model.num_classes is %d, but %s has %d classes: the'
      ' other outputs have no class',
      *(num_classes, config.data.name, num_outputs),
    )
  levels.fill(config, source, resumes)
  if not resumes and objective.target:
    name, kind = objective.target
    if issubclass(kind, features_lib.Map):
      check_areas = config_lib.wing('vit_jax.data.class_areas:check')
      check_areas(config.data.split, source, name)
  objective.fill(config, source)


def fill_from_checkpoint(config: ml_collections.ConfigDict) -> Any:
  """Sets unset keys from `init_from.path`; returns what was loaded of it."""
  checkpoints = config_lib.wing(_CHECKPOINTS)
  loaded = checkpoints.load(config)
  checkpoints.fill(config, loaded)
  return loaded


def fill_unset(config: ml_collections.ConfigDict) -> None:
  """Sets keys that are still open: mean and std, and those of the model."""
  mean, std = config_lib.normalization(config)
  config.data.mean = config.data.mean or mean
  config.data.std = config.data.std or std
  fill_model(config)


def fill_model(config: ml_collections.ConfigDict) -> None:
  """Sets the open keys of `config.model` to the values in force."""
  if config.model.name == config_lib.INIT_FROM:
    return
  with config_lib.explained('config.model', ValueError):
    values = models.values_in_force(config.model)
  for key, value in values.items():
    if config.model[key] is None and key != 'num_classes':
      config_lib.set_value(config, f'model.{key}', value)


def open_splits(config: ml_collections.ConfigDict) -> dict[str, data.Source]:
  """Opens each split once; returns the sources by their use."""
  # Each use, with the key of the config that says the split, and the split.
  uses = {'train': ('data.split', config.data.split)}
  for name, spec in config.evals.items():
    key = f'evals.{name}'
    if spec.split:
      uses[key] = f'{key}.split', spec.split
      train_split = evaluation_base.create(key, spec).train_split
      if train_split:
        uses[f'{key}.train'] = f'{key}.kind', train_split
  opened: dict[str, data.Source] = {}
  for key, split in uses.values():
    if split not in opened:
      opened[split] = source = data.open_split(config, key, split)
      # An evaluation would find it after an epoch.
      source.check_targets(range(len(source)))
  return {use: opened[split] for use, (_, split) in uses.items()}


def _warn_of_zero_head(
  config: ml_collections.ConfigDict,
  rules: rules_lib.Rules,
  start: 'Start | None',
) -> None:
  """Warns if the head is frozen at zeros: then all gradients below are 0."""
  head = rules.parameters.get('head/kernel')
  if start is None:
    is_zero = config.model.initializers not in ('lecun', 'deit', 'moco')
  else:
    is_zero = start.has_fresh_head
  if head and not head.trains and is_zero:
    logging.warning(
      'warning: the head is new and all zeros, and does not train, so that'
      ' nothing else learns: let it train, as in'
      " --config.optim.trainable='%s|^head/'",
      config.optim.trainable or 'norm',
    )
